#include "shardwise/checkpoint/detail/read/index_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/hdf5/index_file.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kComparedBytes = std::size_t{1} << 20;

// No file system takes a longer one.
constexpr std::size_t kMaxFileName = 255;

// The reason that no index can hold the manifest, as the writer is not made for it; or empty.
std::string impossible(const Manifest& manifest) {
  for (const FileEntry& file : manifest.files) {
    if (file.name.size() > kMaxFileName || file.name.find('\0') != std::string::npos) {
      return fmt::format("the manifest has a file whose name of {} bytes is not possible",
                         file.name.size());
    }
  }
  return {};
}

// The first place where the file differs, in words; empty if it is equal.
std::string difference(File& file, std::span<const std::byte> expected) {
  if (const std::uint64_t bytes = file.size(); bytes != expected.size()) {
    return fmt::format("it has {} bytes, needed are {}", bytes, expected.size());
  }
  std::vector<std::byte> part(std::min(kComparedBytes, expected.size()));
  for (std::size_t at = 0; at < expected.size(); at += part.size()) {
    const std::span wanted = expected.subspan(at, std::min(part.size(), expected.size() - at));
    file.read_at(at, part.data(), wanted.size());
    const auto [found, needed] =
        std::mismatch(part.begin(), part.end(), wanted.begin(), wanted.end());
    if (needed != wanted.end()) {
      return fmt::format("its byte at {} is {}, needed is {}",
                         at + static_cast<std::size_t>(needed - wanted.begin()),
                         std::to_integer<int>(*found), std::to_integer<int>(*needed));
    }
  }
  return {};
}

}  // namespace

std::vector<std::byte> index_of(const Manifest& manifest) {
  if (!impossible(manifest).empty()) return {};
  // The shard files' tables are not used: one of them may be damaged.
  Manifest placed;
  placed.writers = manifest.writers;
  placed.files = manifest.files;
  placed.tensors = without_pieces(manifest.tensors);
  place_pieces(placed);
  return build_index_file(placed.tensors, placed.files);
}

std::string check_index(File& file, const std::string& path, const Manifest& manifest) {
  std::string problem = impossible(manifest);
  if (problem.empty()) problem = difference(file, index_of(manifest));
  if (problem.empty()) return {};
  return fmt::format("check index {}: it does not map the tensors of the manifest: {}", path,
                     problem);
}

}  // namespace shardwise::detail
