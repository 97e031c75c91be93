#include "shardwise/loader/sources/detail/tf_frames.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/loader/detail/files/crc32c.h"
#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/sources/detail/progress_steps.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Heads of small records are read many at a time, together with the data between them; the data
// between heads of large records is not read.
constexpr std::size_t kHeadsBytes = std::size_t{256} << 10, kSmallRecord = std::size_t{8} << 10;

template <class T>
T little_endian(std::span<const std::byte> bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(std::to_integer<T>(bytes[i]) << (8 * i));
  }
  return value;
}

}  // namespace

std::uint32_t masked_crc(std::span<const std::byte> data) {
  const std::uint32_t crc = crc32c(data);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

TfFrames::TfFrames(std::shared_ptr<const InputFile> file, std::size_t hold_bytes,
                   const IndexProgress& progress)
    : file_(std::move(file)), budget_{hold_bytes}, held_(file_, 0, file_->size_bytes(), budget_) {
  ProgressSteps steps(progress, file_->size_bytes());
  std::vector<std::byte> heads;
  std::uint64_t heads_begin = 0, offset = 0;
  while (offset < file_->size_bytes()) {
    if (offset + kHeadBytes > heads_begin + heads.size()) {
      const bool is_small = ends_.empty() || data_bytes(size() - 1) <= kSmallRecord;
      heads.resize(is_small ? kHeadsBytes : kHeadBytes);
      heads.resize(file_->read_at(offset, heads));
      heads_begin = offset;
    }
    add_frame(offset, std::span(heads).subspan(offset - heads_begin));
    offset = ends_.back();
    steps.at(offset);
  }
  steps.finish();
}

void TfFrames::add_frame(std::uint64_t offset, std::span<const std::byte> head) {
  const auto refuse = [&](const std::string& found) {
    throw Error(ErrorCode::corrupt, fmt::format("open tfrecord file {}: record {} at offset {}: {}",
                                                path(), ends_.size(), offset, found));
  };
  const auto end_here = [&](std::string found) {
    if (ends_.empty()) refuse(found);
    cut_ = std::move(found);
    ends_.push_back(file_->size_bytes());
  };
  if (head.size() < kHeadBytes) {
    return end_here(fmt::format("the file ends within its length: {} bytes, needed is {}",
                                head.size(), kHeadBytes));
  }
  const std::uint32_t expected = little_endian<std::uint32_t>(head.subspan(8));
  if (const std::uint32_t found = masked_crc(head.first(8)); found != expected) {
    refuse(
        fmt::format("its length has the checksum {:#010x}, needed is {:#010x}", expected, found));
  }
  const auto length = little_endian<std::uint64_t>(head);
  const std::uint64_t room = file_->size_bytes() - offset - kHeadBytes;
  if (room < kTailBytes || length > room - kTailBytes) {
    return end_here(fmt::format("the file ends within it: {} bytes, needed is {} and {}", room,
                                length, kTailBytes));
  }
  ends_.push_back(offset + kHeadBytes + length + kTailBytes);
}

std::span<const std::byte> TfFrames::data(std::int64_t record,
                                          std::vector<std::byte>& scratch) const {
  const std::size_t size = data_bytes(record), begin = offset(record) + kHeadBytes;
  const std::byte* from = held_.find(begin, size + kTailBytes);
  if (from == nullptr) {
    scratch.resize(size + kTailBytes);
    held_.read(record, begin, scratch);
    from = scratch.data();
  }
  const std::span data(from, size);
  const auto expected = little_endian<std::uint32_t>({from + size, kTailBytes});
  if (const std::uint32_t found = masked_crc(data); found != expected) {
    fail(record,
         fmt::format("its data has the checksum {:#010x}, needed is {:#010x}", expected, found));
  }
  return data;
}

void TfFrames::fail(std::int64_t record, std::string_view found) const {
  throw Error(ErrorCode::corrupt, fmt::format("read: {}: record {} at offset {}: {}", path(),
                                              record, offset(record), one_line(found)));
}

}  // namespace shardwise::detail
