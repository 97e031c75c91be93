#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/convert.h"
#include "shardwise/shard/notation/placements.h"
#include "shardwise/shard/notation/xla_text.h"
#include "shardwise/shard/shard_boxes.h"
#include "shardwise/shard/sharding.h"
#include "shardwise/shard/torus/hybrid_mesh.h"
#include "shardwise/shard/view/picture.h"

namespace shardwise::tools {
namespace {

/// Exactly one of spec, placements and sharding says how the tensor is cut.
struct ShardsOptions {
  std::string mesh, devices, shape, dtype = "f32", policy = "ceil";
  std::optional<std::string> spec, placements, sharding;
  std::optional<std::string> slices, torus;
  std::optional<std::string> svg;
  bool short_spec = false;
  bool json = false;
};

using Json = nlohmann::ordered_json;

/// The numbers from `next` on as nested lists of this shape.
template <class Number>
Json nested(std::span<const std::int64_t> dims, const Number*& next) {
  if (dims.empty()) return *next++;
  Json list = Json::array();
  for (std::int64_t i = 0; i < dims[0]; ++i) list.push_back(nested(dims.subspan(1), next));
  return list;
}

Json tile_assignment_json(const Sharding& sharding) {
  const TileAssignment assignment = tile_assignment(sharding);
  if (assignment.dims.empty()) return assignment.devices;  // one device, and no axis
  const DeviceId* next = assignment.devices.data();
  return nested(std::span(assignment.dims), next);
}

Json group_assignment_json(const Sharding& sharding, std::size_t groups) {
  if (groups == 0) return Json::array();
  std::vector<std::int64_t> numbers(groups);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::int64_t* next = numbers.data();
  return nested(std::span<const std::int64_t>(group_assignment_dims(sharding)), next);
}

/// Null if XLA has no text for the sharding.
template <class Print>
Json text_or_null(const Print& print) {
  try {
    return print();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return nullptr;
  }
}

/// The mesh with its devices in the order of slices and torus, if the options give them.
Mesh ordered_mesh(const ShardsOptions& options) {
  Mesh mesh = parse_mesh(options.mesh, options.devices);
  if (!options.slices && !options.torus) return mesh;
  if (!mesh.devices().is_iota()) {
    throw Error(ErrorCode::invalid_argument,
                "shards: found a list of devices with --slices or --torus, which order them; "
                "needed is one of both");
  }
  Dims slices;
  if (options.slices) {
    slices = parse_shape(*options.slices);
  } else {
    for (std::size_t a = 0; a < mesh.rank(); ++a) slices.push_back(1);
  }
  std::int64_t count = 1;
  std::vector<HybridAxis> axes;
  for (std::size_t a = 0; a < mesh.rank(); ++a) {
    const Axis& axis = mesh.axes()[a];
    if (slices.size() != mesh.rank() || slices[a] < 1 || axis.size % slices[a] != 0) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("shards: found slices {} for mesh \"{}\"; needed is a divisor of each "
                      "axis",
                      to_string(slices), mesh.to_string()));
    }
    axes.push_back({axis.name, axis.size / slices[a], slices[a]});
    count *= slices[a];
  }
  check_listed(mesh, "shards");
  const std::int64_t each = mesh.size() / count;
  const Shape torus = options.torus ? parse_shape(*options.torus) : Shape{each};
  if (Box::whole(torus).num_elements() != each) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found the --torus {}; needed are {} devices", to_string(torus), each));
  }
  std::vector<DeviceAttributes> devices;
  for (std::int64_t slice = 0; slice < count; ++slice) {
    for_each_index(Box::whole(torus), [&](const Index& place) {
      const auto id = static_cast<DeviceId>(devices.size());
      devices.push_back({id, options.torus ? place : Index{}, slice, slice});
    });
  }
  return hybrid_mesh(axes, devices);
}

/// The placement in the options, as XLA's or DTensor's, or both.
struct Request {
  XlaSharding xla;
  std::optional<Placements> placements;
};

