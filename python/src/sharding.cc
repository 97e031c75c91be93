#include "shardwise/shard/sharding.h"

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/convert.h"
#include "shardwise/shard/notation/xla_text.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/torus/hybrid_mesh.h"
#include "shardwise/shard/view/explain.h"
#include "shardwise/shard/view/picture.h"
#include "shardwise/shard/view/process_view.h"

namespace shardwise::python {
namespace {

/// As Python's own: takes any object, and one that is no mesh equals none.
const nb::sig kEqual("def __eq__(self, other: object, /) -> bool");

Shape shape_of(const Ints& extents) { return Shape{std::span(extents)}; }

/// (begin, end) of each dim.
std::vector<std::pair<std::int64_t, std::int64_t>> bounds_of(const Box& box) {
  std::vector<std::pair<std::int64_t, std::int64_t>> bounds;
  for (std::size_t d = 0; d < box.rank(); ++d) bounds.emplace_back(box.begin(d), box.end(d));
  return bounds;
}

Mesh mesh_of(const std::vector<std::pair<std::string, std::int64_t>>& named,
             const std::optional<Ints>& devices) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : named) axes.push_back({name, size});
  return devices ? Mesh(std::move(axes), std::vector<DeviceId>(devices->begin(), devices->end()))
                 : Mesh(std::move(axes));
}

/// A sharding as DTensor's placements say it, or nothing and why.
std::pair<std::optional<Sharding>, std::string> from_placements(const Mesh& mesh,
                                                                const std::string& placements,
                                                                const Ints& shape) {
  const Placements parsed = Placements::parse(mesh, placements);
  Conversion<Sharding> converted =
      to_sharding(parsed, shape_of(shape), UnevenPolicy::nested_chunk());
  if (converted.verdict == Verdict::same) return {std::move(converted.result), ""};
  return {std::nullopt, converted.reason};
}

/// The kind of a sharding in XLA's text, and where it places what, over a mesh of its own; nothing
/// if the kind is maximal or manual.
std::pair<std::string, std::optional<Sharding>> xla_sharding(const std::string& text,
                                                             const Mesh& mesh, std::size_t rank) {
  XlaSharding parsed = parse_xla_text(text, mesh, rank);
  if (parsed.type == ShardingType::maximal) parsed.placement.reset();
  return {std::string(name(parsed.type)), std::move(parsed.placement)};
}

using Runs = std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>;

Runs placement_runs(const Mesh& mesh, const std::string& placements, const Ints& shape,
                    std::int64_t position) {
  Runs runs;
  for (const auto& dim : Placements::parse(mesh, placements).runs_at(position, shape_of(shape))) {
    auto& list = runs.emplace_back();
    for (const IndexRun& run : dim) list.emplace_back(run.begin, run.end);
  }
  return runs;
}

void bind_mesh(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh")
      .def_static(
          "parse", [](const std::string& text) { return Mesh::parse(text); }, nb::arg("text"))
      .def_static("of", &mesh_of, nb::arg("axes"), nb::arg("devices") = nb::none())
      .def_prop_ro("axes",
                   [](const Mesh& self) {
                     std::vector<std::pair<std::string, std::int64_t>> axes;
                     for (const Axis& axis : self.axes()) axes.emplace_back(axis.name, axis.size);
                     return axes;
                   })
      .def_prop_ro("size", [](const Mesh& self) { return self.size(); })
      .def("device_at", &Mesh::device_at, nb::arg("position"))
      .def("position_of", &Mesh::position_of, nb::arg("device"))
      .def("__str__", &Mesh::to_string)
      .def("__getstate__", &Mesh::to_string)
      .def("__setstate__",
           [](Mesh& self, const std::string& text) { new (&self) Mesh(Mesh::parse(text)); })
      .def(
          "__eq__", [](const Mesh& a, const Mesh& b) { return a == b; }, nb::is_operator(), kEqual);
}

