#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/detail/files/held_file.h"
#include "shardwise/loader/sources/file_options.h"

namespace shardwise::detail {

/// The frames of one TFRecord file: length (8 bytes), checksum of it (4), data, checksum of them
/// (4); all little-endian. Thread-safe.
class TfFrames {
 public:
  static constexpr std::size_t kHeadBytes = 12, kTailBytes = 4;  ///< around a record's data

  /// Reads and checks all lengths. If the file ends within a record that is not its first, reading
  /// that record throws. Throws io or corrupt.
  TfFrames(std::shared_ptr<const InputFile> file, std::size_t hold_bytes,
           const IndexProgress& progress);

  const std::string& path() const { return file_->path(); }
  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  std::uint64_t offset(std::int64_t record) const {
    return record == 0 ? 0 : ends_[as_size(record) - 1];
  }
  std::size_t data_bytes(std::int64_t record) const {
    check_whole(record);
    return ends_[as_size(record)] - offset(record) - kHeadBytes - kTailBytes;
  }

  /// Throws corrupt if the file ends within the record.
  void check_whole(std::int64_t record) const {
    if (!cut_.empty() && record == size() - 1) fail(record, cut_);
  }

  /// The number of records that the file holds to their ends.
  std::int64_t whole_size() const { return size() - (cut_.empty() ? 0 : 1); }

  /// A record's data, checked. Valid as long as this object and `scratch`. Throws io or corrupt.
  std::span<const std::byte> data(std::int64_t record, std::vector<std::byte>& scratch) const;

  /// Throws corrupt, naming the record and `found`.
  [[noreturn]] void fail(std::int64_t record, std::string_view found) const;

 private:
  void add_frame(std::uint64_t offset, std::span<const std::byte> head);

  std::shared_ptr<const InputFile> file_;
  HoldBudget budget_;
  HeldFile held_;
  std::vector<std::uint64_t> ends_;  // of each record's frame
  std::string cut_;                  // the fault of the last record, if the file ends within it
};

/// The checksum as TFRecord files store it.
std::uint32_t masked_crc(std::span<const std::byte> data);

}  // namespace shardwise::detail
