#include "shardwise/convert/detail/write/export_format.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise {
namespace {

TEST(ExportFormat, KnowsTheNamesThatItWrites) {
  EXPECT_EQ(detail::export_formats().front()->name(), "safetensors");
  for (const detail::ExportFormat* format : detail::export_formats()) {
    const std::string suffix(format->suffix());
    SCOPED_TRACE(suffix);
    for (const std::string& name :
         {"model" + suffix, "model-00002-of-00013" + suffix, "model" + suffix + ".index.json"}) {
      EXPECT_TRUE(detail::is_exported_name(name)) << name;
    }
    EXPECT_FALSE(detail::is_exported_name("model" + suffix + ".bak"));
    // Every file of safetensors is a model; data have the other two endings, too.
    EXPECT_EQ(detail::is_exported_name("train" + suffix), format->name() == "safetensors");
  }
}

}  // namespace
}  // namespace shardwise
