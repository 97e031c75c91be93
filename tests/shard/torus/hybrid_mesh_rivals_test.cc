#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/torus/detail/torus_assignment.h"
#include "shardwise/shard/torus/hybrid_mesh.h"
#include "testing/devices_of.h"
#include "testing/json_values.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

using nlohmann::json;

/// The devices of a row, or a full box with x fastest.
std::vector<DeviceAttributes> devices_of(const json& c) {
  std::vector<DeviceAttributes> devices;
  if (c.contains("box")) {
    const Shape box = dims_of(c["box"]);
    for (std::int64_t id = 0; id < num_elements(box); ++id) {
      devices.push_back(
          {.id = id, .coordinates = {id % box[0], id / box[0] % box[1], id / (box[0] * box[1])}});
    }
    return devices;
  }
  for (const json& row : c["devices"]) {
    DeviceAttributes& device = devices.emplace_back();
    device.id = row[0];
    if (!row[1].is_null()) device.slice_index = row[1].get<std::int64_t>();
    device.process = row[2].is_null() ? 0 : row[2].get<std::int64_t>();
    for (std::size_t i = 3; i < row.size(); ++i) device.coordinates.push_back(row[i]);
  }
  return devices;
}

Mesh assign_case(const json& c) {
  const bool split = c["split"];
  const TorusAssignment assignment =
      assign_torus(dims_of(c["torus"]), dims_of(c["mesh"]),
                   split ? PhysicalAxes::splittable : PhysicalAxes::whole);
  if (c.contains("factors")) {
    EXPECT_EQ(assignment.factors.size(), c["factors"].size());
    for (std::size_t p = 0; p < assignment.factors.size(); ++p) {
      EXPECT_EQ(assignment.factors[p], dims_of(c["factors"][p]));
    }
  }
  return logical_mesh(Mesh(axes_of(c["torus"])), axes_of(c["mesh"]), assignment);
}

Mesh device_case(const json& c) {
  return device_mesh(axes_of(c["mesh"]), devices_of(c),
                     {.split_physical_axes = c["split"],
                      .contiguous_submeshes = c["contiguous"],
                      .device_kind = c["device_kind"]});
}

Mesh hybrid_case(const json& c) {
  std::vector<HybridAxis> axes;
  for (std::size_t i = 0; i < c["inner"].size(); ++i) {
    axes.push_back({"", c["inner"][i], c["outer"][i]});
  }
  const bool process = c["process"], sorted = c["sorted"];
  return hybrid_mesh(
      axes, devices_of(c),
      {.granule = process ? Granule::process : Granule::slice,
       .granule_order = sorted ? GranuleOrder::by_key : GranuleOrder::as_listed,
       .inner = {.split_physical_axes = c["split"], .device_kind = c["device_kind"]}});
}

Mesh mesh_of(const json& c) {
  if (c["kind"] == "assign") return assign_case(c);
  return c["kind"] == "device" ? device_case(c) : hybrid_case(c);
}

std::int64_t checksum(const std::vector<DeviceId>& ids) {
  std::int64_t total = 0;
  for (const DeviceId id : ids) total = (total * 31 + id + 1) % 1000000007;
  return total;
}

std::vector<std::int64_t> sizes_of(const Mesh& mesh) {
  std::vector<std::int64_t> sizes;
  for (const Axis& axis : mesh.axes()) sizes.push_back(axis.size);
  return sizes;
}

std::vector<std::int64_t> expected_sizes(const json& c) {
  auto sizes = c[c.contains("mesh") ? "mesh" : "inner"].get<std::vector<std::int64_t>>();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (c.contains("outer")) sizes[i] *= c["outer"][i].get<std::int64_t>();
  }
  return sizes;
}

/// One case a line; tests/data/README.md describes the fields.
TEST(HybridMesh, AgreesWithJaxAndTorchXla) {
  std::ifstream file(test_data("sharding/hybrid_mesh.jsonl"));
  std::map<std::string, int> agreed, refused;
  for (std::string line; std::getline(file, line);) {
    SCOPED_TRACE(line);
    const json c = json::parse(line);
    if (c.contains("error")) {
      EXPECT_THROW(mesh_of(c), Error);
      ++refused[c["kind"]];
      continue;
    }
    const Mesh mesh = mesh_of(c);
    const std::vector<DeviceId> ids = devices_of(mesh);
    EXPECT_EQ(sizes_of(mesh), expected_sizes(c));
    if (c.contains("order")) {
      EXPECT_EQ(ids, c["order"].get<std::vector<DeviceId>>());
    } else {
      EXPECT_EQ(checksum(ids), c["checksum"].get<std::int64_t>());
    }
    ++agreed[c["kind"]];
  }
  EXPECT_GT(agreed["assign"], 400);
  EXPECT_GT(agreed["device"], 150);
  EXPECT_GT(agreed["hybrid"], 120);
  EXPECT_GT(refused["assign"] + refused["device"] + refused["hybrid"], 80);
}

}  // namespace
}  // namespace shardwise
