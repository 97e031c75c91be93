#include "shardwise/loader/detail/files/source_format.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <system_error>

#include "shardwise/loader/detail/files/gzip_reader.h"
#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/loader/detail/files/unpacked_file.h"

namespace shardwise::detail {
namespace {

struct Ending {
  std::string_view ending, format;
};
constexpr Ending kEndings[] = {
    {".csv", "csv"},
    {".tsv", "csv"},
    {".jsonl", "jsonl"},
    {".ndjson", "jsonl"},
    {".npy", "npy"},
    {".h5", "hdf5"},
    {".hdf5", "hdf5"},
    {".tar", "tar"},
    {".tfrec", "tfrecord"},
    {".tfrecord", "tfrecord"},
    {".tfrecords", "tfrecord"},
    {"-ubyte", "idx"},
    {".idx", "idx"},
};

struct Magic {
  std::size_t offset;
  std::string_view bytes, format;
};
constexpr Magic kMagics[] = {
    {0, "\x93NUMPY", "npy"},
    {0, "\x89HDF\r\n\x1a\n", "hdf5"},
    {257, "ustar", "tar"},
    {0, std::string_view("\0\0\x08", 3), "idx"},
    {0, std::string_view("\0\0\x09", 3), "idx"},
    {0, std::string_view("\0\0\x0b", 3), "idx"},
    {0, std::string_view("\0\0\x0c", 3), "idx"},
    {0, std::string_view("\0\0\x0d", 3), "idx"},
    {0, std::string_view("\0\0\x0e", 3), "idx"},
    {0, "{\"", "jsonl"},
};

}  // namespace

std::filesystem::path file_name_of(const std::filesystem::path& path) {
  return std::filesystem::path(shown_url(path)).filename();
}

std::string_view source_format(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) return "images";
  std::string name = file_name_of(path).string();
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  for (const auto& [ending, format] : kEndings) {
    if (name.ends_with(ending)) return format;
  }
  if (!is_remote(path) && !std::filesystem::is_regular_file(status)) return {};
  const InputFile file(path);
  std::array<std::byte, 512> first{};
  const std::size_t count = is_gzip(file) ? GzipReader(file).read(first) : file.read_at(0, first);
  for (const auto& [offset, bytes, format] : kMagics) {
    if (offset + bytes.size() <= count &&
        std::memcmp(first.data() + offset, bytes.data(), bytes.size()) == 0) {
      return format;
    }
  }
  return {};
}

}  // namespace shardwise::detail
