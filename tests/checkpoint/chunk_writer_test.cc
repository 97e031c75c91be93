#include "shardwise/checkpoint/detail/write/chunk_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <latch>

#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

constexpr std::uint64_t kBegin = 8192;

struct Outcome {
  SavePlan plan;
  WrittenChunks chunks;
};

Outcome run(const std::filesystem::path& path, std::vector<TensorSource> sources, Codec codec,
            int threads, std::size_t budget_bytes) {
  const Executor executor(threads);
  Outcome result{plan_save(std::move(sources), codec, executor), {}};
  StagingPool pool(staging_sizes(budget_bytes, threads, most_data_bytes(result.plan)));
  const auto file = posix_file_system()->create(path, Caching::direct);
  result.chunks = write_chunks(result.plan, *file, kBegin, pool, {});
  file->resize(result.chunks.end);
  file->close();
  return result;
}

// Every chunk lies where its record says, decodes to the tensor's elements, and zeros beyond.
TEST(ChunkWriter, RecordsLeadToTheElements) {
  const TempDir dir;
  const HostTensor tensors[] = {
      host_tensor("a", DType::f32, {400, 1501}, "data=2,model=3", "data,model"),
      host_tensor("b", DType::i16, {3, 77}, "data=2,model=3", "-,-", Values::ramp),
      host_tensor("c", DType::i64, {300, 301}, "data=2,model=3", "model,-", Values::ramp),
      host_tensor("d", DType::boolean, {}, "data=2,model=3", "")};
  const Outcome done = run(dir / "f", sources_of(tensors), Codec::automatic, 2, 64 << 20);
  const std::vector<std::byte> bytes = file_bytes(dir / "f");
  Decoder decoder;
  std::size_t stored = 0;
  for (std::size_t t = 0; t < done.plan.tensors.size(); ++t) {
    const TensorEntry& tensor = done.plan.tensors[t];
    const std::size_t element_bytes = size_bytes(tensor.dtype);
    for (const PieceEntry& piece : tensor.pieces) {
      for (std::int64_t i = 0; i < num_chunks(piece); ++i) {
        const ChunkRecord& record =
            done.chunks.records[static_cast<std::size_t>(piece.first_chunk + i)];
        stored += record.stored_bytes;
        const std::span<const std::byte> raw(bytes.data() + record.address, record.stored_bytes);
        EXPECT_EQ(hash64(raw.data(), raw.size()), record.hash);
        std::vector<std::byte> decoded(chunk_bytes(piece, tensor.dtype));
        if (piece.codec == StoredCodec::zstd && record.filter_mask == 0) {
          decoder.decode(raw, element_bytes, decoded);
        } else {
          ASSERT_EQ(raw.size(), decoded.size());
          std::copy(raw.begin(), raw.end(), decoded.begin());
        }
        const Box box = relative_to(chunk_box(piece, i), piece.box.begin());
        std::vector<std::byte> expected(decoded.size());
        copy_box(chunk_box(piece, i), element_bytes,
                 {tensors[t].data->data(), Box::whole(tensor.shape)},
                 {expected.data(), Box(chunk_box(piece, i).begin(), [&] {
                    Index end = chunk_box(piece, i).begin();
                    for (std::size_t d = 0; d < end.size(); ++d) end[d] += piece.chunk[d];
                    return end;
                  }())});
        EXPECT_TRUE(decoded == expected) << tensor.name << to_string(box);
      }
    }
  }
  EXPECT_EQ(stored, done.chunks.stored_bytes);
  EXPECT_GE(done.chunks.end, kBegin + stored);
  EXPECT_LE(done.chunks.end, kBegin + most_data_bytes(done.plan));
}

// As many sources are read at once as there are workers, and no more than the budget allows.
TEST(ChunkWriter, ReadsNoMoreAtOnceThanTheBudgetAllows) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("x", DType::f32, {6000, 1024}, "", "-,-");
  TensorSource source = tensor.source();
  std::atomic<int> now = 0, most = 0;
  const auto read = source.read;
  source.read = [&](const Box& box, std::span<std::byte> out) {
    const int count = ++now;
    int seen = most;
    while (count > seen && !most.compare_exchange_weak(seen, count)) {
    }
    read(box, out);
    --now;
  };
  run(dir / "f", {source}, Codec::none, 8, kLeastBudgetBytes);
  EXPECT_EQ(most, 1);
}

TEST(ChunkWriter, ErrorsOfDiskAndSourceEndIt) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("x", DType::f32, {6000, 1024}, "", "-,-");
  const Executor executor(2);
  const SavePlan plan = plan_save({tensor.source()}, Codec::none, executor);
  StagingPool pool(staging_sizes(32 << 20, 2, most_data_bytes(plan)));
  for (const std::int64_t at : {2, 3, 4, 5}) {
    const auto files = std::make_shared<FaultyFileSystem>(at, Fault::no_space);
    const auto file = files->create(dir / std::to_string(at), Caching::direct);
    EXPECT_THAT(message_of(ErrorCode::io, [&] { write_chunks(plan, *file, 0, pool, {}); }),
                testing::HasSubstr("no space"));
  }
  SavePlan broken = plan;
  std::atomic<int> calls = 0;
  broken.sources[0].read = [&](const Box&, std::span<std::byte>) {
    if (++calls == 5) throw 17;
  };
  const auto file = posix_file_system()->create(dir / "f", Caching::direct);
  try {
    write_chunks(broken, *file, 0, pool, {});
    ADD_FAILURE() << "nothing thrown";
  } catch (const CallerError& e) {
    EXPECT_THROW(std::rethrow_exception(e.cause), int);
  }
}

// A later slab fails while the first one is still being gathered: its error is the one that counts.
TEST(ChunkWriter, AnEarlierSlabDoesNotHideTheErrorOfALaterOne) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("x", DType::u8, {64, 1 << 20}, "", "-,-");
  const Executor executor(2);
  SavePlan plan = plan_save({tensor.source()}, Codec::none, executor);
  StagingPool pool(staging_sizes(32 << 20, 2, most_data_bytes(plan)));
  ASSERT_GE(pool.sizes().workers, 2);
  for (int round = 0; round < 30; ++round) {
    std::latch later_failed(1);
    std::atomic<bool> failed{false};
    plan.sources[0].read = [&](const Box& box, std::span<std::byte>) {
      if (box.begin(0) == 0 && box.begin(1) == 0) return later_failed.wait();
      if (box.begin(0) < 16 || failed.exchange(true)) return;
      later_failed.count_down();
      throw 17;
    };
    const auto file = posix_file_system()->create(dir / std::to_string(round), Caching::cached);
    EXPECT_THROW(write_chunks(plan, *file, 0, pool, {}), CallerError);
  }
}

}  // namespace
}  // namespace shardwise::detail
