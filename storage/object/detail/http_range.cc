#include "shardwise/storage/object/detail/http_range.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {

void refuse_answer(std::string_view operation, std::string_view found, std::string_view needed) {
  throw Error(ErrorCode::corrupt, fmt::format("{}: found {}, needed {}", operation, found, needed));
}

void check_size(std::uint64_t size, const AskedRange& asked) {
  if (asked.offset <= size && asked.length <= size - asked.offset) return;
  refuse_answer(asked.operation, fmt::format("an object of {} bytes", size),
                fmt::format("{} from {} on", asked.length, asked.offset));
}

void check_range(const HttpAnswer& answer, const AskedRange& asked) {
  const std::string_view range = answer.header("content-range");
  if (answer.status == 206) {
    const std::string needed =
        fmt::format("bytes {}-{}", asked.offset, asked.offset + asked.length - 1);
    const std::size_t slash = range.find('/');
    const auto size = slash == range.npos ? std::nullopt : parse_count(range.substr(slash + 1));
    if (size) check_size(static_cast<std::uint64_t>(*size), asked);
    if (range.substr(0, slash) != needed) {
      refuse_answer(asked.operation, "Content-Range " + shown(range), needed);
    }
  } else if (asked.offset != 0) {
    refuse_answer(asked.operation, "the object from its beginning",
                  fmt::format("{} bytes from {} on", asked.length, asked.offset));
  }
  if (answer.received != asked.length) check_size(asked.offset + answer.received, asked);
}

}  // namespace shardwise::detail
