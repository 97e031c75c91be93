#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Many names, in one piece of memory. Thread-compatible.
class NameList {
 public:
  void add(std::string_view name) {
    text_ += name;
    ends_.push_back(text_.size());
  }

  std::size_t size() const { return ends_.size(); }

  /// Valid until the next add().
  std::string_view operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(text_).substr(begin, ends_[i] - begin);
  }

  void shrink_to_fit() {
    text_.shrink_to_fit();
    ends_.shrink_to_fit();
  }

 private:
  std::string text_;
  std::vector<std::size_t> ends_;
};

/// A name for messages: in double quotes, on one line whatever it holds, and without the middle if
/// it is long.
std::string shown_name(std::string_view name);

}  // namespace shardwise::detail
