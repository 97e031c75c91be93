#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The source and predicate that a filter's result belongs to.
struct FilterKey {
  std::uint64_t source, predicate;  ///< fingerprints
  std::int64_t size;                ///< records of the source
};

/// The file: eight 64-bit words in the machine's byte order (magic, version, source, predicate,
/// size, three zeros), the bitmap's words, and the hash64 of all that.
///
/// Returns the bitmap in the file; absent if the file is missing, has another key, is damaged or is
/// cut short. Throws corrupt if it is a file of another kind, which must not be replaced; io.
std::optional<std::vector<std::uint64_t>> read_filter_cache(const std::filesystem::path& path,
                                                            const FilterKey& key);

/// The same for an open file.
std::optional<std::vector<std::uint64_t>> read_filter_cache(const InputFile& file,
                                                            const FilterKey& key);

/// Replaces the file in one step, or leaves it unchanged. The constructor makes a temporary file
/// next to it, so that a folder without write access is found before the work. Thread-compatible.
class FilterCacheWriter {
 public:
  /// Throws io, not_found.
  explicit FilterCacheWriter(const std::filesystem::path& path);
  ~FilterCacheWriter();  ///< removes the temporary file, if it is still there
  FilterCacheWriter(const FilterCacheWriter&) = delete;
  FilterCacheWriter& operator=(const FilterCacheWriter&) = delete;

  /// Call it at most once. Throws io.
  void write(const FilterKey& key, const std::vector<std::uint64_t>& words);

 private:
  std::filesystem::path path_, temporary_;
  std::shared_ptr<FileSystem> files_;
  std::unique_ptr<File> file_;
};

}  // namespace shardwise::detail
