#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/xla_text.h"
#include "testing/json_values.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

using nlohmann::json;

/// A library's answers, one case a line; tests/data/README.md describes the fields.
std::vector<json> cases_of(const char* file_name) {
  std::ifstream file(test_data("sharding") / file_name);
  std::vector<json> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(json::parse(line));
  return cases;
}

Sharding sharding_of(const json& c, bool short_spec, UnevenPolicy policy) {
  PartitionSpec spec = spec_of(c["spec"]);
  if (short_spec) spec = spec.padded(c["tensor_shape"].size());
  return Sharding(
      Mesh(axes_of(c["mesh_shape"], c["axis_names"]), c["device_ids"].get<std::vector<DeviceId>>()),
      spec, policy);
}

/// Mesh positions in ascending order of their devices.
std::vector<std::int64_t> positions_by_device(const Mesh& mesh) {
  std::vector<std::int64_t> positions;
  for (std::int64_t k = 0; k < mesh.size(); ++k) {
    positions.push_back(*mesh.position_of(mesh.devices().nth_smallest(k)));
  }
  return positions;
}

void expect_boxes(const Sharding& sharding, const Shape& shape, const json& expected) {
  json slices = json::array();
  for (const std::int64_t p : positions_by_device(sharding.mesh())) {
    slices.push_back(slices_of(sharding.box_at(p, shape)));
  }
  if (expected.is_string()) {
    const json whole = slices_of(Box::whole(shape));
    EXPECT_TRUE(std::all_of(slices.begin(), slices.end(),
                            [&whole](const json& box) { return box == whole; }));
  } else {
    EXPECT_EQ(slices, expected);
  }
}

TEST(Rivals, PlacesAsTorchXla) {
  int agreed = 0;
  for (const json& c : cases_of("torch_xla.jsonl")) {
    const json& expected = c["expect"];
    if (expected.contains("error")) continue;
    SCOPED_TRACE(c["case"].dump());
    const Sharding sharding = sharding_of(c["case"], false, UnevenPolicy::ceil());
    const Shape shape = dims_of(c["case"]["tensor_shape"]);
    EXPECT_EQ(sharding.shard_shape(shape), dims_of(expected["padded_shard"]));
    EXPECT_EQ(name(sharding_type(sharding)), expected["type"]);
    EXPECT_EQ(to_xla_v1(sharding), expected["text"]);
    expect_boxes(sharding, shape, expected["slices"]);
    std::vector<std::int64_t> ids;
    for (const std::int64_t p : positions_by_device(sharding.mesh())) {
      ids.push_back(xla_replica_id(sharding, p));
    }
    EXPECT_EQ(json(ids), expected["replica_ids"]);
    if (expected.contains("mesh_type")) {
      EXPECT_EQ(static_cast<int>(declared_type(sharding)), expected["mesh_type"]);
      EXPECT_EQ(json(replication_groups(sharding)), expected["replication_groups"]);
      const std::vector<std::int64_t> groups = flatten(expected["group_assignment"]);
      EXPECT_EQ(replication_groups(sharding).size(), groups.size());
      EXPECT_EQ(group_assignment_dims(sharding).empty(), groups.empty());
    }
    // It reads its own print as the same placement.
    const XlaSharding again = parse_xla_text(to_xla_v1(sharding), sharding.mesh(), shape.size());
    EXPECT_TRUE(*again.placement == sharding);
    ++agreed;
  }
  EXPECT_GT(agreed, 250);
}

TEST(Rivals, PlacesAsJax) {
  int agreed = 0;
  for (const json& c : cases_of("jax.jsonl")) {
    const json& expected = c["expect"];
    if (!expected.contains("text")) continue;
    SCOPED_TRACE(c["case"].dump());
    const Sharding sharding = sharding_of(c["case"], true, UnevenPolicy::strict());
    const Shape shape = dims_of(c["case"]["tensor_shape"]);
    EXPECT_EQ(to_xla_v2(sharding), expected["text"]);
    EXPECT_EQ(sharding.is_fully_replicated(), expected["fully_replicated"]);
    const XlaSharding again = parse_xla_text(to_xla_v2(sharding), sharding.mesh(), shape.size());
    EXPECT_TRUE(*again.placement == sharding_of(c["case"], true, UnevenPolicy::ceil()));
    if (expected.contains("error")) {
      EXPECT_THROW(sharding.shard_shape(shape), Error);
      continue;
    }
    EXPECT_EQ(sharding.shard_shape(shape), dims_of(expected["shard_shape"]));
    expect_boxes(sharding, shape, expected["slices"]);
    std::vector<std::int64_t> ids;
    for (const std::int64_t p : positions_by_device(sharding.mesh())) {
      ids.push_back(jax_replica_id(sharding, p, shape));
    }
    EXPECT_EQ(json(ids), expected["replica_ids"]);
    ++agreed;
  }
  EXPECT_GT(agreed, 150);
}

TEST(Rivals, RefusesWhatBothRefuse) {
  int refused = 0;
  for (const char* file : {"torch_xla.jsonl", "jax.jsonl"}) {
    const bool jax = file[0] == 'j';
    for (const json& c : cases_of(file)) {
      // An empty tuple is a whole dim, as in JAX.
      if (!c["expect"].contains("error") || !c["case"].contains("damage")) continue;
      if (c["case"]["damage"] == "empty tuple") continue;
      SCOPED_TRACE(c["case"].dump());
      EXPECT_THROW(sharding_of(c["case"], jax, jax ? UnevenPolicy::strict() : UnevenPolicy::ceil())
                       .shard_shape(dims_of(c["case"]["tensor_shape"])),
                   Error);
      ++refused;
    }
  }
  EXPECT_GT(refused, 15);
}

}  // namespace
}  // namespace shardwise
