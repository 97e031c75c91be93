#include "shardwise/checkpoint/detail/root/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostTexts = 5;

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace

void Failures::keep(const std::exception_ptr& error) noexcept {
  ++count_;
  if (!first_) first_ = error;
  if (texts_.size() == kMostTexts) return;
  try {
    texts_.push_back(text_of(error));
  } catch (...) {  // there is no memory even for this: it is counted
  }
}

std::string Failures::text() const { return join_few(texts_, count_); }

std::string join_few(const std::vector<std::string>& texts, std::size_t count) {
  const std::span few = std::span(texts).first(std::min(texts.size(), kMostTexts));
  std::string text = fmt::format("{}", fmt::join(few, "; "));
  if (count > few.size()) {
    text += fmt::format("{}{} more", few.empty() ? "" : "; and ", count - few.size());
  }
  return text;
}

}  // namespace shardwise::detail
