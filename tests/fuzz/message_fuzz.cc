// Messages between processes: each is written again as the same bytes, or refused with an Error.
// The first byte says which message the rest is read as; hashes are made right.
//
// Built with -fsanitize=fuzzer by the fuzz preset; without it, run_corpus.cc feeds it the corpus.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "fuzz/require.h"
#include "shardwise/runtime/process/detail/message.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

void check(unsigned form, const Bytes& message) {
  const std::string_view text(reinterpret_cast<const char*>(message.data()), message.size());
  if (form == 0) {
    Bytes sealed = message;
    detail::seal(sealed);
    Bytes again = sealed;
    const detail::MessageMark mark = detail::unseal_marked(again);
    require(detail::name(mark.operation) != nullptr, "name", text);
    detail::seal(again, mark);
    require(again == sealed, "mark", text);
  } else if (form == 1) {
    require(encode(detail::decode_task(message)) == message, "task", text);
  } else if (form == 2) {
    require(encode(detail::decode_failure(message)) == message, "failure", text);
  } else {
    require(detail::pack(detail::unpack(message, form - 3)) == message, "parts", text);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto rest = std::as_bytes(std::span(data, size)).subspan(1);
  try {
    shardwise::check(data[0] % 8, {rest.begin(), rest.end()});
  } catch (const shardwise::Error&) {  // not a message
  }
  return 0;
}
