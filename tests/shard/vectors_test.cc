// Expectations of other libraries' tests in tests/data/sharding/vectors.json, of kinds that the
// command has no words for. tests/tools/vectors_test.py looks at the others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/xla_text.h"
#include "shardwise/shard/torus/detail/torus_assignment.h"
#include "shardwise/shard/torus/hybrid_mesh.h"
#include "shardwise/shard/view/process_view.h"
#include "testing/devices_of.h"
#include "testing/json_values.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

using nlohmann::json;

/// Asks about each vector of a kind. How many fields were compared is returned, so that vectors
/// that are gone, or not looked at, are noticed.
int for_each_vector(const char* kind, const std::function<int(const json&, const json&)>& body) {
  std::ifstream file(test_data("sharding/vectors.json"));
  int compared = 0;
  const json all = json::parse(file);
  for (const json& vector : all["vectors"]) {
    if (vector["kind"] != kind) continue;
    SCOPED_TRACE(vector["id"].get<std::string>());
    compared += body(vector["input"], vector["expect"]);
  }
  return compared;
}

/// The same for vectors that are lists of rows.
int for_each_row(const char* kind, const std::function<int(const json&, const json&)>& body) {
  return for_each_vector(kind, [&body](const json& input, const json& expected) {
    int compared = 0;
    for (const json& row : expected["rows"]) {
      SCOPED_TRACE(row.dump());
      compared += body(input, row);
    }
    return compared;
  });
}

/// The devices of an order, along the one axis of a mesh.
Mesh line_of(const DeviceOrder& order) { return Mesh({{"", order.size()}}, order); }

TEST(Vectors, OfCompactDeviceOrders) {
  const auto order_of = [](const json& dims, const json& perm) {
    return DeviceOrder::transposed(dims_of(dims), dims_of(perm));
  };
  const int iota_canonical = for_each_row("iota_canonical", [&](const json&, const json& row) {
    const DeviceOrder order = order_of(row["reshape_dims"], row["transpose_perm"]);
    EXPECT_EQ(row["dims"].dump() + "<=" + order.to_string(), row["text"]);
    EXPECT_EQ(order, order_of(row["canonical_reshape_dims"], row["canonical_transpose_perm"]));
    EXPECT_EQ(json(devices_of(line_of(order))), row["devices"]);
    return 3;
  });
  EXPECT_EQ(iota_canonical, 8 * 3);
  const int iota_value_at =
      for_each_vector("iota_value_at", [&](const json& input, const json& expected) {
        int compared = 0;
        for (std::size_t i = 0; i < input["cases"].size(); ++i) {
          const json& c = input["cases"][i];
          const DeviceOrder order = order_of(c["reshape_dims"], c["perm"]);
          EXPECT_EQ(devices_of(line_of(order)), flatten(expected["arrays"][i]));
          ++compared;
          for (const auto& [at, device] : expected["value_at"][i].items()) {
            const std::int64_t row = at[0] - '0', column = at[2] - '0';
            EXPECT_EQ(order.device_at(row * c["dims"][1].get<std::int64_t>() + column), device);
            ++compared;
          }
        }
        return compared;
      });
  EXPECT_EQ(iota_value_at, 2 + 8);
}

/// Either side of a pair: words, XLA's text, or a mesh and spec; `devices` where it names none.
Sharding equivalent_of(const json& side, std::size_t rank, std::int64_t devices) {
  if (side.is_string()) {
    return Sharding::replicated(Mesh::line(side == "replicated on all devices" ? 8 : 1), rank);
  }
  if (side.contains("hlo")) {
    const auto text = side["hlo"].get<std::string>();
    return *parse_xla_text(text, Mesh::line(devices), rank).placement;
  }
  const Mesh mesh(axes_of(side.value("mesh", json{2, 2, 2}), json{"x", "y", "z"}));
  return Sharding(mesh, spec_of(side["spec"]).padded(rank));
}

TEST(Vectors, OfEquivalence) {
  const auto listed = [](const json& side) {  // device ids in XLA's text, or 0
    const std::string text = side.dump();
    const std::size_t ids = text.find(']');
    return ids == text.npos ? 0
                            : std::count(text.begin() + static_cast<int>(ids), text.end(), ',') + 1;
  };
  const int equivalence =
      for_each_vector("equivalence", [&](const json& input, const json& expected) {
        int compared = 0;
        for (const json& pair : input["pairs"]) {
          SCOPED_TRACE(pair.dump());
          const std::size_t rank = pair["ndim"];
          const auto side = [&](const char* name, const char* other) {
            const bool own = pair[name].contains("hlo") && listed(pair[name]) > 0;
            return equivalent_of(pair[name], rank, listed(pair[own ? name : other]));
          };
          const Sharding a = side("a", "b"), b = side("b", "a");
          EXPECT_EQ(a == b, expected["equivalent"][static_cast<std::size_t>(compared++)]);
          if (a == b) {
            EXPECT_EQ(std::hash<Sharding>()(a), std::hash<Sharding>()(b));
          }
        }
        return compared;
      });
  EXPECT_EQ(equivalence, 8);
}

