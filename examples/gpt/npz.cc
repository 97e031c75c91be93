#include "npz.h"

#include <fmt/format.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string_view>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace gpt {
namespace {

using namespace shardwise;

/// The file's bytes, read with a check of every border.
class Bytes {
 public:
  explicit Bytes(const std::filesystem::path& path) : path_(path) {
    std::ifstream file(path, std::ios::binary);
    if (!file)
      throw Error(ErrorCode::not_found, fmt::format("read {}: no such file", path.string()));
    data_.assign(std::istreambuf_iterator<char>(file), {});
    if (file.bad()) throw Error(ErrorCode::io, fmt::format("read {}: cannot", path.string()));
  }

  [[noreturn]] void refuse(ErrorCode code, const std::string& why) const {
    throw Error(code, fmt::format("read {}: {}", path_.string(), why));
  }

  std::size_t size() const { return data_.size(); }

  std::string_view at(std::size_t offset, std::size_t count) const {
    if (offset > data_.size() || count > data_.size() - offset) {
      refuse(ErrorCode::corrupt,
             fmt::format("found {} bytes, needed {} from {} on", data_.size(), count, offset));
    }
    return std::string_view(data_).substr(offset, count);
  }

  template <class T>
  T number(std::size_t offset) const {
    T value;
    std::memcpy(&value, at(offset, sizeof value).data(), sizeof value);
    return value;
  }

  std::size_t find_last(std::string_view what) const {
    const std::size_t found = data_.rfind(what);
    if (found == std::string::npos) refuse(ErrorCode::corrupt, "found no end of a zip archive");
    return found;
  }

 private:
  std::filesystem::path path_;
  std::string data_;
};

/// The text between `key` and the next comma or bracket that ends it.
std::string_view value_of(const Bytes& file, std::string_view header, std::string_view key) {
  const std::size_t found = header.find(key);
  if (found == std::string_view::npos) {
    file.refuse(ErrorCode::corrupt, fmt::format("found array header {}, needed {}", header, key));
  }
  std::string_view rest = trim(header.substr(found + key.size()));
  const char end = rest.starts_with("(") ? ')' : ',';
  return rest.substr(0, rest.find(end));
}

NpzArray read_array(const Bytes& file, std::string_view name, std::string_view npy) {
  if (!npy.starts_with("\x93NUMPY") || npy.size() < 12) {
    file.refuse(ErrorCode::corrupt, fmt::format("\"{}\" is not an array of numpy's", name));
  }
  const bool is_long = npy[6] >= 2;
  std::uint32_t length = 0;
  std::memcpy(&length, npy.data() + 8, is_long ? 4 : 2);
  const std::size_t begin = is_long ? 12 : 10;
  if (length > npy.size() - begin) {
    file.refuse(ErrorCode::corrupt, fmt::format("\"{}\" ends in its header", name));
  }
  const std::string_view header = npy.substr(begin, length);
  const std::string_view descr = value_of(file, header, "'descr':");
  const std::map<std::string_view, DType> known = {
      {"'<f4'", DType::f32}, {"'<f8'", DType::f64}, {"'<i4'", DType::i32}, {"'<i8'", DType::i64}};
  const auto dtype = known.find(descr);
  if (dtype == known.end() || value_of(file, header, "'fortran_order':") != "False") {
    file.refuse(ErrorCode::unsupported,
                fmt::format("\"{}\" has header {}, needed f4, f8, i4 or i8 in C order", name,
                            trim(header)));
  }
  NpzArray array{dtype->second, {}, {}};
  for (const std::string_view part : split(value_of(file, header, "'shape':").substr(1), ',')) {
    if (trim(part).empty()) continue;
    const auto extent = parse_count(trim(part));
    if (!extent) file.refuse(ErrorCode::corrupt, fmt::format("\"{}\" has a bad shape", name));
    array.shape.push_back(*extent);
  }
  const std::string_view data = npy.substr(begin + length);
  if (data.size() != num_bytes(array.shape, size_bytes(array.dtype))) {
    file.refuse(ErrorCode::corrupt, fmt::format("\"{}\" has {} bytes, needed those of {}", name,
                                                data.size(), to_string(array.shape)));
  }
  const auto bytes = std::as_bytes(std::span(data));
  array.bytes.assign(bytes.begin(), bytes.end());
  return array;
}

}  // namespace

// The zip format: APPNOTE.TXT 6.3, sections 4.3.7 (local header), 4.3.12 (central
// directory), 4.3.16 (its end) and 4.5.3 (zip64).
std::map<std::string, NpzArray> read_npz(const std::filesystem::path& path) {
  const Bytes file(path);
  const std::size_t end = file.find_last("PK\x05\x06");
  const std::size_t entries = file.number<std::uint16_t>(end + 10);
  std::size_t at = file.number<std::uint32_t>(end + 16);
  std::map<std::string, NpzArray> arrays;
  for (std::size_t i = 0; i < entries; ++i) {
    if (file.at(at, 4) != "PK\x01\x02") file.refuse(ErrorCode::corrupt, "found no entry of a zip");
    const auto method = file.number<std::uint16_t>(at + 10);
    const auto checksum = file.number<std::uint32_t>(at + 16);
    const auto bytes = file.number<std::uint32_t>(at + 24);
    const auto name_length = file.number<std::uint16_t>(at + 28);
    const auto extra_length = file.number<std::uint16_t>(at + 30);
    const auto comment_length = file.number<std::uint16_t>(at + 32);
    const auto header = file.number<std::uint32_t>(at + 42);
    std::string name(file.at(at + 46, name_length));
    at += 46 + name_length + extra_length + comment_length;
    if (method != 0 || bytes == UINT32_MAX || header == UINT32_MAX) {
      file.refuse(ErrorCode::unsupported,
                  fmt::format("\"{}\" is compressed or over 4 GiB, needed numpy.savez", name));
    }
    const std::size_t data = header + std::size_t{30} + file.number<std::uint16_t>(header + 26) +
                             file.number<std::uint16_t>(header + 28);
    const std::string_view npy = file.at(data, bytes);
    if (crc32(0, reinterpret_cast<const Bytef*>(npy.data()), bytes) != checksum) {
      file.refuse(ErrorCode::corrupt, fmt::format("\"{}\" has another checksum", name));
    }
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    arrays[name] = read_array(file, name, npy);
  }
  return arrays;
}

}  // namespace gpt
