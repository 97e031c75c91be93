// Messages between processes: what is read is written as the same bytes, and what is not read is
// refused with an Error. The first byte says as what the rest is read.
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
    Bytes again = message;
    const detail::MessageMark mark = detail::unseal(again);
    require(detail::name(mark.operation) != nullptr, "name", text);
    detail::seal(again, mark);
    require(again == message, "mark", text);
  } else if (form == 1) {
    const detail::Facts facts = detail::decode_facts(message);
    std::vector<ProcessGroup::Fact> list;
    for (const auto& [name, value] : facts.facts) list.push_back({name, value});
    require(detail::encode_facts(facts.subject, list) == message, "facts", text);
  } else {
    require(detail::pack(detail::unpack(message, form - 2)) == message, "parts", text);
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
