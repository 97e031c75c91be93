#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/detail/scanner.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/xla_text.h"

namespace shardwise {
namespace {

constexpr const char* kXlaSharding = "XLA sharding";

[[noreturn]] void fail(ErrorCode code, std::string_view text, const std::string& what) {
  constexpr std::size_t kMostText = 200;
  throw Error(code, fmt::format("{} \"{}\": {}", kXlaSharding, text.substr(0, kMostText), what));
}

/// The devices and the rank for which the text is read.
struct TextTarget {
  std::string_view text;
  const Mesh& mesh;
  std::size_t rank;
};

XlaSharding replicated(const TextTarget& context, ShardingType type) {
  return {type, Sharding::replicated(context.mesh, context.rank)};
}

void check_in_mesh(const TextTarget& context, DeviceId device) {
  if (context.mesh.position_of(device)) return;
  fail(ErrorCode::invalid_argument, context.text,
       fmt::format("device {} is not in the mesh \"{}\"", device, context.mesh.to_string()));
}

/// "[4,2]T(1,0)"
DeviceOrder parse_compact(detail::Scanner& in) {
  in.expect("[");
  const std::vector<std::int64_t> dims = in.numbers("]");
  std::vector<std::int64_t> perm(dims.size());
  std::iota(perm.begin(), perm.end(), 0);
  if (in.accept("T(")) perm = in.numbers(")");
  return DeviceOrder::transposed(dims, perm);
}

/// The text after the devices of a tile list.
struct Tail {
  std::size_t subgroups = 0;  // trailing tile dims that are no dims of the tensor
  bool manual = false;
};

Tail parse_tail(detail::Scanner& in, const TextTarget& context) {
  Tail tail;
  for (;;) {
    in.accept(",");
    if (in.accept("last_tile_dim_replicate")) {
      tail.subgroups = 1;
    } else if (in.accept("last_tile_dims")) {
      in.expect("=");
      in.expect("{");
      while (!in.accept("}")) {
        if (in.accept("manual")) {
          tail.manual = true;
        } else {
          in.expect("replicated");
        }
        ++tail.subgroups;
        if (!in.accept(",") && !in.peek("}")) in.fail("',' or '}'");
      }
    } else if (in.accept("metadata")) {
      in.expect("=");
      in.expect("{");
      for (int depth = 1; depth > 0;) {
        if (in.accept("}")) {
          --depth;
        } else if (in.accept("{")) {
          ++depth;
        } else if (in.peek_quote()) {
          in.quoted();
        } else if (!in.accept("=") && !in.accept(",") && !in.accept("-")) {
          in.word();
        }
      }
    } else if (in.peek("shard_as") || in.peek("shard_like")) {
      fail(ErrorCode::unsupported, context.text, "shard_as ties two tensors, it places none");
    } else {
      in.expect("}");
      return tail;
    }
  }
}

/// "[2,4]<=[8]" or "[2,4]0,1,..", and the tail.
XlaSharding parse_tiles(detail::Scanner& in, const TextTarget& context) {
  in.expect("[");
  const std::vector<std::int64_t> dims = in.numbers("]");
  std::int64_t tiles = 1;
  for (const std::int64_t dim : dims) {
    if (dim < 1 || __builtin_mul_overflow(tiles, dim, &tiles)) {
      in.fail("tiles of at least 1 per dim, fewer than 2^63 in all");
    }
  }
  std::optional<DeviceOrder> order;
  if (in.accept("<=")) {
    order = parse_compact(in);
    if (!context.mesh.is_abstract() && !context.mesh.devices().is_iota()) {
      // Positions become devices.
      if (order->size() > context.mesh.size()) in.fail("at most as many devices as the mesh has");
      std::vector<DeviceId> ids;
      for (std::int64_t i = 0; i < order->size(); ++i) {
        ids.push_back(context.mesh.device_at(order->device_at(i)));
      }
      order = DeviceOrder::list(std::move(ids));
    }
  } else {
    std::vector<DeviceId> ids;
    do {
      ids.push_back(in.number());
      check_in_mesh(context, ids.back());
    } while (in.accept(","));
    order = DeviceOrder::list(std::move(ids));
  }
  if (order->size() != tiles) {
    fail(ErrorCode::invalid_argument, context.text,
         fmt::format("{} devices for {} tiles; needed are as many", order->size(), tiles));
  }
  if (tiles > context.mesh.size()) {
    fail(ErrorCode::invalid_argument, context.text,
         fmt::format("{} tiles; the mesh \"{}\" has {} devices", tiles, context.mesh.to_string(),
                     context.mesh.size()));
  }
  const Tail tail = parse_tail(in, context);
  in.expect_end();
  if (tail.manual) return {ShardingType::manual, std::nullopt};
  if (dims.size() != context.rank + tail.subgroups) {
    fail(ErrorCode::invalid_argument, context.text,
         fmt::format("it cuts {} dims; needed are {}",
                     dims.size() - std::min(dims.size(), tail.subgroups), context.rank));
  }
  std::vector<Axis> axes;
  std::vector<PartitionSpec::Entry> entries(context.rank);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    axes.push_back({"", dims[i]});
    if (i < context.rank && dims[i] > 1) entries[i].push_back(std::to_string(i));
  }
  const Sharding placement(Mesh(std::move(axes), *std::move(order)),
                           PartitionSpec(std::move(entries)));
  return {sharding_type(placement), placement};
}

/// "'a'" or "'a':(2)4", as a spec names it.
std::string parse_axis(detail::Scanner& in) {
  std::string axis(in.peek_number() ? std::to_string(in.number()) : in.quoted());
  if (in.accept(":")) {
    in.expect("(");
    const std::int64_t pre = in.number();
    in.expect(")");
    axis += fmt::format(":({}){}", pre, in.number());
  }
  return axis;
}

PartitionSpec::Entry parse_axes(detail::Scanner& in) {
  PartitionSpec::Entry axes;
  in.expect("{");
  while (!in.accept("}")) {
    if (!in.accept("?")) axes.push_back(parse_axis(in));  // "?": the compiler may add axes
    if (!in.accept(",") && !in.peek("}")) in.fail("',' or '}'");
  }
  return axes;
}

/// "['a'=2,'b'=4]"
std::vector<Axis> parse_mesh_axes(detail::Scanner& in) {
  std::vector<Axis> axes;
  in.expect("[");
  while (!in.accept("]")) {
    std::string name(in.quoted());
    in.expect("=");
    axes.push_back({std::move(name), in.number()});
    if (!in.accept(",") && !in.peek("]")) in.fail("',' or ']'");
  }
  return axes;
}

/// " device_ids=([4,2]T(1,0))," or nothing.
std::optional<DeviceOrder> parse_device_ids(detail::Scanner& in) {
  if (!in.accept("device_ids")) return std::nullopt;
  std::optional<DeviceOrder> order;
  in.expect("=");
  in.expect("(");
  if (in.peek("[")) {
    order = parse_compact(in);
    in.expect(")");
  } else {
    order = DeviceOrder::list(in.numbers(")"));
  }
  in.expect(",");
  return order;
}

/// "[{'a'}, {}]"
std::vector<PartitionSpec::Entry> parse_entries(detail::Scanner& in) {
  std::vector<PartitionSpec::Entry> entries;
  in.expect("[");
  while (!in.accept("]")) {
    entries.push_back(parse_axes(in));
    if (!in.accept(",") && !in.peek("]")) in.fail("',' or ']'");
  }
  return entries;
}

/// Axes that cut no dim.
struct OtherAxes {
  PartitionSpec::Entry named;
  bool manual = false;
};

/// ", replicated={'b'}, manual={'c'}}", the end of the text.
OtherAxes parse_other_axes(detail::Scanner& in, const TextTarget& context) {
  OtherAxes other;
  while (in.accept(",")) {
    if (in.accept("unreduced")) {
      in.expect("=");
      if (parse_axes(in).empty()) continue;
      fail(ErrorCode::unsupported, context.text, "unreduced axes hold parts of sums, not elements");
    }
    const bool replicated = in.accept("replicated");
    if (!replicated) in.expect("manual");
    in.expect("=");
    const PartitionSpec::Entry axes = parse_axes(in);
    other.named.insert(other.named.end(), axes.begin(), axes.end());
    other.manual |= !replicated && !axes.empty();
  }
  in.expect("}");
  in.expect_end();
  return other;
}

/// "['a'=2,'b'=4], device_ids=(..), [{'a'}, {}], replicated={'b'}}"
XlaSharding parse_named(detail::Scanner& in, const TextTarget& context) {
  std::vector<Axis> axes = parse_mesh_axes(in);
  in.expect(",");
  std::optional<DeviceOrder> order = parse_device_ids(in);
  const bool has_devices = !axes.empty() || order;
  const Mesh mesh = order ? Mesh(std::move(axes), *std::move(order)) : Mesh(std::move(axes));
  std::vector<PartitionSpec::Entry> entries(context.rank);
  if (!in.accept("replicated")) entries = parse_entries(in);
  const OtherAxes other = parse_other_axes(in, context);
  if (entries.size() != context.rank) {
    fail(ErrorCode::invalid_argument, context.text,
         fmt::format("it cuts {} dims; needed are {}", entries.size(), context.rank));
  }
  // An axis that cuts a dim cannot be replicated or manual as well.
  std::vector<PartitionSpec::Entry> all = entries;
  all.push_back(other.named);
  if (all.size() <= kMaxRank) Sharding(mesh, PartitionSpec(std::move(all)));
  if (other.manual) return {ShardingType::manual, std::nullopt};
  if (!has_devices) return replicated(context, ShardingType::replicated);
  if (mesh.size() > context.mesh.size()) {
    fail(ErrorCode::invalid_argument, context.text,
         fmt::format("its mesh has {} devices; needed are at most the {} of \"{}\"", mesh.size(),
                     context.mesh.size(), context.mesh.to_string()));
  }
  for (std::int64_t p = 0; p < mesh.size(); ++p) check_in_mesh(context, mesh.device_at(p));
  const Sharding placement(mesh, PartitionSpec(std::move(entries)));
  return {sharding_type(placement), placement};
}

}  // namespace

