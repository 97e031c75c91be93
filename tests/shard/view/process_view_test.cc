#include "shardwise/shard/view/process_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "testing/errors.h"
#include "testing/json_values.h"
#include "testing/make_sharding.h"
#include "testing/random_shardings.h"
#include "testing/test_data.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// `per_process` devices in a row belong to each process.
ProcessView view_of(const Sharding& sharding, std::int64_t per_process) {
  return ProcessView(sharding, [per_process](DeviceId device) { return device / per_process; });
}

TEST(ProcessView, CountsSharesAsInJaxsDocumentation) {
  const struct {
    const char* spec;
    Shape local, global;
  } cases[] = {
      {"-,-", {8, 8}, {8, 8}},    {"a+b+c,-", {8, 8}, {32, 8}}, {"a+b,-", {8, 8}, {32, 8}},
      {"-,a+c", {8, 8}, {8, 16}}, {"a+c,b", {8, 8}, {16, 16}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.spec);
    const ProcessView view = view_of(make_sharding(c.spec, "a=2,b=2,c=2"), 2);
    EXPECT_EQ(view.global_shape(c.local), c.global);
    EXPECT_EQ(view.local_shape(3, c.global), c.local);
  }
}

TEST(ProcessView, AgreesWithJax) {
  std::ifstream file(test_data("sharding/process_view.jsonl"));
  int cases = 0, undefined = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    SCOPED_TRACE(line);
    const nlohmann::json c = nlohmann::json::parse(line);
    const Sharding sharding(Mesh::parse(c["mesh"].get<std::string>()),
                            PartitionSpec::parse(c["spec"].get<std::string>()));
    const ProcessView view(sharding, c["process_of"].get<std::vector<std::int64_t>>());
    const Shape shape = dims_of(c["shape"]);
    ASSERT_EQ(view.processes().size(), c["processes"].size());
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      std::map<std::int64_t, std::int64_t> index_in_jax;  // theirs follow the order of a set
      for (const auto& [name, row] : c["processes"].items()) {
        const std::int64_t process = std::stoi(name);
        const nlohmann::json& share = row["shares"][dim];
        ASSERT_EQ(view.is_uniform(dim), !share.is_null());
        if (share.is_null()) {
          message_of(ErrorCode::invalid_argument, [&] { view.share(process, dim); });
          ++undefined;
          continue;
        }
        const ProcessShare ours = view.share(process, dim);
        ASSERT_EQ(ours.count, share[1]);
        ASSERT_LT(ours.index, ours.count);
        ASSERT_EQ(index_in_jax.emplace(ours.index, share[0]).first->second, share[0]);
      }
    }
    for (const auto& [process, row] : c["processes"].items()) {
      const Shape local = view.local_shape(std::stoi(process), shape);
      ASSERT_EQ(local, dims_of(row["local"]));
      const auto& global = row["global"];
      if (std::find(global.begin(), global.end(), nullptr) == global.end()) {
        ASSERT_EQ(view.global_shape(local), dims_of(global));
      } else {
        message_of(ErrorCode::invalid_argument, [&] { view.global_shape(local); });
      }
    }
  }
  EXPECT_EQ(cases, 250);
  EXPECT_GT(undefined, 100);
}

