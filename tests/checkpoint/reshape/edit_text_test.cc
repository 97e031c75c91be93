#include "shardwise/reshape/detail/edits/edit_text.h"

#include <gtest/gtest.h>

#include <string>

namespace shardwise {
namespace {

template <class Rule>
std::string again(const char* text) {
  return reshape_detail::rule_text(Rule::parse(text));
}

TEST(EditText, IsWhatWasRead) {
  EXPECT_EQ(again<TensorEdits::Rename>("a.*=b.*"), "a.*=b.*");
  EXPECT_EQ(again<TensorEdits::Cast>("a=bf16"), "a=bf16");
  EXPECT_EQ(again<TensorEdits::Cast>("bf16"), "*=bf16");
  EXPECT_EQ(again<TensorEdits::Transpose>("w=1,0"), "w=1,0");
  EXPECT_EQ(again<TensorEdits::Resize>("w=pad:50304,-"), "w=pad:50304,-");
  EXPECT_EQ(again<TensorEdits::Resize>("w=slice:7"), "w=slice:7");
  EXPECT_EQ(again<TensorEdits::Split>("a=b,c@-1:2,3"), "a=b,c@-1:2,3");
  EXPECT_EQ(again<TensorEdits::Split>("a=b,c@+0"), "a=b,c@+0");
  EXPECT_EQ(again<TensorEdits::Join>("a,b=c@+1"), "a,b=c@+1");
  EXPECT_EQ(reshape_detail::clipped("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(reshape_detail::clipped(std::string(100, 'x')), '"' + std::string(60, 'x') + "\"...");
}

}  // namespace
}  // namespace shardwise