XlaSharding parse_xla_text(std::string_view text, const Mesh& mesh, std::size_t rank) {
  const TextTarget context{text, mesh, rank};
  detail::Scanner in(kXlaSharding, text);
  in.expect("{");
  if (in.accept("devices")) {
    in.expect("=");
    return parse_tiles(in, context);
  }
  if (in.accept("mesh")) return parse_named(in, context);
  if (in.peek("{")) fail(ErrorCode::unsupported, text, "a tuple is of several tensors, not one");
  if (in.accept("maximal")) {
    in.expect("device");
    in.expect("=");
    const DeviceId device = in.number();
    in.expect("}");
    in.expect_end();
    check_in_mesh(context, device);
    return {ShardingType::maximal, Sharding::replicated(Mesh({}, std::vector{device}), rank)};
  }
  const std::string_view kind = in.word();
  in.expect("}");
  in.expect_end();
  if (kind == "replicated") return replicated(context, ShardingType::replicated);
  if (kind == "unknown") return replicated(context, ShardingType::unknown);
  if (kind == "manual") return {ShardingType::manual, std::nullopt};
  if (kind == "unreduced") {
    fail(ErrorCode::unsupported, text, "unreduced devices hold parts of sums, not elements");
  }
  fail(ErrorCode::invalid_argument, text,
       "needed is replicated, maximal, manual, unknown, devices or mesh");
}

}  // namespace shardwise