void bind_spec(nb::module_& module) {
  nb::class_<PartitionSpec>(module, "PartitionSpec")
      .def_static(
          "parse", [](const std::string& text) { return PartitionSpec::parse(text); },
          nb::arg("text"))
      .def_static(
          "parse_jax", [](const std::string& text) { return parse_jax_text(text); },
          nb::arg("text"))
      .def("jax", [](const PartitionSpec& self) { return to_jax_text(self); })
      .def("padded", &PartitionSpec::padded, nb::arg("rank"))
      .def_prop_ro("rank", &PartitionSpec::rank)
      .def("__str__", &PartitionSpec::to_string)
      .def(
          "__eq__", [](const PartitionSpec& a, const PartitionSpec& b) { return a == b; },
          nb::is_operator(), kEqual);
}

void bind_shardings(nb::module_& module) {
  nb::class_<Sharding>(module, "Sharding")
      .def(
          "__init__",
          [](Sharding* self, const Mesh& mesh, const PartitionSpec& spec,
             const std::string& policy) {
            new (self) Sharding(mesh, spec, UnevenPolicy::parse(policy));
          },
          nb::arg("mesh"), nb::arg("spec"), nb::arg("policy") = "ceil")
      .def_prop_ro("mesh", [](const Sharding& self) { return self.mesh(); })
      .def_prop_ro("spec", [](const Sharding& self) { return self.spec(); })
      .def_prop_ro("policy", [](const Sharding& self) { return self.policy().to_string(); })
      .def(
          "shard_shape",
          [](const Sharding& self, const Ints& shape) {
            return ints(self.shard_shape(shape_of(shape)));
          },
          nb::arg("shape"))
      .def(
          "box",
          [](const Sharding& self, DeviceId device, const Ints& shape) {
            return bounds_of(self.box(device, shape_of(shape)));
          },
          nb::arg("device"), nb::arg("shape"))
      .def(
          "replica_id",
          [](const Sharding& self, DeviceId device) {
            const auto position = self.mesh().position_of(device);
            if (!position) throw Error(ErrorCode::not_found, "the mesh has no such device");
            return self.replica_id(*position);
          },
          nb::arg("device"))
      .def_prop_ro("num_replicas", &Sharding::num_replicas)
      .def_prop_ro("is_fully_replicated", &Sharding::is_fully_replicated)
      .def(
          "svg",
          [](const Sharding& self, const Ints& shape) {
            return svg_picture(self, shape_of(shape));
          },
          nb::arg("shape"))
      .def("__str__", &Sharding::to_string)
      .def(
          "__eq__", [](const Sharding& a, const Sharding& b) { return a == b; }, nb::is_operator(),
          kEqual);
  module.def("xla_sharding", &xla_sharding, nb::arg("text"), nb::arg("mesh"), nb::arg("rank"));
  module.def("from_placements", &from_placements, nb::arg("mesh"), nb::arg("placements"),
             nb::arg("shape"));
  module.def("placement_runs", &placement_runs, nb::arg("mesh"), nb::arg("placements"),
             nb::arg("shape"), nb::arg("position"));
  module.def(
      "to_placements",
      [](const Sharding& sharding, const Ints& shape) {
        Conversion<Placements> converted = to_placements(sharding, shape_of(shape));
        if (converted.verdict != Verdict::same)
          throw Error(ErrorCode::unsupported, converted.reason);
        return converted.result->to_string();
      },
      nb::arg("sharding"), nb::arg("shape"));
  module.def(
      "explain_reshard",
      [](const Sharding& from, const Sharding& to, const Ints& shape, const std::string& dtype) {
        return explain_reshard(from, to, shape_of(shape)).to_string(size_bytes(parse_dtype(dtype)));
      },
      nb::arg("before"), nb::arg("after"), nb::arg("shape"), nb::arg("dtype") = "f32");
  module.def(
      "advise",
      [](const Mesh& mesh, const PartitionSpec& spec, const std::optional<Ints>& shape,
         const std::string& policy) {
        std::optional<Shape> extents;
        if (shape) extents = shape_of(*shape);
        return advise(mesh, spec, extents, UnevenPolicy::parse(policy)).to_string();
      },
      nb::arg("mesh"), nb::arg("spec"), nb::arg("shape") = nb::none(), nb::arg("policy") = "ceil");
}