Request requested(const ShardsOptions& options, const Mesh& mesh, const Shape& shape) {
  const UnevenPolicy policy = UnevenPolicy::parse(options.policy);
  if (options.sharding) {
    XlaSharding parsed = parse_xla_text(*options.sharding, mesh, shape.size());
    if (parsed.placement) {
      parsed.placement = Sharding(parsed.placement->mesh(), parsed.placement->spec(), policy);
    }
    return {parsed, std::nullopt};
  }
  if (options.placements) {
    Request request{{ShardingType::unknown, std::nullopt},
                    Placements::parse(mesh, *options.placements)};
    for (const UnevenPolicy& rule : {UnevenPolicy::ceil(), UnevenPolicy::nested_chunk()}) {
      const auto converted = to_sharding(*request.placements, shape, rule);
      if (converted.verdict != Verdict::same) continue;
      request.xla = {sharding_type(*converted.result), converted.result};
      break;
    }
    return request;
  }
  PartitionSpec spec = PartitionSpec::parse(*options.spec);
  if (options.short_spec) spec = spec.padded(shape.size());
  const Sharding sharding(mesh, std::move(spec), policy);
  if (sharding.spec().rank() != shape.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("spec \"{}\": found {} dims, needed {}, those of shape {}; --short-spec "
                    "allows fewer",
                    *options.spec, sharding.spec().rank(), shape.size(), to_string(shape)));
  }
  return {{sharding_type(sharding), sharding}, std::nullopt};
}

/// Anything that cannot be understood, or does not fit, is bad usage: it all comes from the
/// options.
Request understood(const ShardsOptions& options, const Shape& shape) {
  const Mesh mesh = words_of("shards", "--mesh", [&] { return ordered_mesh(options); });
  check_listed(mesh, "shards");
  const char* const how = options.sharding     ? "--sharding"
                          : options.placements ? "--placements"
                                               : "--spec";
  return words_of("shards", how, [&] {
    Request request = requested(options, mesh, shape);
    if (request.xla.placement)
      request.xla.placement->shard_shape(shape);  // throws if it does not fit
    return request;
  });
}

Json replica_json(const XlaSharding& xla, std::int64_t position, const Shape& shape) {
  if (!xla.placement) return {{"xla", nullptr}, {"jax", nullptr}};
  return {{"xla", xla_replica_id(*xla.placement, position)},
          {"jax", jax_replica_id(*xla.placement, position, shape)}};
}

Json device_json(const std::optional<Box>& box, Json runs, const Shape& padded, Json replica,
                 std::size_t bytes) {
  return {{"box", box ? box_json(*box) : Json()},
          {"runs", std::move(runs)},
          {"padded_shape", dims_json(padded)},
          {"replica_id", std::move(replica)},
          {"bytes", bytes}};
}

Json devices_of(const Placements& placements, const XlaSharding& xla, const Shape& shape,
                DType dtype) {
  const Shape padded = placements.local_shape(0, shape);  // nobody holds more
  Json devices = Json::object();
  const Mesh& mesh = placements.mesh();
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    Json runs = Json::array();
    for (const std::vector<IndexRun>& of_dim : placements.runs_at(p, shape)) {
      Json& list = runs.emplace_back(Json::array());
      for (const IndexRun& run : of_dim) list.push_back({run.begin, run.end});
    }
    devices[std::to_string(mesh.device_at(p))] = device_json(
        placements.box_at(p, shape), std::move(runs), padded, replica_json(xla, p, shape),
        num_bytes(placements.local_shape(p, shape), size_bytes(dtype)));
  }
  return devices;
}

Json devices_of(const XlaSharding& xla, const Shape& shape, DType dtype) {
  const Sharding& sharding = *xla.placement;
  const Shape padded = sharding.shard_shape(shape);
  Json devices = Json::object();
  const ShardBoxes boxes(sharding, shape);
  for (auto it = boxes.begin(); it != boxes.end(); ++it) {
    Json runs = Json::array();
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      Json& list = runs.emplace_back(Json::array());
      if (it->extent(dim) > 0) list.push_back({it->begin(dim), it->end(dim)});
    }
    devices[std::to_string(sharding.mesh().device_at(it.position()))] =
        device_json(*it, std::move(runs), padded, replica_json(xla, it.position(), shape),
                    num_bytes(it->shape(), size_bytes(dtype)));
  }
  return devices;
}

