#include "shardwise/runtime/default_mesh.h"

#include <gtest/gtest.h>

#include <optional>

namespace shardwise {
namespace {

TEST(DefaultMesh, IsWhatWasSetLast) {
  EXPECT_FALSE(default_mesh());
  set_default_mesh(Mesh::parse("x=2"));
  EXPECT_EQ(default_mesh(), Mesh::parse("x=2"));
  set_default_mesh(std::nullopt);
  EXPECT_FALSE(default_mesh());
}

}  // namespace
}  // namespace shardwise
