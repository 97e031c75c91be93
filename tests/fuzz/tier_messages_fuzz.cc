// Messages of processes that exchange copies or put a step of the fast tier together: any bytes are
// refused with an Error, or are a message that is printed as it was read.
//
// The input: one byte that says which message, then its bytes; the hash after them is made right.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fuzz/require.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/jobs/detail/save/file_transfer.h"
#include "shardwise/shard/error.h"
#include "shardwise/tiers/detail/assembly.h"
#include "shardwise/tiers/detail/inventory.h"
#include "shardwise/tiers/detail/mending.h"

namespace shardwise {
namespace {

template <class Decode>
void decode_and_encode(const Bytes& message, bool in_any_order, Decode&& decode) {
  try {
    const auto decoded = decode(message);
    const Bytes again = encode(decoded);
    require(again == message || (in_any_order && encode(decode(again)) == again), "message",
            "is printed otherwise");
  } catch (const Error& e) {
    const bool expected = e.code() == ErrorCode::corrupt || e.code() == ErrorCode::invalid_argument;
    require(expected, "decode", e.what());
  }
}

void run(std::span<const std::byte> input) {
  const Bytes message = detail::sealed(Bytes(input.begin() + 1, input.end()));
  const unsigned kind = std::to_integer<unsigned>(input.front()) % 4;
  if (kind == 0) {
    // Steps and files are sorted when they are printed.
    decode_and_encode(message, true, tiers_detail::decode_inventory);
  } else if (kind == 1) {
    decode_and_encode(message, false, [](std::span<const std::byte> bytes) {
      return tiers_detail::decode_assembly_state(bytes, 4, 3);
    });
  } else if (kind == 2) {
    decode_and_encode(message, false, [](std::span<const std::byte> bytes) {
      return tiers_detail::decode_asks(bytes, 4);
    });
  } else {
    const std::vector<jobs_detail::FileTransfer> transfers{{0, 1, "a", 1}, {1, 0, "b", 2}};
    decode_and_encode(message, false, [&](std::span<const std::byte> bytes) {
      return jobs_detail::decode_linked_wants(bytes, transfers, 1);
    });
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size != 0) shardwise::run(std::as_bytes(std::span(data, size)));
  return 0;
}
