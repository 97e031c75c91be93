#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/storage/object/detail/http.h"

namespace shardwise::detail {

/// Bytes of an object that a request asked for. `operation` begins messages.
struct AskedRange {
  std::string operation;
  std::uint64_t offset, length;
};

/// Throws corrupt: "OPERATION: found FOUND, needed NEEDED".
[[noreturn]] void refuse_answer(std::string_view operation, std::string_view found,
                                std::string_view needed);

/// Throws corrupt if an object of `size` bytes does not hold the range.
void check_size(std::uint64_t size, const AskedRange& asked);

/// Throws corrupt unless the answer, of status 206 or 200, is the range and the whole of it.
void check_range(const HttpAnswer& answer, const AskedRange& asked);

}  // namespace shardwise::detail
