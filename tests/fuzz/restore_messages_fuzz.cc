// What processes tell each other before and while they read for each other: any bytes are refused
// with an Error, or are a message that is printed as it was read.
//
// The input: one byte that says which message, then its bytes; the hash after them is made right.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fuzz/require.h"
#include "shardwise/checkpoint/detail/together/fan_out.h"
#include "shardwise/checkpoint/detail/together/packer.h"
#include "shardwise/checkpoint/detail/together/same_requests.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Decodes; what was decoded is encoded as it was.
template <class Decode>
void round_trip(const Bytes& message, Decode&& decode) {
  try {
    require(detail::encode(decode(message)) == message, "message", "is printed otherwise");
  } catch (const Error& e) {
    const bool expected = e.code() == ErrorCode::corrupt || e.code() == ErrorCode::invalid_argument;
    require(expected, "decode", e.what());
  }
}

/// The message is of two parts, the second of which takes what the first leaves.
void unpack(const Bytes& message) {
  const std::size_t first = message.size() / 3;
  const detail::BoxPart parts[] = {{7, 0, first}, {9, 4, first}};
  try {
    const std::vector<const std::byte*> begins = detail::unpack_parts(message, parts);
    require(detail::pack_parts(parts, begins) == message, "parts", "are printed otherwise");
  } catch (const Error& e) {
    require(e.code() == ErrorCode::corrupt, "unpack", e.what());
  }
}

void run(std::span<const std::byte> input) {
  const Bytes message = detail::sealed(Bytes(input.begin() + 1, input.end()));
  switch (std::to_integer<unsigned>(input.front()) % 4) {
    case 0:
      round_trip(message, detail::decode_restore_list);
      break;
    case 1:
      round_trip(message, detail::decode_restore_digest);
      break;
    case 2:
      round_trip(message, detail::decode_restore_verdict);
      break;
    default:
      unpack(message);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size != 0) shardwise::run(std::as_bytes(std::span(data, size)));
  return 0;
}