TEST(Vectors, OfSharesOfProcesses) {
  const int local_to_global =
      for_each_row("local_to_global", [](const json& input, const json& row) {
        const Mesh mesh(axes_of(input["mesh_shape"], input["axis_names"]));
        const std::int64_t per_host = input["devices_per_host"];
        const ProcessView view(Sharding(mesh, spec_of(row["spec"]).padded(2)),
                               [per_host](DeviceId device) { return device / per_host; });
        for (const std::int64_t host : view.processes()) {
          for (std::size_t dim = 0; dim < 2; ++dim) {
            EXPECT_EQ(view.share(host, dim).count, row["shards_per_dim_across_hosts"][dim]);
          }
        }
        return static_cast<int>(view.processes().size()) * 2;
      });
  EXPECT_EQ(local_to_global, 5 * 4 * 2);
}

TEST(Vectors, OfMinibatches) {
  EXPECT_EQ(
      2 + 2 * 4, for_each_vector("loader_minibatch", [](const json& in, const json& expected) {
        const Sharding sharding(Mesh(axes_of(in["mesh_shape"])), spec_of(in["spec"]));
        const std::int64_t per_host = sharding.mesh().size() / in["num_hosts"].get<std::int64_t>();
        const ProcessView view(sharding, [per_host](DeviceId device) { return device / per_host; });
        const Minibatch batch = minibatch(view, 1, dims_of(in["local_batch_shape"]));
        EXPECT_EQ(batch.global_shape, dims_of(expected["global_shape"]));
        EXPECT_EQ(sharding.shard_shape(batch.global_shape), dims_of(expected["shard_shape"]));
        int compared = 2;
        for (std::size_t i = 0; i < batch.parts.size(); ++i) {
          const MinibatchPart& part = batch.parts[i];
          EXPECT_EQ(sharding.mesh().device_at(part.position), in["local_devices"][i]);
          const std::string device = in["local_devices"][i].dump();
          EXPECT_EQ(slices_of(part.local), expected["local_slices"][i]);
          EXPECT_EQ(slices_of(part.global)[0], expected["global_rows_if_host1"][device]);
          compared += 2;
        }
        return compared;
      }));
}

TEST(Vectors, OfTensorsPutTogetherFromShards) {
  const int assemble_global =
      for_each_vector("assemble_global", [](const json& input, const json& expected) {
        const Sharding sharding(Mesh(axes_of(input["mesh_shape"])), spec_of(input["spec"]));
        // A tensor may be put together from shards of this shape if and only if it is cut to it.
        const Shape shard = dims_of(input["shard_shape"]);
        const auto fits = [&](const Shape& shape) {
          return shape.size() == sharding.rank() && sharding.shard_shape(shape) == shard;
        };
        EXPECT_TRUE(fits(dims_of(expected["default_global_shape"])));
        int compared = 1;
        for (const json& shape : expected["accepted"]) {
          EXPECT_TRUE(fits(dims_of(shape)));
          ++compared;
        }
        for (const json& shape : expected["rejected"]) {
          EXPECT_FALSE(fits(dims_of(shape)));
          ++compared;
        }
        for (const std::int64_t count : expected["wrong_shard_count"]) {
          EXPECT_NE(sharding.mesh().size(), count);
          ++compared;
        }
        json values = json::array();  // shard i holds nothing but i
        for (std::int64_t p = 0; p < 8; ++p) {
          if (!sharding.box_at(p, {1}).empty()) values.push_back(p);
        }
        EXPECT_EQ(values, expected["value_for_1"]);
        return compared + 1;
      });
  EXPECT_EQ(assemble_global, 7);
}

