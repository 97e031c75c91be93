#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "convert/memory_model.h"
#include "shardwise/convert/model.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

TEST(Hdf5Export, NamesThatAreNoPathsOfGroupsAreRefused) {
  const TempDir dir;
  const auto refused = [&](const char* target, std::vector<HostTensor> tensors) {
    const Model model(std::move(tensors));
    return message_of(ErrorCode::unsupported, [&] { export_model(model, dir / target); });
  };
  const auto named = [](std::string name) { return whole_tensor(std::move(name), DType::u8, {1}); };
  EXPECT_THAT(refused("m.h5", {named("a"), named("a/b")}),
              HasSubstr("tensor \"a\" would be a group with tensor \"a/b\" in it"));
  for (const char* name : {"", "/a", "a/", "a//b"}) {
    EXPECT_THAT(refused("m.h5", {named(name)}), HasSubstr("an empty part"));
  }
  EXPECT_THAT(refused("m.h5", {named("a/../b")}), HasSubstr("a part of dots"));
  EXPECT_THAT(refused("m.h5", {named(std::string("a\0b", 3))}), HasSubstr("a zero byte"));
  EXPECT_THAT(refused("m.h5", {named(std::string(4000, 'a'))}), HasSubstr("3,072"));
}

}  // namespace
}  // namespace shardwise
