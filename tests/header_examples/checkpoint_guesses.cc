// Code for checkpoints and arrays that people wrote before they had read a header: it compiles, and
// does as they meant.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "header_examples/example.h"
#include "shardwise/shardwise.h"

namespace sw = shardwise;
namespace {

class FirstRestore : public testing::Test {
 protected:
  shardwise::InTempDir here;
  sw::CheckpointManager manager{"checkpoints"};
  std::vector<float> w = std::vector<float>(48);
  sw::Devices devices{4};
  const sw::Sharding rows{sw::Mesh::parse("data=4"), "data,-"};

  void SetUp() override {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i);
    manager.save(1, {sw::host_source("w", {12, 4}, w), sw::host_source("b", w)});
  }
  sw::CheckpointReader reader(std::int64_t step = 1) {
    return sw::CheckpointReader(manager.step(step).directory);
  }
};

TEST_F(FirstRestore, AsksWhetherATensorIsThere) {
  EXPECT_TRUE(reader().contains("w"));
  EXPECT_TRUE(reader().contains("b"));
  EXPECT_FALSE(reader().contains("a"));
  EXPECT_FALSE(reader().contains("ww"));
}

TEST_F(FirstRestore, RestoresByNameAndSharding) {
  const sw::Sharding whole = sw::Sharding::replicated(sw::Mesh::line(1), 1);
  const std::map<std::string, sw::ShardedArray> arrays =
      reader().restore(devices, {{"w", rows}, {"b", whole}});
  ASSERT_EQ(arrays.size(), 2U);
  EXPECT_EQ(arrays.at("w").to_host<float>(), w);
  EXPECT_EQ(arrays.at("w").sharding(), rows);
  EXPECT_EQ(arrays.at("w").shape(), (sw::Shape{12, 4}));
  EXPECT_EQ(arrays.at("b").to_vector<float>(), w);
  try {
    reader().restore(devices, {{"w", rows}, {"nope", whole}, {"b", rows}});
    FAIL();
  } catch (const sw::Error& error) {
    EXPECT_NE(std::string(error.what()).find("nope"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("\"b\""), std::string::npos) << error.what();
  }
}

TEST_F(FirstRestore, WaitsForSavesAndGoesOn) {
  manager.save_async(2, {sw::host_source("w", {12, 4}, w)});
  manager.wait();
  EXPECT_EQ(manager.latest()->step.step, 2);
  manager.save_async(3, {sw::host_source("w", {12, 4}, w)});
  manager.wait();
  EXPECT_EQ(manager.latest()->step.step, 3);
}

TEST_F(FirstRestore, PrintsReports) {
  const auto directory = manager.step(1).directory;
  EXPECT_EQ(to_string(sw::verify_checkpoint(directory)).find("every value is as written ("), 0U);
  std::filesystem::resize_file(directory / "manifest.json", 10);
  const std::string damaged = to_string(sw::verify_checkpoint(directory));
  EXPECT_EQ(damaged.find("1 damaged ("), 0U) << damaged;
  EXPECT_NE(damaged.find("\n  manifest.json: "), std::string::npos) << damaged;
}

TEST_F(FirstRestore, PrintsDifferences) {
  const std::vector<float> before = w;
  w[5] = 7;
  manager.save(2, {sw::host_source("w", {12, 4}, w), sw::host_source("b", before)});
  const sw::DiffReport report = sw::diff(reader(1), reader(2));
  const std::string text = to_string(report);
  EXPECT_EQ(
      text.find("w  f32 [12, 4]: 1 of 48 differ\n    first at [1, 1]: 5 | 7; at most 2 apart,"), 0U)
      << text;
  EXPECT_NE(text.find("\n1 of 2 tensors are equal; "), std::string::npos) << text;
  EXPECT_EQ(to_string(sw::diff(reader(1), reader(1))).find("2 of 2 tensors are equal"), 0U);
}

TEST(FirstArray, GivesItsShardsAndElements) {
  sw::Devices devices(4);
  const sw::Sharding rows(sw::Mesh::parse("data=4"), "data,-");
  const std::vector<float> values{0, 1, 2, 3, 4, 5, 6, 7};
  const auto x = sw::ShardedArray::from_host(devices, {sw::DType::f32, {4, 2}, rows}, values);
  EXPECT_EQ(x.to_host<float>(), values);
  EXPECT_THROW(static_cast<void>(x.to_host<double>()), sw::Error);
  std::int64_t row = 0;
  for (const sw::ConstBoxView& shard : x.shards()) {
    EXPECT_EQ(shard.box, sw::Box({row, 0}, {row + 1, 2}));
    EXPECT_EQ(shard.data, x.shard(row).data);
    ++row;
  }
  EXPECT_EQ(row, 4);
}

TEST(FirstBox, IsParsed) {
  for (const sw::Box& box :
       {sw::Box(), sw::Box({0}, {3}), sw::Box({0, 2}, {4, 8}), sw::Box({5, 5, 5}, {5, 6, 7})}) {
    EXPECT_EQ(sw::Box::parse(to_string(box)), box);
  }
  EXPECT_EQ(sw::Box::parse("0:4,2:8"), sw::Box({0, 2}, {4, 8}));
  EXPECT_EQ(sw::Box::parse(" [ 0 : 4 , 2:8 ] "), sw::Box({0, 2}, {4, 8}));
  for (const char* const wrong :
       {"[0:4", "0:4]", "4:0", "0", ":", "0:", ":4", "-1:3", "a:b", "0:4,", "0:4;2:8", "0:4:2"}) {
    EXPECT_THROW(sw::Box::parse(wrong), sw::Error) << wrong;
  }
}

TEST(FirstHostBatch, GivesElements) {
  std::vector<float> values(24);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const auto bytes = std::as_bytes(std::span(values));
  const auto source =
      sw::memory_source({"x", sw::DType::f32, {3}}, 8, {bytes.begin(), bytes.end()});
  sw::HostLoader loader(source, {{"x", sw::Sharding::replicated(sw::Mesh::line(1), 2)}},
                        {.batch_size = 4, .order = sw::RecordOrder::sequential});
  const auto batch = loader.next();
  ASSERT_TRUE(batch);
  const std::span<const float> x = batch->field("x").as<float>();
  EXPECT_EQ(std::vector<float>(x.begin(), x.end()),
            std::vector<float>(values.begin(), values.begin() + 12));
  EXPECT_EQ(batch->field("x").as<float>(0).data(), x.data());
  EXPECT_THROW(static_cast<void>(batch->field("x").as<double>()), sw::Error);
  EXPECT_THROW(static_cast<void>(batch->field("x").as<float>(1)), sw::Error);
}

}  // namespace
