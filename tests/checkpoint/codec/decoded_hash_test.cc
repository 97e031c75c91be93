// Chunks whose stored bytes are as they were written, valid frames with the right hash, but decode
// to other elements than were saved, as a fault of our own coder would make them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr std::int64_t kRows = 6, kColumns = 1024;

/// "t" f32 [6, 1024] in zstd chunks of [4, 1024], so that the second one reaches over the edge.
HandMadeTensor tensor() {
  const Shape shape{kRows, kColumns};
  return {.name = "t",
          .shape = shape,
          .pieces = {Box::whole(shape)},
          .data = counting_values(DType::f32, shape),
          .chunk = {4, kColumns},
          .codec = detail::StoredCodec::zstd};
}

/// The same with other values: zeros, which take less room.
HandMadeCheckpoint zeros() {
  HandMadeTensor made = tensor();
  std::fill(made.data.begin(), made.data.end(), std::byte{0});
  return HandMadeCheckpoint({made});
}

/// The chunk becomes that of zeros(), with its hash.
void replace_chunk(HandMadeCheckpoint& made, std::size_t chunk) {
  const HandMadeCheckpoint other = zeros();
  detail::ChunkRecord& record = made.files[0].records[chunk];
  const detail::ChunkRecord& from = other.files[0].records[chunk];
  ASSERT_EQ(from.filter_mask, 0u);
  ASSERT_LE(from.stored_bytes, record.stored_bytes) << "there is room";
  std::vector<std::byte>& bytes = made.files[0].bytes;
  std::memset(bytes.data() + record.address, 0, record.stored_bytes);
  std::memcpy(bytes.data() + record.address, other.files[0].bytes.data() + from.address,
              from.stored_bytes);
  record.stored_bytes = from.stored_bytes;
  record.hash = from.hash;
}

class DecodedHash : public testing::TestWithParam<std::size_t> {
 protected:
  DecodedHash() { replace_chunk(made_, GetParam()); }

  /// Rows of the chunk that is wrong, columns as given.
  Box box(std::int64_t begin_column, std::int64_t end_column) const {
    return GetParam() == 0 ? Box({1, begin_column}, {4, end_column})
                           : Box({4, begin_column}, {6, end_column});
  }

  HandMadeCheckpoint made_{{tensor()}};
  TempDir dir_;
};

TEST_P(DecodedHash, IsCheckedByEveryReadAndByVerify) {
  made_.seal();
  const fs::path path = made_.write(dir_.path());
  const std::uint64_t needed = made_.files[0].decoded_hashes[GetParam()];
  const std::uint64_t found = zeros().files[0].decoded_hashes[GetParam()];
  const auto names_it = AllOf(HasSubstr((path / made_.manifest.files[0].name).string()),
                              HasSubstr(GetParam() == 0 ? "tensor \"t\" chunk 0 [0:4, 0:1024]"
                                                        : "tensor \"t\" chunk 1 [4:6, 0:1024]"),
                              HasSubstr("hash " + to_hex(found) + ", needed is " + to_hex(needed)));

  const CheckpointReader reader(path, {.threads = 1, .pin = false});
  detail::ChunkReader chunks(detail::open_checkpoint(*posix_file_system(), path), {.threads = 1});
  const std::span<const TensorInfo> tensors = reader.tensors();
  detail::CachedReader cached(chunks, {tensors.begin(), tensors.end()}, 1 << 20);
  // Runs that are unshuffled to where they belong, and runs too short for that.
  for (const Box& box : {box(0, kColumns), box(3, 1000), box(7, 9)}) {
    SCOPED_TRACE(to_string(box));
    std::vector<std::byte> out(num_bytes(box.shape(), sizeof(float)));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { reader.read("t", box, out); }), names_it);
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { cached.read(0, box, out); }), names_it);
  }
  // The other chunk can be read.
  const Box good = GetParam() == 0 ? Box({4, 0}, {6, 10}) : Box({0, 0}, {4, 10});
  std::vector<std::byte> out(num_bytes(good.shape(), sizeof(float)));
  reader.read("t", good, out);

  std::vector<Damage> damage = verify_checkpoint(path, {.pin = false}).damage;
  std::erase_if(damage, [](const Damage& d) { return d.file == detail::kIndexName; });
  ASSERT_EQ(damage.size(), 1u);
  EXPECT_THAT(damage[0].message, names_it);
  EXPECT_EQ(damage[0].tensor, "t");
  EXPECT_EQ(damage[0].chunk, static_cast<std::int64_t>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Chunks, DecodedHash, testing::Values(0u, 1u));

}  // namespace
}  // namespace shardwise