TEST(Vectors, OfTorusAssignments) {
  EXPECT_EQ(
      10 * 3 + 6 * 2, for_each_row("torus_assignment", [](const json& input, const json& row) {
        const Shape physical = dims_of(row["physical"]);
        const TorusAssignment found =
            assign_torus(physical, dims_of(row["logical"]),
                         input.contains("allow_split_physical_axes") ? PhysicalAxes::splittable
                                                                     : PhysicalAxes::whole);
        const std::vector<DeviceId> ids = devices_of(
            logical_mesh(Mesh(axes_of(row["physical"])), axes_of(row["logical"]), found));
        for (std::size_t p = 0; p < found.factors.size(); ++p) {
          EXPECT_EQ(found.factors[p], dims_of(row["matrix"][p]));
        }
        if (row.contains("flat_mesh")) {
          EXPECT_EQ(json(ids), row["flat_mesh"]);
          return 2;
        }
        for (std::size_t l = 0; l < row["assignment"].size(); ++l) {
          for (const std::size_t p : row["assignment"][l]) {
            EXPECT_EQ(found.factors[p][l], physical[p]);
          }
        }
        const auto length = row["first_row"].size();
        EXPECT_EQ(json(std::vector<DeviceId>(ids.begin(), ids.begin() + static_cast<int>(length))),
                  row["first_row"]);
        return 3;
      }));
}

/// As listed; where none are, two slices of full boxes.
std::vector<DeviceAttributes> slice_devices(const json& devices, const json& per_slice) {
  std::vector<DeviceAttributes> found;
  for (const json& device : devices) {
    found.push_back({.id = device["id"],
                     .coordinates = dims_of(device["coords"]),
                     .slice_index = device["slice_index"].get<std::int64_t>()});
  }
  if (!devices.is_null()) return found;
  const Shape box = dims_of(per_slice);
  for (std::int64_t id = 0; id < 2 * num_elements(box); ++id) {
    found.push_back(
        {.id = id,
         .coordinates = {id % box[0], id / box[0] % box[1], id / (box[0] * box[1]) % box[2]},
         .slice_index = id / num_elements(box)});
  }
  return found;
}

int expect_hybrid_mesh(const json& row, const char* inner, const char* ids, const char* sizes,
                       const std::vector<DeviceAttributes>& devices, bool split) {
  std::vector<HybridAxis> axes;
  for (std::size_t i = 0; i < row[inner].size(); ++i) {
    axes.push_back({"", row[inner][i], row["dcn_mesh_shape"][i]});
  }
  const Mesh mesh = hybrid_mesh(axes, devices, {.inner = {.split_physical_axes = split}});
  EXPECT_EQ(Mesh(axes_of(row[sizes]), mesh.devices()), mesh);
  if (row.contains(ids)) {
    EXPECT_EQ(devices_of(mesh), flatten(row[ids]));
    return 2;
  }
  // Which slices each block of the outer mesh holds.
  std::vector<std::set<std::int64_t>> slices_of(row["slice_of_block"].size());
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    std::int64_t block = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      block = block * axes[i].outer + mesh.coordinate(p, i) / axes[i].inner;
    }
    const auto device = static_cast<std::size_t>(mesh.device_at(p));
    slices_of[static_cast<std::size_t>(block)].insert(*devices[device].slice_index);
  }
  EXPECT_EQ(json(slices_of), row["slice_of_block"]);
  return 2;
}

TEST(Vectors, OfHybridMeshes) {
  const int hybrid_mesh = for_each_row("hybrid_mesh", [](const json& input, const json& row) {
    return expect_hybrid_mesh(row, "ici_mesh_shape", "logical_mesh", "mesh_shape",
                              slice_devices(input["devices"], {}), true);
  });
  EXPECT_EQ(hybrid_mesh, 5 * 2);
  const int hybrid_device_mesh = for_each_row("hybrid_device_mesh", [](const json&,
                                                                       const json& row) {
    return expect_hybrid_mesh(row, "mesh_shape", "mesh_ids", "result_shape",
                              slice_devices(row.value("devices", json()), row["per_slice"]), false);
  });
  EXPECT_EQ(hybrid_device_mesh, 5 * 2);
}

TEST(Vectors, OfDistinctPieces) {
  const int unique_pieces = for_each_vector("unique_pieces", [](const json& input,
                                                                const json& expected) {
    const Sharding sharding(Mesh(axes_of(input["mesh_shape"])), spec_of(input["spec"]));
    std::int64_t elements = 0;
    int compared = 1;
    for (const DistinctPiece& piece : sharding.distinct_pieces(dims_of(input["tensor_shape"]))) {
      const json& expect = expected["pieces"][static_cast<std::size_t>(compared / 3)];
      EXPECT_EQ(slices_of(piece.box), expect["slices"]);
      EXPECT_EQ(json(piece.positions), expect["holders"]);
      EXPECT_EQ(piece.positions[0], expect["writer"]);
      elements += piece.box.num_elements();
      compared += 3;
    }
    EXPECT_EQ(elements, expected["total_elements_written"]);
    return compared;
  });
  EXPECT_EQ(unique_pieces, 2 * 3 + 1);
}

}  // namespace
}  // namespace shardwise
