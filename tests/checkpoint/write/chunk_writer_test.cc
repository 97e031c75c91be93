#include "shardwise/checkpoint/detail/write/chunks/chunk_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <random>

#include "checkpoint/codec/decoded.h"
#include "shardwise/checkpoint/detail/host_reader.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/shard/host/page_memory.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "shardwise/storage/hash.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/only_layout.h"
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
  const ChunkLayout layout = only_layout(result.plan);
  StagingPool pool(staging_sizes(budget_bytes, threads, layout.most_bytes()));
  const auto file = posix_file_system()->create(path, Caching::direct);
  result.chunks = write_chunks(result.plan, layout, nullptr, *file, kBegin, pool, {});
  file->resize(result.chunks.end);
  file->close();
  return result;
}

// A tensor in memory that others may write to.
class OpenMemory final : public HostReader {
 public:
  using HostReader::HostReader;
  bool may_change() const override { return true; }
};

// While each write is under way, somebody changes a byte.
class ChangedMeanwhile final : public ForwardingFile {
 public:
  ChangedMeanwhile(std::unique_ptr<File> real, std::byte& changed)
      : ForwardingFile(std::move(real)), changed_(changed) {}
  void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
    changed_ ^= std::byte{1};
    real().write_runs(offset, runs);
  }

 private:
  std::byte& changed_;
};

TEST(ChunkWriter, WhatIsChangedWhileItIsWrittenIsAnError) {
  const TempDir dir;
  const Executor executor(1);
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const PageMemory memory = page_memory(kBytes);
  std::memset(memory.get(), 0, kBytes);
  TensorInfo info{.name = "w", .dtype = DType::u8, .shape = {std::int64_t{1} << 20}};
  TensorSource source;
  source.name = "w";
  source.reader = std::make_shared<OpenMemory>(info, memory.get());
  const SavePlan plan = plan_save({source}, Codec::none, executor);
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(64 << 20, 1, layout.most_bytes()));
  ChangedMeanwhile file(posix_file_system()->create(dir / "f", Caching::direct), memory[7]);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { write_chunks(plan, layout, nullptr, file, kBegin, pool, {}); }),
              testing::HasSubstr("tensor \"w\": found other bytes"));
}

// Every chunk is at the place that its record names, decodes to the tensor's elements, and zeros
// beyond.
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
            done.chunks.table.records[static_cast<std::size_t>(piece.first_chunk + i)];
        stored += record.stored_bytes;
        const std::span<const std::byte> raw(bytes.data() + record.address, record.stored_bytes);
        EXPECT_EQ(hash64(raw.data(), raw.size()), record.hash);
        std::vector<std::byte> decoded(chunk_bytes(piece, tensor.dtype));
        if (piece.codec == StoredCodec::zstd && record.filter_mask == 0) {
          decode(decoder, raw, element_bytes, decoded);
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
  EXPECT_LE(done.chunks.end, kBegin + only_layout(done.plan).most_bytes());
}

// Remembers the memory that it writes from.
class MemoryOfWrites final : public File {
 public:
  explicit MemoryOfWrites(std::unique_ptr<File> real) : real_(std::move(real)) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    real_->read_at(offset, data, size);
  }
  void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
    const MutexLock lock(mutex_);
    runs_.push_back({data, size});
    real_->write_at(offset, data, size);
  }
  std::uint64_t size() override { return real_->size(); }
  void resize(std::uint64_t size) override { real_->resize(size); }
  void sync() override { real_->sync(); }
  void close() override { real_->close(); }

  /// How many of the bytes were in `memory`.
  std::size_t bytes_from(std::span<const std::byte> memory) {
    const MutexLock lock(mutex_);
    std::size_t bytes = 0;
    for (const WriteRun& run : runs_) {
      if (run.data >= memory.data() && run.data + run.size <= memory.data() + memory.size()) {
        bytes += run.size;
      }
    }
    return bytes;
  }

 private:
  std::unique_ptr<File> real_;
  Mutex mutex_;
  std::vector<WriteRun> runs_ SHARDWISE_GUARDED_BY(mutex_);
};

