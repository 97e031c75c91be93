#include <gtest/gtest.h>

#include <string>

#include "shardwise/mend/repair.h"

namespace shardwise {
namespace {

TEST(RepairReport, TellsWhatWasRepairedAndWhatIsLost) {
  RepairReport report;
  const std::string clean = to_string(report);
  EXPECT_EQ(clean, to_string(report.left));
  report.repaired.push_back({.damage = {.file = "a.h5", .message = "it is missing"}, .from = "b"});
  report.left.damage.push_back({.file = "c.h5", .message = "it is cut off"});
  report.lost.push_back({"w", Box({0}, {5})});
  EXPECT_FALSE(report.ok());
  const std::string text = to_string(report);
  EXPECT_TRUE(text.starts_with("1 repaired, "));
  const std::size_t repaired = text.find("repaired from b: a.h5: it is missing");
  const std::size_t left = text.find("c.h5: it is cut off");
  const std::size_t lost = text.find("lost: tensor \"w\" " + to_string(Box({0}, {5})));
  ASSERT_NE(lost, std::string::npos);
  EXPECT_LT(repaired, left);
  EXPECT_LT(left, lost);
}

}  // namespace
}  // namespace shardwise