/// XLA's, JAX's and our own words for the sharding; null without any.
Json texts_json(const Sharding& sharding, const Shape& shape) {
  const auto placements = to_placements(sharding, shape);
  return {{"spec", sharding.spec().to_string()},
          {"jax", to_jax_text(sharding.spec())},
          {"v3", text_or_null([&] { return to_xla_v3(sharding); })},
          {"placements",
           placements.verdict == Verdict::same ? Json(placements.result->to_string()) : Json()}};
}

void print_as_json(const Request& request, const Shape& shape, DType dtype) {
  const XlaSharding& xla = request.xla;
  const bool known = xla.placement || !request.placements;
  Json result = {{"sharding_type", known ? Json(name(xla.type)) : Json()},
                 {"declared_type", known ? Json(name(xla.type)) : Json()}};
  if (xla.placement) {
    const Sharding& sharding = *xla.placement;
    const auto groups = replication_groups(sharding);
    const bool by_tiles = xla.type == sharding_type(sharding);
    if (by_tiles) result["declared_type"] = name(declared_type(sharding));
    result["shard_shape"] = dims_json(sharding.shard_shape(shape));
    result["tile_assignment"] = tile_assignment_json(sharding);
    result["group_assignment"] = group_assignment_json(sharding, groups.size());
    result["replication_groups"] = groups;
    result["fully_replicated"] = sharding.is_fully_replicated();
    result["num_replicas"] = sharding.num_replicas();
    result["mesh"] = sharding.mesh().to_string();
    result["policy"] = sharding.policy().to_string();
    result.update(texts_json(sharding, shape));
  }
  if (request.placements) {
    result["shard_shape"] = dims_json(request.placements->local_shape(0, shape));
    result["mesh"] = request.placements->mesh().to_string();
    result["placements"] = request.placements->to_string();
  }
  result["shape"] = dims_json(shape);
  result["dtype"] = name(dtype);
  result["v1"] = known ? text_or_null([&] { return to_xla_v1(xla); }) : Json();
  result["v2"] = known ? text_or_null([&] { return to_xla_v2(xla); }) : Json();
  result["devices"] = request.placements ? devices_of(*request.placements, xla, shape, dtype)
                      : xla.placement    ? devices_of(xla, shape, dtype)
                                         : Json(Json::object());
  print_json(result);
}

std::string coordinates_of(const Mesh& mesh, std::int64_t position) {
  std::string text;
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    text += fmt::format("{}{}={}", axis == 0 ? "" : " ", mesh.axes()[axis].name,
                        mesh.coordinate(position, axis));
  }
  return text;
}

void print_as_table(const Placements& placements, const Shape& shape, DType dtype) {
  const Mesh& mesh = placements.mesh();
  print_shown(fmt::format("{} {} placed as {} on {}\n\n", name(dtype), to_string(shape),
                          placements.to_string(), mesh.to_string()));
  TextTable table({"device", "mesh position", "indices", "shape", "bytes"});
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    std::string indices;
    for (const std::vector<IndexRun>& runs : placements.runs_at(p, shape)) {
      indices += indices.empty() ? "[" : ", ";
      if (runs.empty()) indices += "none";
      for (std::size_t i = 0; i < runs.size(); ++i) {
        indices += fmt::format("{}{}:{}", i == 0 ? "" : "+", runs[i].begin, runs[i].end);
      }
    }
    const Shape local = placements.local_shape(p, shape);
    table.add({std::to_string(mesh.device_at(p)), coordinates_of(mesh, p),
               indices.empty() ? "[]" : indices + "]", to_string(local),
               human_bytes(num_bytes(local, size_bytes(dtype)))});
  }
  print_shown(table);
}

