// Every text form of shard/: any text is refused with an Error, or read, printed, and read again as
// the same. The first character says which form, the rest is the text.
//
// Built with -fsanitize=fuzzer by the fuzz preset; without it, run_corpus.cc feeds it the corpus.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/notation/placements.h"
#include "shardwise/shard/notation/xla_text.h"

namespace shardwise {
namespace {

void check_spec(std::string_view text) {
  const PartitionSpec spec = PartitionSpec::parse(text);
  require(PartitionSpec::parse(spec.to_string()) == spec, "spec", text);
  require(parse_jax_text(to_jax_text(spec)).to_string() == spec.to_string(), "JAX spec", text);
}

void check_xla(std::string_view text) {
  const Mesh mesh = Mesh::parse("a=2,b=4");
  for (std::size_t rank = 0; rank < 4; ++rank) {
    try {
      const XlaSharding sharding = parse_xla_text(text, mesh, rank);
      if (!sharding.placement) continue;
      // "{replicated}" is over all devices of a mesh: the placement may be on some of them.
      const Mesh& own = sharding.placement->mesh();
      for (const std::string& again : {to_xla_v1(sharding), to_xla_v3(*sharding.placement)}) {
        const XlaSharding second = parse_xla_text(again, own, rank);
        require(*second.placement == *sharding.placement, again, text);
      }
    } catch (const Error&) {  // no spec of this rank
    }
  }
}

void check(char form, std::string_view text) {
  if (form == 'm') {
    const Mesh mesh = Mesh::parse(text);
    require(Mesh::parse(mesh.to_string()) == mesh, "mesh", text);
  } else if (form == 'd') {
    const DeviceOrder order = DeviceOrder::parse(text);
    require(DeviceOrder::parse(order.to_string()) == order, "device order", text);
    require(order.position_of(order.device_at(order.size() - 1)) == order.size() - 1, "last", text);
  } else if (form == 's') {
    check_spec(text);
  } else if (form == 'x') {
    check_xla(text);
  } else if (form == 'p') {
    const UnevenPolicy policy = UnevenPolicy::parse(text);
    require(UnevenPolicy::parse(policy.to_string()) == policy, "policy", text);
  } else if (form == 'h') {
    const Shape shape = parse_shape(text);
    require(parse_shape(to_string(shape)) == shape, "shape", text);
  } else if (form == 'l') {
    const Mesh mesh = Mesh::parse("a=2,b=4");
    const Placements placements = Placements::parse(mesh, text);
    require(Placements::parse(mesh, placements.to_string()) == placements, "placements", text);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    shardwise::check(input[0], input.substr(1));
  } catch (const shardwise::Error&) {  // refused, as most texts are
  }
  return 0;
}
