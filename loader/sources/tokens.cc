#include <fmt/format.h>

#include "shardwise/loader/detail/files/byte_order.h"
#include "shardwise/loader/detail/files/file_rows.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

void check_token_options(const std::string& path, const TokenOptions& options) {
  const auto refuse = [&](const std::string& found) {
    throw Error(ErrorCode::invalid_argument, fmt::format("open tokens {}: {}", path, found));
  };
  const DType dtype = options.dtype;
  if (dtype != DType::u8 && dtype != DType::u16 && dtype != DType::u32 && dtype != DType::i32) {
    refuse(fmt::format("dtype is {}, needed is u8, u16, u32 or i32", name(dtype)));
  }
  if (options.window < 1) refuse(fmt::format("window is {}, needed is 1 or more", options.window));
  if (options.stride < 0) refuse(fmt::format("stride is {}, needed is 0 or more", options.stride));
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> open_tokens(std::shared_ptr<const InputFile> file,
                                          const TokenOptions& options) {
  check_token_options(file->path(), options);
  const std::size_t token_bytes = size_bytes(options.dtype), bytes = file->size_bytes();
  if (bytes < options.header_bytes || (bytes - options.header_bytes) % token_bytes != 0) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format("open tokens {}: {} bytes, needed is {} of header and whole tokens of {}",
                    file->path(), bytes, options.header_bytes, token_bytes));
  }
  const auto tokens = static_cast<std::int64_t>((bytes - options.header_bytes) / token_bytes);
  const std::int64_t stride = options.stride == 0 ? options.window : options.stride;
  const std::int64_t records = tokens < options.window ? 0 : (tokens - options.window) / stride + 1;
  // With one record or none its stride is never used, and might overflow.
  const std::size_t stride_bytes = records > 1 ? as_size(stride) * token_bytes : 0;
  return file_rows_source(std::move(file), {options.field, options.dtype, {options.window}},
                          records, {options.header_bytes, stride_bytes, kBigEndianHost},
                          options.hold_bytes,
                          fmt::format("tokens(window {}, stride {})", options.window, stride));
}

}  // namespace detail

std::shared_ptr<const Source> open_tokens(const std::filesystem::path& path,
                                          const TokenOptions& options) {
  return detail::open_tokens(std::make_shared<const detail::InputFile>(path), options);
}

}  // namespace shardwise