/// id, coordinates in the torus, slice index, process
using DevicePlace = std::tuple<DeviceId, Ints, std::optional<std::int64_t>, std::int64_t>;

std::vector<DeviceAttributes> attributes_of(const std::vector<DevicePlace>& places) {
  std::vector<DeviceAttributes> devices;
  for (const auto& [id, coordinates, slice, process] : places) {
    devices.push_back({id, Index{std::span(coordinates)}, slice, process});
  }
  return devices;
}

Mesh device_mesh_of(const std::vector<std::pair<std::string, std::int64_t>>& named,
                    const std::vector<DevicePlace>& devices, bool split_physical_axes,
                    bool contiguous_submeshes, const std::string& device_kind) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : named) axes.push_back({name, size});
  return device_mesh(std::move(axes), attributes_of(devices),
                     {split_physical_axes, contiguous_submeshes, device_kind});
}

/// Axes: name, size inside a granule, number of granules.
Mesh hybrid_mesh_of(const std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>& named,
                    const std::vector<DevicePlace>& devices, bool process_is_granule,
                    bool split_physical_axes) {
  std::vector<HybridAxis> axes;
  for (const auto& [name, inner, outer] : named) axes.push_back({name, inner, outer});
  HybridMeshOptions options;
  options.granule = process_is_granule ? Granule::process : Granule::slice;
  options.inner.split_physical_axes = split_physical_axes;
  return hybrid_mesh(axes, attributes_of(devices), options);
}

void bind_views(nb::module_& module) {
  module.def("device_mesh", &device_mesh_of, nb::arg("axes"), nb::arg("devices"),
             nb::arg("split_physical_axes"), nb::arg("contiguous_submeshes"),
             nb::arg("device_kind"));
  module.def("hybrid_mesh", &hybrid_mesh_of, nb::arg("axes"), nb::arg("devices"),
             nb::arg("process_is_granule"), nb::arg("split_physical_axes"));
  // The global shape, (index, count) of the share, and (device, local box, global box) of each
  // part.
  module.def(
      "minibatch",
      [](const Sharding& sharding, const Ints& processes, std::int64_t process,
         const Ints& local) -> nb::typed<nb::tuple, nb::any, nb::ellipsis> {
        const auto process_of = [&](std::int64_t position) {
          return processes[static_cast<std::size_t>(position)];
        };
        const Mesh& mesh = sharding.mesh();
        const ProcessView view(sharding, [&](DeviceId device) {
          return process_of(mesh.position_of(device).value_or(0));
        });
        const Minibatch batch = minibatch(view, process, shape_of(local));
        List parts;
        for (const MinibatchPart& part : batch.parts) {
          parts.append(nb::make_tuple(mesh.device_at(part.position), bounds_of(part.local),
                                      bounds_of(part.global)));
        }
        return nb::make_tuple(ints(batch.global_shape),
                              nb::make_tuple(batch.share.index, batch.share.count), parts);
      },
      nb::arg("sharding"), nb::arg("processes"), nb::arg("process"), nb::arg("local"));
}

void bind_plan(nb::module_& module) {
  nb::class_<TransferPlan>(module, "TransferPlan")
      .def_static(
          "reshard",
          [](const Sharding& from, const Sharding& to, const Ints& shape) {
            const GilRelease released;
            return TransferPlan::reshard(from, to, shape_of(shape));
          },
          nb::arg("before"), nb::arg("after"), nb::arg("shape"))
      .def_prop_ro("copies",
                   [](const TransferPlan& self) {
                     List copies;
                     for (const Copy& copy : self.copies()) {
                       copies.append(nb::make_tuple(copy.source, copy.target, bounds_of(copy.box)));
                     }
                     return copies;
                   })
      .def_prop_ro("moved_elements", &TransferPlan::moved_elements)
      .def("classify", [](const TransferPlan& self) { return std::string(name(self.classify())); });
}

}  // namespace

void bind_sharding(nb::module_& module) {
  bind_mesh(module);
  bind_spec(module);
  bind_shardings(module);
  bind_views(module);
  bind_plan(module);
}

}  // namespace shardwise::python
