#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "shardwise/loader/detail/files/file_rows.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/npy_header.h"

namespace shardwise {
namespace detail {

std::shared_ptr<const Source> open_npy(std::shared_ptr<const InputFile> file,
                                       std::string field_name, std::size_t hold_bytes) {
  std::size_t offset = 0;
  const NpyHeader header = read_npy_header(file->path(), [&](std::span<std::byte> out) {
    const std::size_t count = file->read_at(offset, out);
    offset += count;
    return count;
  });
  const Shape& shape = header.shape;
  const auto refuse = [&file](const char* found) {
    throw Error(ErrorCode::unsupported, fmt::format("open npy file {}: {}", file->path(), found));
  };
  if (shape.empty()) refuse("a scalar, needed is a dim that counts the records");
  if (header.fortran_order) {
    refuse("Fortran order, needed is C order (numpy.ascontiguousarray)");
  }
  const Shape record(std::span(shape.begin(), shape.end()).subspan(1));
  const std::size_t data_bytes = file->size_bytes() - std::min(file->size_bytes(), offset);
  if (data_bytes != header.data_bytes) {
    throw Error(ErrorCode::corrupt,
                fmt::format("open npy file {}: {} bytes of data, {} records of shape {} {} need {}",
                            file->path(), data_bytes, shape[0], to_string(record),
                            name(header.dtype), header.data_bytes));
  }
  return file_rows_source(
      std::move(file), {std::move(field_name), header.dtype, record}, shape[0],
      {header.header_bytes, num_bytes(record, size_bytes(header.dtype)), header.swapped},
      hold_bytes);
}

}  // namespace detail

std::shared_ptr<const Source> open_npy(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes) {
  return detail::open_npy(std::make_shared<const detail::InputFile>(path), std::move(field_name),
                          hold_bytes);
}

}  // namespace shardwise
