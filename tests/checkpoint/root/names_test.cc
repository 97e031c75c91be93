#include "shardwise/checkpoint/detail/root/names.h"

#include <gtest/gtest.h>

namespace shardwise::detail {
namespace {

TEST(RootNames, HiddenNamesAreToldApart) {
  const std::string id = "0123456789abcdef0123456789abcdef";
  const std::string stem = attempt_stem(101, id);
  EXPECT_EQ(stem, ".step-00000101." + id);
  struct Case {
    std::string name;
    HiddenKind kind;
    std::string stem;
  };
  const Case cases[] = {
      {attempt_name(stem), HiddenKind::attempt, stem},
      {lease_name(stem), HiddenKind::lease, stem},
      {unfinished_lease_name(stem), HiddenKind::unfinished_lease, stem},
      {trash_name("step-00000101.g2", id), HiddenKind::trash, "step-00000101.g2"},
      {attempt_name(attempt_stem(1'234'567'890'123, id)), HiddenKind::attempt,
       ".step-1234567890123." + id},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const auto hidden = parse_hidden_name(c.name);
    ASSERT_TRUE(hidden);
    EXPECT_EQ(hidden->kind, c.kind);
    EXPECT_EQ(hidden->stem, c.stem);
  }
}

TEST(RootNames, EverythingElseIsNotOurs) {
  const std::string id = "0123456789abcdef0123456789abcdef";
  const std::string names[] = {"",
                               ".",
                               ".tmp",
                               ".lease",
                               "step-00000101",
                               ".step-101." + id + ".tmp",
                               ".step-00000101.tmp",
                               ".step-00000101." + id,
                               ".step-00000101." + id + ".tmp2",
                               ".step-00000101.g2." + id + ".tmp",
                               ".step-00000101." + id.substr(1) + ".tmp",
                               ".step-00000101.x" + id.substr(1) + ".tmp",
                               ".step-00000101x" + id + ".tmp",
                               "step-00000101." + id + ".tmp",
                               ".trash-" + id,
                               ".trash-step-00000101",
                               ".trash-step.0123"};
  for (const std::string& name : names) {
    EXPECT_FALSE(parse_hidden_name(name)) << name;
  }
}

TEST(RootNames, IdsAreNew) {
  EXPECT_EQ(new_id().size(), 32u);
  EXPECT_NE(new_id(), new_id());
  EXPECT_TRUE(parse_hidden_name(attempt_name(attempt_stem(0, new_id()))));
}

}  // namespace
}  // namespace shardwise::detail