TEST(ProcessView, LaysLocalArraysOutAsEveryDeviceSeesThem) {
  RandomShardings random(51);
  for (int round = 0; round < 1500; ++round) {
    const Shape shape = random.shape(static_cast<std::size_t>(random.draw(0, 3)));
    const Mesh mesh = random.mesh();
    const Sharding sharding =
        random.sharding(mesh, random.spec_with_parts(mesh, shape.size()), shape);
    SCOPED_TRACE(sharding.to_string() + " of " + to_string(shape));
    std::map<DeviceId, std::int64_t> process_of;
    for (std::int64_t p = 0; p < mesh.size(); ++p)
      process_of[mesh.device_at(p)] = random.draw(0, 2);
    const ProcessView view(sharding, [&](DeviceId device) { return process_of[device]; });
    std::int64_t listed = 0;
    for (const std::int64_t process : view.processes()) {
      // The rows of each dim that some device of the process holds, in order.
      std::vector<std::set<std::int64_t>> held(shape.size());
      for (const std::int64_t position : view.positions(process)) {
        ASSERT_EQ(process_of[mesh.device_at(position)], process);
        ++listed;
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
          const TileRange range =
              sharding.tile_range(dim, sharding.tile_index(position, dim), shape[dim]);
          for (std::int64_t row = range.begin; row < range.end; ++row) held[dim].insert(row);
        }
      }
      const Shape local = view.local_shape(process, shape);
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        ASSERT_EQ(local[dim], static_cast<std::int64_t>(held[dim].size()));
      }
      for (const std::int64_t position : view.positions(process)) {
        const Box global = sharding.box_at(position, shape), box = view.local_box(position, shape);
        ASSERT_EQ(box.shape(), global.shape());
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
          const auto first = held[dim].lower_bound(global.begin(dim));
          if (global.extent(dim) > 0) {
            ASSERT_EQ(box.begin(dim), std::distance(held[dim].begin(), first));
          }
        }
      }
    }
    ASSERT_EQ(listed, mesh.size());
  }
}

TEST(ProcessView, RefusesWhatIsUndefined) {
  // Rows: processes 0, 1 | 1, 0: both hold all rows and all columns.
  const ProcessView crossed(make_sharding("a,b", "a=2,b=2"), std::vector<std::int64_t>{0, 1, 1, 0});
  EXPECT_EQ(crossed.share(1, 0), (ProcessShare{0, 1}));
  const ProcessView uneven(make_sharding("a,b", "a=2,b=2"), std::vector<std::int64_t>{0, 1, 1, 1});
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { uneven.share(0, 1); }),
      AllOf(HasSubstr("dim 1"), HasSubstr("process 0 holds 1 of its 2 tiles, process 1 2")));
  const ProcessView overlapping(make_sharding("0", "4"), std::vector<std::int64_t>{0, 0, 1, 1});
  EXPECT_TRUE(overlapping.is_uniform(0));
  const ProcessView chained(make_sharding("0", "3,2"), std::vector<std::int64_t>{0, 2, 0, 1, 1, 2});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { chained.global_shape({4}); }),
              AllOf(HasSubstr("global shape"), HasSubstr("in common")));
  const ProcessView even = view_of(make_sharding("0", "4"), 2);
  EXPECT_EQ(even.global_shape({6}), Shape({12}));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { even.global_shape({5}); }),
              AllOf(HasSubstr("10"), HasSubstr("process 0 holds 6")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           even.global_shape({5, 1});
                         }),
              HasSubstr("[5, 1]"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { even.global_shape({INT64_MAX}); }),
              HasSubstr("dim 0"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { even.positions(2); }), HasSubstr("process 2"));
  EXPECT_THAT(
      message_of(ErrorCode::not_found,
                 [] {
                   ProcessView(make_sharding("0", "2@1,7"), std::vector<std::int64_t>{0, 0});
                 }),
      AllOf(HasSubstr("device 7"), HasSubstr("2 devices")));
}

TEST(Minibatch, IsPlacedAsPyTorchXlaDoesInOrder) {
  const ProcessView view = view_of(make_sharding("0,1,2", "8,1,1"), 4);
  const Minibatch batch = minibatch(view, 1, {8, 7, 4});
  EXPECT_EQ(batch.global_shape, Shape({16, 7, 4}));
  EXPECT_EQ(batch.share, (ProcessShare{1, 2}));
  ASSERT_EQ(batch.parts.size(), 4u);
  for (std::int64_t i = 0; i < 4; ++i) {
    const MinibatchPart& part = batch.parts[static_cast<std::size_t>(i)];
    EXPECT_EQ(part.position, 4 + i);
    EXPECT_EQ(part.local, Box({2 * i, 0, 0}, {2 * i + 2, 7, 4}));
    EXPECT_EQ(part.global, Box({8 + 2 * i, 0, 0}, {10 + 2 * i, 7, 4}));
  }
}

