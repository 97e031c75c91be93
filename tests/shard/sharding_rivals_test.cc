#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"
#include "shardwise/shard/xla_sharding.h"

namespace shardwise {
namespace {

/// What PyTorch/XLA and JAX answered, one case a line; tests/data/README.md describes the fields.
std::vector<nlohmann::json> rival_cases() {
  std::ifstream file(SHARDWISE_TEST_DATA "/sharding_rivals.jsonl");
  std::vector<nlohmann::json> cases;
  for (std::string line; std::getline(file, line);) cases.push_back(nlohmann::json::parse(line));
  return cases;
}

Sharding sharding_of(const nlohmann::json& c) {
  return Sharding(Mesh::parse(c["mesh"].get<std::string>()),
                  PartitionSpec::parse(c["spec"].get<std::string>()));
}

Shape shape_of(const nlohmann::json& extents) {
  return Shape(std::span<const std::int64_t>(extents.get<std::vector<std::int64_t>>()));
}

TEST(Sharding, AgreesWithTorchXlaAndJax) {
  int agreed = 0;
  for (const nlohmann::json& c : rival_cases()) {
    if (c.contains("error")) continue;
    SCOPED_TRACE(c["from"].get<std::string>());
    const Sharding sharding = sharding_of(c);
    const Shape shape = shape_of(c["shape"]);
    EXPECT_EQ(sharding.shard_shape(shape), shape_of(c["shard"]));
    std::vector<DeviceId> devices;
    for (std::int64_t p = 0; p < sharding.mesh().size(); ++p) {
      devices.push_back(sharding.mesh().device_at(p));
    }
    std::sort(devices.begin(), devices.end());
    std::vector<std::string> boxes;
    std::vector<std::int64_t> xla, jax;
    for (const DeviceId device : devices) {
      const std::int64_t position = *sharding.mesh().position_of(device);
      boxes.push_back(to_string(sharding.box(device, shape)));
      xla.push_back(xla_replica_id(sharding, position));
      jax.push_back(sharding.replica_id(position));
    }
    EXPECT_EQ(boxes, c["boxes"].get<std::vector<std::string>>());
    // Each library counts replicas by its own rule.
    const bool by_xla = c.contains("xla");
    EXPECT_EQ(by_xla ? xla : jax, c[by_xla ? "xla" : "jax"].get<std::vector<std::int64_t>>());
    ++agreed;
  }
  EXPECT_GT(agreed, 100);
}

TEST(Sharding, RefusesWhatTorchXlaAndJaxRefuse) {
  int refused = 0;
  for (const nlohmann::json& c : rival_cases()) {
    if (!c.contains("error")) continue;
    SCOPED_TRACE(c["from"].get<std::string>());
    EXPECT_THROW(sharding_of(c).shard_shape(shape_of(c["shape"])), Error);
    ++refused;
  }
  EXPECT_GT(refused, 10);
}

}  // namespace
}  // namespace shardwise