void print_as_table(const Sharding& sharding, const Shape& shape, DType dtype) {
  const Mesh& mesh = sharding.mesh();
  TextTable table({"device", "mesh position", "box", "shape", "elements", "bytes", "replica"});
  const ShardBoxes boxes(sharding, shape);
  for (auto it = boxes.begin(); it != boxes.end(); ++it) {
    table.add(
        {std::to_string(mesh.device_at(it.position())), coordinates_of(mesh, it.position()),
         to_string(*it), to_string(it->shape()), std::to_string(it->num_elements()),
         human_bytes(num_bytes(it->shape(), size_bytes(dtype))),
         fmt::format("{} of {}", sharding.replica_id(it.position()), sharding.num_replicas())});
  }
  print_shown(fmt::format("{} {} cut as {}: blocks of {}, {} {} each\n\n", name(dtype),
                          to_string(shape), sharding.to_string(),
                          to_string(sharding.shard_shape(shape)), sharding.num_replicas(),
                          sharding.num_replicas() == 1 ? "copy" : "copies"));
  print_shown(table);
  if (shape.empty()) return;
  fmt::print("\n{}", text_picture(sharding, shape, {.color = isatty(STDOUT_FILENO) == 1}));
}

std::string picture(const Request& request, const Shape& shape) {
  if (!request.xla.placement) {
    throw Error(ErrorCode::unsupported, "--svg: the sharding is no box per device; needed is one");
  }
  return svg_picture(*request.xla.placement, shape);
}

int run_shards(ShardsOptions& options) {
  const int given = static_cast<int>(options.spec.has_value()) +
                    static_cast<int>(options.placements.has_value()) +
                    static_cast<int>(options.sharding.has_value());
  if (given != 1) {
    throw BadUsage(
        fmt::format("shards: found {} of --spec, --placements and --sharding, needed one", given));
  }
  const Shape shape = words_of("shards", "--shape", [&] { return parse_shape(options.shape); });
  const DType dtype = words_of("shards", "--dtype", [&] { return parse_dtype(options.dtype); });
  words_of("shards", "--shape", [&] { return num_bytes(shape, size_bytes(dtype)); });
  const Request request = understood(options, shape);
  if (options.svg) write_file("--svg", *options.svg, picture(request, shape));
  if (options.json) {
    print_as_json(request, shape, dtype);
  } else if (request.placements) {
    print_as_table(*request.placements, shape, dtype);
  } else if (request.xla.placement) {
    print_as_table(*request.xla.placement, shape, dtype);
  } else {
    print_shown(
        fmt::format("{}: the program chooses the part of each device\n", name(request.xla.type)));
  }
  return 0;
}

}  // namespace

void declare_shards(CLI::App& app, Run& run) {
  const auto [shards, options] =
      add_command(app, run, "shards", "Show which box of a tensor each device holds",
                  "shardwise shards --mesh data=4,model=2 --spec data,model --shape 10,6 "
                  "--dtype f32",
                  run_shards);
  shards.add_option("--mesh", options.mesh, "Mesh: data=4,model=2, or 4,2")->required();
  shards.add_option("--devices", options.devices, "Device ids in mesh order (default 0,1,2,..)");
  shards.add_option("--slices", options.slices,
                    "Slices along each mesh axis, 2,1: a hybrid mesh, whose devices are numbered "
                    "slice by slice");
  shards.add_option("--torus", options.torus,
                    "Torus of the devices (of each slice), 2,2, numbered row by row: neighbours in "
                    "the mesh are near in it");
  CLI::Option_group* cut = shards.add_option_group("How it is cut", "One of these");
  cut->add_option("--spec", options.spec,
                  "Per dim \"-\", an axis, or several joined by \"+\"; \"\" for a scalar; or JAX's "
                  "P('data', None)");
  cut->add_option("--placements", options.placements,
                  "Per mesh axis, as DTensor: \"S(0),R\", \"StridedShard(0, split=2),S(0)\"");
  cut->add_option("--sharding", options.sharding,
                  "XLA text: \"{devices=[4,1,2]<=[8] last_tile_dim_replicate}\"");
  shards.add_option("--shape", options.shape, "Extents: 10,6; \"\" for a scalar")->required();
  shards.add_option("--dtype", options.dtype, "Element type")->capture_default_str();
  shards
      .add_option("--policy", options.policy,
                  "Dims that do not divide: ceil, strict, nested_chunk, balanced or sizes:3+2,-")
      ->capture_default_str();
  shards.add_flag("--short-spec", options.short_spec,
                  "A spec may name fewer dims than the shape has; the others are whole");
  shards.add_option("--svg", options.svg, "Also draw it to this SVG file");
}

}  // namespace shardwise::tools
