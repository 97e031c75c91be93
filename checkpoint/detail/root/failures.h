#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <utility>
#include <vector>

namespace shardwise::detail {

/// The errors of a clean-up, which goes on after each. Thread-compatible.
class Failures {
 public:
  /// Runs a step; whatever it throws is kept, and the answer is false.
  template <class Step>
  bool attempt(Step&& step) noexcept {
    try {
      std::forward<Step>(step)();
      return true;
    } catch (...) {
      keep(std::current_exception());
      return false;
    }
  }

  bool none() const { return count_ == 0; }

  /// Throws the first error, if there is one.
  void rethrow_first() const {
    if (first_) std::rethrow_exception(first_);
  }

  /// One line: the first five errors, and how many more there are. Empty if nothing failed.
  std::string text() const;

 private:
  void keep(const std::exception_ptr& error) noexcept;

  std::exception_ptr first_;
  std::vector<std::string> texts_;  // of the first few
  std::size_t count_ = 0;
};

/// The first five texts, separated by "; ", and how many more there are: `count` is of all.
std::string join_few(const std::vector<std::string>& texts, std::size_t count);

}  // namespace shardwise::detail
