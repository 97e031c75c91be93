// The text of a graph: any text is refused with an Error of one short line, or read, and then
// written and read again as the same.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/require.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Literals of zeros, of up to 64 bytes: an input names them by their hashes.
std::vector<LiteralAttributes> some_literals() {
  std::vector<LiteralAttributes> all;
  for (std::size_t bytes = 0; bytes <= 64; ++bytes) {
    all.emplace_back(std::vector<std::byte>(bytes));
  }
  return all;
}

void check(std::string_view text) {
  static const std::vector<LiteralAttributes> literals = some_literals();
  GraphBuilder graph;
  try {
    graph = parse_graph(text, literals);
  } catch (const Error& error) {
    const std::string_view message = error.what();
    require(message.find('\n') == std::string_view::npos, "message of several lines", message);
    require(message.size() < 1100, "long message", message);
    return;
  }
  const std::string written = dump(graph);
  const Graph again = parse_graph(written, literals);
  require(same_program(again, graph), "another program", written);
  require(hash(again) == hash(graph), "another hash", written);
  require(dump(again) == written, "another text", written);
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shardwise::check({reinterpret_cast<const char*>(data), size});
  return 0;
}
