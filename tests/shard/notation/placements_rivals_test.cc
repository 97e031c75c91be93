#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardwise/shard/notation/placements.h"
#include "testing/json_values.h"
#include "testing/random_placements.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

using nlohmann::json;

/// Local shape, offset, runs and box say the same as these runs, one list per dim.
void expect_runs(const Placements& placements, std::int64_t position, const Shape& shape,
                 const std::vector<std::vector<IndexRun>>& runs) {
  EXPECT_EQ(placements.runs_at(position, shape), runs);
  Shape local;
  Index offset, end;
  bool has_gaps = false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    std::int64_t length = 0;
    for (const IndexRun& run : runs[dim]) length += run.end - run.begin;
    local.push_back(length);
    offset.push_back(runs[dim].empty() ? shape[dim] : runs[dim].front().begin);
    end.push_back(runs[dim].empty() ? shape[dim] : runs[dim].back().end);
    has_gaps |= runs[dim].size() > 1;
  }
  EXPECT_EQ(placements.local_shape(position, shape), local);
  EXPECT_EQ(placements.box_at(position, shape),
            has_gaps ? std::nullopt : std::optional(Box(offset, end)));
}

TEST(Placements, AgreeWithDTensor) {
  std::ifstream file(test_data("sharding/dtensor.jsonl"));
  int agreed = 0, with_runs = 0;
  for (std::string line; std::getline(file, line); ++agreed) {
    const json c = json::parse(line);
    SCOPED_TRACE(line.substr(0, 200));
    const Placements placements = Placements::parse(Mesh::parse(c["mesh"].get<std::string>()),
                                                    c["placements"].get<std::string>());
    EXPECT_EQ(placements.to_string(), c["placements"].get<std::string>());
    const Shape shape = dims_of(c["shape"]);
    ASSERT_EQ(static_cast<std::size_t>(placements.mesh().size()), c["local"].size());
    for (std::int64_t position = 0; position < placements.mesh().size(); ++position) {
      const auto i = static_cast<std::size_t>(position);
      EXPECT_EQ(placements.local_shape(position, shape), dims_of(c["local"][i]));
      if (const auto box = placements.box_at(position, shape)) {
        EXPECT_EQ(box->begin(), dims_of(c["offset"][i]));
      }
      std::vector<std::vector<IndexRun>> runs(shape.size());
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        const std::int64_t begin = c["offset"][i][dim], length = c["local"][i][dim];
        if (!c.contains("runs")) {
          if (length > 0) runs[dim] = {{begin, begin + length}};
          continue;
        }
        for (const json& run : c["runs"][i][dim]) runs[dim].push_back({run[0], run[1]});
      }
      expect_runs(placements, position, shape, runs);
    }
    with_runs += c.contains("runs") ? 1 : 0;
  }
  EXPECT_EQ(agreed, 300);
  EXPECT_EQ(with_runs, 40);
}

TEST(Placements, AgreeWithCuttingElementByElement) {
  RandomPlacements random(20260);
  std::int64_t asked = 0;
  for (int n = 0; n < 4000 && !testing::Test::HasFailure(); ++n) {
    const auto rank = static_cast<std::size_t>(random.draw(1, 4));
    const Placements placements = random.placements(random.mesh(), rank);
    const Shape shape = random.shape(placements, rank);
    SCOPED_TRACE(placements.mesh().to_string() + ": " + placements.to_string() + " of " +
                 to_string(shape));
    // Every position where there are few, else some of them, each residue among them.
    const std::int64_t step = placements.mesh().size() > 16 ? 7 : 1;
    for (std::int64_t p = random.draw(0, step - 1); p < placements.mesh().size(); p += step) {
      std::vector<std::vector<IndexRun>> runs;
      for (std::size_t dim = 0; dim < rank; ++dim) {
        runs.push_back(runs_of(chunked_elements(placements, dim, shape[dim], p)));
      }
      expect_runs(placements, p, shape, runs);
      ++asked;
    }
  }
  EXPECT_GT(asked, 20000);
}

}  // namespace
}  // namespace shardwise
