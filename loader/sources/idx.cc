#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/files/byte_order.h"
#include "shardwise/loader/detail/files/file_rows.h"
#include "shardwise/loader/detail/files/gzip_reader.h"
#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/loader/detail/files/unpacked_file.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::GzipReader;
using detail::InputFile;
using detail::kMaxGzipRatio;

constexpr std::size_t kUnpackStepBytes = std::size_t{1} << 20;

struct Header {
  DType dtype;
  std::int64_t records;
  Shape record_shape;
  std::size_t record_bytes;
  std::size_t header_bytes;
  std::size_t data_bytes;
};

[[noreturn]] void fail(ErrorCode code, const InputFile& file, const std::string& found) {
  throw Error(code, fmt::format("open idx file {}: {}", file.path(), found));
}

DType element_type(const InputFile& file, std::byte code) {
  switch (std::to_integer<int>(code)) {
    case 0x08:
      return DType::u8;
    case 0x09:
      return DType::i8;
    case 0x0b:
      return DType::i16;
    case 0x0c:
      return DType::i32;
    case 0x0d:
      return DType::f32;
    case 0x0e:
      return DType::f64;
    default:
      fail(ErrorCode::unsupported, file,
           fmt::format("element type {:#04x}, needed is 0x08, 0x09, 0x0b, 0x0c, 0x0d or 0x0e",
                       std::to_integer<int>(code)));
  }
}

// The only check of a header from outside. `read` gives the next bytes of the idx stream.
Header read_header(const InputFile& file,
                   const std::function<std::size_t(std::span<std::byte>)>& read) {
  std::array<std::byte, 4> magic;
  const std::size_t magic_bytes = read(magic);
  if (magic_bytes < magic.size()) {
    fail(ErrorCode::corrupt, file,
         fmt::format("found {} bytes, needed a header of 4 or more", magic_bytes));
  }
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
    fail(ErrorCode::corrupt, file,
         fmt::format("begins with {:#04x} {:#04x}, needed are two zero bytes",
                     std::to_integer<int>(magic[0]), std::to_integer<int>(magic[1])));
  }
  const DType dtype = element_type(file, magic[2]);
  const auto rank = std::to_integer<std::size_t>(magic[3]);
  if (rank == 0) fail(ErrorCode::corrupt, file, "rank 0, needed is a dim that counts the records");
  if (rank > kMaxRank) {
    fail(ErrorCode::unsupported, file, fmt::format("rank {}, at most {} here", rank, kMaxRank));
  }
  std::array<std::byte, 4 * kMaxRank> sizes;
  const std::size_t sizes_bytes = read(std::span(sizes).first(4 * rank));
  if (sizes_bytes < 4 * rank) {
    fail(ErrorCode::corrupt, file,
         fmt::format("ends within the header: found {} bytes of sizes, needed {} for rank {}",
                     sizes_bytes, 4 * rank, rank));
  }
  Header header{dtype, 0, {}, size_bytes(dtype), magic.size() + 4 * rank, 0};
  bool fits = true;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    std::int64_t extent = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      extent = extent << 8 | std::to_integer<std::int64_t>(sizes[4 * dim + i]);
    }
    if (dim == 0) {
      header.records = extent;
      continue;
    }
    header.record_shape.push_back(extent);
    fits = fits && !__builtin_mul_overflow(header.record_bytes, static_cast<std::size_t>(extent),
                                           &header.record_bytes);
  }
  fits =
      fits && !__builtin_mul_overflow(header.record_bytes, static_cast<std::size_t>(header.records),
                                      &header.data_bytes);
  if (!fits || !std::in_range<std::int64_t>(header.data_bytes)) {
    fail(ErrorCode::corrupt, file,
         fmt::format("{} records of shape {} {} are over 2^63 bytes", header.records,
                     to_string(header.record_shape), name(dtype)));
  }
  return header;
}

std::string needs(const Header& header) {
  return fmt::format("{} records of shape {} {} need {}", header.records,
                     to_string(header.record_shape), name(header.dtype), header.data_bytes);
}

std::shared_ptr<const Source> open_compressed(const InputFile& file, std::string field_name) {
  GzipReader reader(file);
  const Header header =
      read_header(file, [&](std::span<std::byte> out) { return reader.read(out); });
  // Checked before memory of the size that the header claims is allocated.
  if (header.data_bytes / kMaxGzipRatio > file.size_bytes()) {
    fail(ErrorCode::corrupt, file,
         fmt::format("{} compressed bytes, too few: {} bytes", file.size_bytes(), needs(header)));
  }
  std::vector<std::byte> data;
  data.reserve(header.data_bytes);
  while (data.size() < header.data_bytes) {
    const std::size_t done = data.size();
    data.resize(done + std::min(header.data_bytes - done, kUnpackStepBytes));
    const std::size_t count = reader.read(std::span(data).subspan(done));
    if (done + count < data.size()) {
      fail(ErrorCode::corrupt, file,
           fmt::format("unpacks to {} bytes of data, {}", done + count, needs(header)));
    }
  }
  std::byte extra{};
  if (reader.read({&extra, 1}) != 0) {  // also makes the reader compare the last checksum
    fail(ErrorCode::corrupt, file, fmt::format("unpacks to more data than {}", needs(header)));
  }
  if (!detail::kBigEndianHost) detail::swap_bytes(header.dtype, data);
  return memory_source({std::move(field_name), header.dtype, header.record_shape}, header.records,
                       std::move(data));
}

std::shared_ptr<const Source> open_plain(std::shared_ptr<const InputFile> file,
                                         std::string field_name, std::size_t hold_bytes) {
  std::size_t offset = 0;
  const Header header = read_header(*file, [&](std::span<std::byte> out) {
    const std::size_t count = file->read_at(offset, out);
    offset += count;
    return count;
  });
  const std::size_t data_bytes = file->size_bytes() - std::min(file->size_bytes(), offset);
  if (data_bytes != header.data_bytes) {
    fail(ErrorCode::corrupt, *file, fmt::format("{} bytes of data, {}", data_bytes, needs(header)));
  }
  return detail::file_rows_source(
      std::move(file), {std::move(field_name), header.dtype, header.record_shape}, header.records,
      {header.header_bytes, header.record_bytes, !detail::kBigEndianHost}, hold_bytes);
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> open_idx(std::shared_ptr<const InputFile> file,
                                       std::string field_name, std::size_t hold_bytes) {
  if (!is_gzip(*file)) return open_plain(std::move(file), std::move(field_name), hold_bytes);
  return with_tag(open_compressed(*file, std::move(field_name)), file->tag());
}

}  // namespace detail

std::shared_ptr<const Source> open_idx(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes) {
  return detail::open_idx(std::make_shared<const InputFile>(path), std::move(field_name),
                          hold_bytes);
}

}  // namespace shardwise