TEST(Minibatch, KeepsTheOrderOfRowsForAnyDeviceOrder) {
  // PyTorch/XLA deals rows out by place in the device list, so here they read back reversed.
  const ProcessView view = view_of(make_sharding("0", "8@7,6,5,4,3,2,1,0"), 8);
  for (const MinibatchPart& part : minibatch(view, 0, {8}).parts)
    EXPECT_EQ(part.local, part.global);
  // Both processes feed both columns; data is cut over the outer axis, in the other order.
  const ProcessView two = view_of(make_sharding("data,model", "data=2,model=2@2,3,0,1"), 2);
  const Minibatch batch = minibatch(two, 0, {3, 4});
  EXPECT_EQ(batch.global_shape, Shape({6, 4}));
  EXPECT_EQ(batch.share, (ProcessShare{1, 2}));
  ASSERT_EQ(batch.parts.size(), 2u);
  EXPECT_EQ(batch.parts[1].local, Box({0, 2}, {3, 4}));
  EXPECT_EQ(batch.parts[1].global, Box({3, 2}, {6, 4}));
}

TEST(Minibatch, GivesEachDeviceItsRowsOfTheGlobalBatch) {
  RandomShardings random(52);
  int placed = 0;
  for (int round = 0; round < 1500; ++round) {
    const Mesh mesh = random.mesh();
    const std::size_t rank = static_cast<std::size_t>(random.draw(1, 3));
    const Sharding sharding(mesh, random.spec_with_parts(mesh, rank));
    const std::int64_t per_process = random.draw(1, 4);
    const ProcessView view(sharding, [&](DeviceId device) { return device / per_process; });
    if (!view.is_uniform(0)) continue;
    Shape local = random.shape(rank);
    local[0] *= static_cast<std::int64_t>(view.tiles(view.processes()[0], 0).size());
    SCOPED_TRACE(sharding.to_string() + " of " + to_string(local));
    // Element [r, ..] of the global batch is r; the process with share i brings its rows of it.
    for (const std::int64_t process : view.processes()) {
      const Minibatch batch = minibatch(view, process, local);
      std::set<std::int64_t> rows;
      for (const std::int64_t position : view.positions(process)) {
        const Box box = sharding.box_at(position, batch.global_shape);
        for (std::int64_t row = box.begin(0); row < box.end(0); ++row) rows.insert(row);
      }
      const std::vector<std::int64_t> brought(rows.begin(), rows.end());
      ASSERT_EQ(static_cast<std::int64_t>(brought.size()), local[0]);
      ASSERT_EQ(batch.parts.size(), view.positions(process).size());
      for (const MinibatchPart& part : batch.parts) {
        ASSERT_EQ(part.global, sharding.box_at(part.position, batch.global_shape));
        ASSERT_EQ(part.local.shape(), part.global.shape());
        ASSERT_TRUE(Box::whole(local).contains(part.local));
        for (std::int64_t i = 0; i < part.local.extent(0); ++i) {
          ASSERT_EQ(brought[static_cast<std::size_t>(part.local.begin(0) + i)],
                    part.global.begin(0) + i);
        }
        ++placed;
      }
    }
  }
  EXPECT_GT(placed, 1000);
}

TEST(Minibatch, RefusesBatchesThatCannotBeDivided) {
  const auto message = [](const ProcessView& view, const Shape& local) {
    return message_of(ErrorCode::invalid_argument, [&] { minibatch(view, 0, local); });
  };
  const ProcessView view = view_of(make_sharding("0,-", "4"), 2);
  EXPECT_THAT(message(view, {7, 3}), AllOf(HasSubstr("minibatch"), HasSubstr("7"), HasSubstr("14"),
                                           HasSubstr("cut 4 ways")));
  EXPECT_THAT(message(view, {8}), HasSubstr("[8]"));
  EXPECT_THAT(message(view, {-1, 3}), HasSubstr("-1"));
  EXPECT_THAT(message(view_of(make_sharding("", "4"), 2), {}), HasSubstr("scalar"));
  EXPECT_THAT(message(view_of(make_sharding("0,-", "4"), 3), {6, 3}), HasSubstr("not cut evenly"));
  EXPECT_THAT(message(view_of(make_sharding("0,1", "2,2", "strict"), 2), {2, 3}),
              HasSubstr("strict"));
  message_of(ErrorCode::not_found, [&] { minibatch(view, 5, {8, 3}); });
}

}  // namespace
}  // namespace shardwise
