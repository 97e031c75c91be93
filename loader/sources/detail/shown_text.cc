#include "shardwise/loader/sources/detail/shown_text.h"

#include <cstddef>

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostCharacters = 40, kMostNames = 20;

}  // namespace

std::string shown_text(std::string_view text) {
  std::string shown(text.substr(0, kMostCharacters));
  for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kMostCharacters ? shown + ".." : shown;
}

std::string shown_names(const std::vector<std::string>& names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == kMostNames) return all + ", ..";
    all += (i == 0 ? "\"" : ", \"") + shown_text(names[i]) + '"';
  }
  return all;
}

}  // namespace shardwise::detail