// A chunk that begins on a page and is not encoded is written from the tensor's own memory. The
// file does not show it.
TEST(ChunkWriter, WritesLargeRawChunksFromWhereTheyLie) {
  struct Case {
    const char* name;
    Codec codec;
    Values values;
    Shape shape;
    std::size_t shift;   // of the tensor's memory, from a page
    std::size_t copied;  // bytes
  };
  constexpr std::size_t whole = std::size_t{3000} * 1024 * 4;
  const Case cases[] = {
      {"whole pages", Codec::none, Values::noise, {3000, 1024}, 0, 0},
      {"not on a page", Codec::none, Values::noise, {3000, 1024}, 64, whole},
      {"does not shrink", Codec::zstd, Values::noise, {3000 * 2048}, 0, 0},
      {"tails of 96 bytes", Codec::none, Values::noise, {3, 250'024}, 0, 3 * 250'024 * 4},
      {"one chunk, with a tail", Codec::none, Values::noise, {250'024}, 0, 250'024 * 4 % 4096},
      {"small", Codec::none, Values::noise, {16'000}, 0, 64'000},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const TempDir dir;
    // Random bits do not shrink, and as u16 they are no floats that do.
    const DType dtype = c.codec == Codec::zstd ? DType::u16 : DType::f32;
    const HostTensor tensor =
        host_tensor("x", dtype, c.shape, "", c.shape.size() == 2 ? "-,-" : "-", c.values);
    const std::size_t size = tensor.data->size();
    const PageMemory memory = page_memory(size + c.shift);
    const std::span<std::byte> bytes(memory.get() + c.shift, size);
    std::copy(tensor.data->begin(), tensor.data->end(), bytes.begin());
    if (c.codec == Codec::zstd) {
      std::mt19937_64 random(1);
      std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::byte>(random()); });
    }
    TensorSource source = host_source("x", tensor.spec, bytes);
    const Executor executor(2);
    const auto save = [&](const std::filesystem::path& path) {
      const SavePlan plan = plan_save({source}, c.codec, executor);
      const ChunkLayout layout = only_layout(plan);
      StagingPool pool(staging_sizes(64 << 20, 2, layout.most_bytes()));
      MemoryOfWrites file(posix_file_system()->create(path, Caching::direct));
      const WrittenChunks chunks = write_chunks(plan, layout, nullptr, file, kBegin, pool, {});
      file.resize(chunks.end);
      for (const ChunkRecord& record : chunks.table.records) {
        std::vector<std::byte> stored(record.stored_bytes);
        file.read_at(record.address, stored.data(), stored.size());
        EXPECT_EQ(hash64(stored.data(), stored.size()), record.hash);
      }
      return size - file.bytes_from(bytes);
    };
    EXPECT_EQ(save(dir / "in place"), c.copied);
    source = callback_tensor("x", tensor.spec, [reader = source.reader](const Box& box, auto out) {
      reader->read(0, box, out);
    });
    EXPECT_EQ(save(dir / "copied"), size);
    EXPECT_TRUE(file_bytes(dir / "in place") == file_bytes(dir / "copied"));
  }
}

// As many sources are read at once as there are workers, and no more than the budget allows.
TEST(ChunkWriter, ReadsNoMoreAtOnceThanTheBudgetAllows) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("x", DType::f32, {6000, 1024}, "", "-,-");
  std::atomic<int> now = 0, most = 0;
  const TensorSource source =
      callback_tensor("x", tensor.spec, [&](const Box& box, std::span<std::byte> out) {
        const int count = ++now;
        int seen = most;
        while (count > seen && !most.compare_exchange_weak(seen, count)) {
        }
        tensor.source().reader->read(0, box, out);
        --now;
      });
  run(dir / "f", {source}, Codec::none, 8, kLeastBudgetBytes);
  EXPECT_EQ(most, 1);
}

TEST(ChunkWriter, ErrorsOfDiskAndSourceEndIt) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("x", DType::f32, {6000, 1024}, "", "-,-");
  const Executor executor(2);
  const SavePlan plan = plan_save({tensor.source()}, Codec::none, executor);
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(32 << 20, 2, layout.most_bytes()));
  for (const std::int64_t at : {2, 3, 4, 5}) {
    const auto files = std::make_shared<FaultyFileSystem>(at, Fault::no_space);
    const auto file = files->create(dir / std::to_string(at), Caching::direct);
    EXPECT_THAT(
        message_of(ErrorCode::io, [&] { write_chunks(plan, layout, nullptr, *file, 0, pool, {}); }),
        testing::HasSubstr("no space"));
  }
  SavePlan broken = plan;
  std::atomic<int> calls = 0;
  broken.sources[0] = callback_tensor("x", tensor.spec, [&](const Box&, std::span<std::byte>) {
    if (++calls == 5) throw 17;
  });
  const auto file = posix_file_system()->create(dir / "f", Caching::direct);
  try {
    write_chunks(broken, layout, nullptr, *file, 0, pool, {});
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
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(32 << 20, 2, layout.most_bytes()));
  ASSERT_GE(pool.sizes().workers, 2);
  for (int round = 0; round < 30; ++round) {
    std::latch later_failed(1);
    std::atomic<bool> failed{false};
    plan.sources[0] = callback_tensor("x", tensor.spec, [&](const Box& box, std::span<std::byte>) {
      if (box.begin(0) == 0 && box.begin(1) == 0) return later_failed.wait();
      if (box.begin(0) < 16 || failed.exchange(true)) return;
      later_failed.count_down();
      throw 17;
    });
    const auto file = posix_file_system()->create(dir / std::to_string(round), Caching::cached);
    EXPECT_THROW(write_chunks(plan, layout, nullptr, *file, 0, pool, {}), CallerError);
  }
}

}  // namespace
}  // namespace shardwise::detail
