#include "shardwise/loader/stages/detail/filter_cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <span>
#include <system_error>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::uint64_t kFilterMagic = 0x31746c6966777368;  // "hswfilt1" of a little-endian machine
constexpr std::uint64_t kFilterVersion = 1;
using FilterHeader = std::array<std::uint64_t, 8>;

FilterHeader header_of(const FilterKey& key) {
  return {kFilterMagic, kFilterVersion, key.source, key.predicate,
          static_cast<std::uint64_t>(key.size)};
}

std::uint64_t checksum_of(const FilterHeader& header, std::span<const std::uint64_t> words) {
  Hasher64 hasher;
  const auto add = [&](std::span<const std::byte> bytes) {
    hasher.update(bytes.data(), bytes.size());
  };
  add(std::as_bytes(std::span(header)));
  add(std::as_bytes(words));
  return hasher.digest();
}

std::filesystem::path temporary_beside(const std::filesystem::path& path) {
  static std::atomic<std::uint64_t> next{0};  // two threads may filter into one cache
  return fmt::format("{}.{}.{}.tmp", path.string(), ::getpid(), next++);
}

}  // namespace

std::optional<std::vector<std::uint64_t>> read_filter_cache(const std::filesystem::path& path,
                                                            const FilterKey& key) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown) && !unknown) return std::nullopt;
  return read_filter_cache(InputFile(path), key);
}

std::optional<std::vector<std::uint64_t>> read_filter_cache(const InputFile& file,
                                                            const FilterKey& key) {
  FilterHeader header{};
  const std::size_t header_bytes = file.read_at(0, std::as_writable_bytes(std::span(header)));
  if (header_bytes < sizeof(std::uint64_t) || header[0] != kFilterMagic) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format("filter cache {}: is a file of another kind, needed is a path where there "
                    "is no file or a filter's cache",
                    file.path()));
  }
  if (header != header_of(key)) return std::nullopt;
  const std::size_t words_count = (static_cast<std::size_t>(key.size) + 63) / 64;
  const std::size_t words_bytes = words_count * sizeof(std::uint64_t);
  if (file.size_bytes() != sizeof(header) + words_bytes + sizeof(std::uint64_t)) {
    return std::nullopt;
  }
  std::vector<std::uint64_t> words(words_count + 1);  // the last is the checksum
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(words));
  if (file.read_at(sizeof(header), bytes) != bytes.size()) return std::nullopt;
  const std::uint64_t checksum = words.back();
  words.pop_back();
  if (checksum != checksum_of(header, words)) return std::nullopt;
  return words;
}

FilterCacheWriter::FilterCacheWriter(const std::filesystem::path& path)
    : path_(path),
      temporary_(temporary_beside(path)),
      files_(posix_file_system()),
      file_(files_->create(temporary_, Caching::cached)) {}

FilterCacheWriter::~FilterCacheWriter() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void FilterCacheWriter::write(const FilterKey& key, const std::vector<std::uint64_t>& words) {
  const FilterHeader header = header_of(key);
  const std::uint64_t checksum = checksum_of(header, words);
  const auto run = [](std::span<const std::byte> bytes) {
    return WriteRun{bytes.data(), bytes.size()};
  };
  const std::array<WriteRun, 3> runs{run(std::as_bytes(std::span(header))),
                                     run(std::as_bytes(std::span(words))),
                                     run(std::as_bytes(std::span(&checksum, 1)))};
  file_->write_runs(0, runs);
  file_->sync();
  file_->close();
  std::error_code failed;
  std::filesystem::rename(temporary_, path_, failed);
  if (failed) {
    throw Error(ErrorCode::io,
                fmt::format("filter cache {}: rename from {}: {}", path_.string(),
                            temporary_.string(), failed.message()),
                failed.value());
  }
  temporary_.clear();
  const std::filesystem::path folder = path_.parent_path();
  files_->sync_directory(folder.empty() ? "." : folder);
}

}  // namespace shardwise::detail
