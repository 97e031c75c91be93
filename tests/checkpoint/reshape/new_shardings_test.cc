#include "shardwise/reshape/detail/reshard/new_shardings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"

namespace shardwise::reshape_detail {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::string message(const std::vector<TensorInfo>& tensors, const char* mesh, const char* rules) {
  return message_of(ErrorCode::invalid_argument, [&] {
    new_shardings(tensors, Mesh::parse(mesh), SpecRules::parse(rules), "reshard x");
  });
}

TensorInfo tensor(const std::string& name, const Shape& shape, const char* spec) {
  return {.name = name,
          .shape = shape,
          .sharding = Sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse(spec))};
}

/// As a transformer's: 100 layers of a kernel and a bias.
std::vector<TensorInfo> layers() {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 100; ++i) {
    const std::string layer = "layer/" + std::to_string(i);
    tensors.push_back(tensor(layer + "/bias", {64}, "model"));
    tensors.push_back(tensor(layer + "/kernel", {64, 64}, i % 2 == 0 ? "data,model" : "-,data"));
  }
  return tensors;
}

TEST(NewShardings, TellOfManyTensorsWithOneFaultInOneLine) {
  EXPECT_EQ(message(layers(), "model=8", ""),
            "reshard x to mesh model=8: 100 of 200 tensors do not fit: tensors "
            "\"layer/0/kernel\", \"layer/1/kernel\" and 98 more: no axis \"data\" in mesh model=8 "
            "(stored spec \"data,model\", as no rule matches)");
}

TEST(NewShardings, SuggestTheNearestAxis) {
  EXPECT_EQ(message({tensor("w", {4, 4}, "-,-")}, "data=4,model=2", "*=data,modle"),
            "reshard x to mesh data=4,model=2: 1 of 1 tensors do not fit: tensor \"w\": no axis "
            "\"modle\" in mesh data=4,model=2, nearest: \"model\" (rule \"*=data,modle\")");
  EXPECT_THAT(message({tensor("w", {4, 4}, "-,-")}, "data=4,model=2", "*=data,modl:(1)2"),
              HasSubstr("no axis \"modl\" in mesh data=4,model=2, nearest: \"model\""));
}

TEST(NewShardings, TellOfRulesThatMatchNothingFirst) {
  EXPECT_THAT(message(layers(), "model=8", "*kernal=-,model"),
              testing::StartsWith("reshard x to mesh model=8: rule \"*kernal\" matches none of 200 "
                                  "tensors; 100 of 200 tensors do not fit: "));
  EXPECT_EQ(message(layers(), "data=2,model=2", "layer/0/bais=-; a=-; b=-; c=-; d=-"),
            "reshard x to mesh data=2,model=2: rules \"layer/0/bais\", \"a\", \"b\" and 2 more "
            "match none of 200 tensors");
  EXPECT_EQ(message(layers(), "data=2,model=2", "layer/0/bais=-"),
            "reshard x to mesh data=2,model=2: rule \"layer/0/bais\" matches none of 200 tensors, "
            "nearest: \"layer/0/bias\"");
}

// A fault each, and names as long as can be: the message stays short, and names no function.
TEST(NewShardings, CountWhatTheyDoNotShow) {
  std::vector<TensorInfo> tensors;
  for (int i = 0; i < 40; ++i) {
    TensorInfo info = tensor(std::to_string(i) + std::string(1000, 'n'), {100 + i}, "model");
    info.sharding =
        Sharding(info.sharding->mesh(), info.sharding->spec(), UnevenPolicy::parse("sizes:1+2"));
    tensors.push_back(info);
  }
  tensors.push_back(tensors[7]);
  const std::string text = message(tensors, "model=2", "");
  EXPECT_LT(text.size(), 1100u) << text;
  EXPECT_THAT(text,
              AllOf(HasSubstr("41 of 41 tensors do not fit: tensors \"7nnn"),
                    HasSubstr(" more with "), HasSubstr("other faults"), Not(HasSubstr("cut by")),
                    Not(HasSubstr("harding")), Not(HasSubstr("axis_index"))));
}

TEST(NewShardings, OfATensorThatNobodyHasCutAreWhole) {
  const std::vector<TensorInfo> tensors{{.name = "w", .dtype = DType::f32, .shape = {4, 4}}};
  const std::vector<Sharding> found =
      new_shardings(tensors, Mesh::parse("x=3"), SpecRules(), "reshard x");
  EXPECT_TRUE(found.at(0).is_fully_replicated());
  EXPECT_EQ(found.at(0).rank(), 2u);
}

}  // namespace
}  // namespace shardwise::reshape_detail
