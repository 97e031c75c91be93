#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shardwise/shard/device_order.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/view/process_view.h"
#include "testing/temp_dir.h"

// Setup of the tests that generate.py makes of the examples in header comments.
namespace shardwise {

/// The current folder is an empty one.
class InTempDir {
 public:
  InTempDir() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(temp_.path());
  }
  ~InTempDir() { std::filesystem::current_path(before_); }
  InTempDir(const InTempDir&) = delete;
  InTempDir& operator=(const InTempDir&) = delete;

 private:
  TempDir temp_;
  std::filesystem::path before_;
};

/// How comments write a value.
inline std::string text_of(const DeviceOrder& order) {
  std::string text;
  for (std::int64_t position = 0; position < order.size(); ++position) {
    text += (position == 0 ? "" : ", ") + std::to_string(order.device_at(position));
  }
  return text;
}
inline std::string text_of(const ProcessShare& share) {
  return "{" + std::to_string(share.index) + ", " + std::to_string(share.count) + "}";
}
inline std::string text_of(const std::string& value) { return '"' + value + '"'; }

template <class T>
std::string text_of(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_enum_v<T>) {
    return std::string(name(value));
  } else if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? text_of(*value) : "nothing";
  } else if constexpr (requires { value.to_string(); }) {
    return value.to_string();
  } else if constexpr (
      requires { value.begin()->to_string(); } || requires { value.front(); }) {
    std::string text;
    for (const auto& one : value) text += (text.empty() ? "" : ", ") + text_of(one);
    return text;
  } else {
    return to_string(value);
  }
}
inline std::string text_of(const Dims& value) { return to_string(value); }

/// One example.
class Example {
 public:
  /// The comment begins with the value's text, or says that it is the same as the one before.
  template <class T>
  void check(const T& value, std::string_view comment) {
    const std::string text = text_of(value);
    const std::size_t qualified = comment.find("::");  // Link::same_slice
    if (qualified != std::string_view::npos) comment.remove_prefix(qualified + 2);
    if (comment == "the same") {
      EXPECT_EQ(text, last_);
    } else {
      const bool begins =
          comment.starts_with(text) &&
          (comment.size() == text.size() ||
           std::string_view(",;: ").find(comment[text.size()]) != std::string_view::npos);
      EXPECT_TRUE(begins) << "the value is " << text << ", the comment says: " << comment;
    }
    last_ = text;
  }

 private:
  std::string last_;
};

}  // namespace shardwise
