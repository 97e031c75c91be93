#include "shardwise/loader/detail/files/shown_text.h"

#include <cstddef>

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostCharacters = 80, kMostNames = 20, kMostOfALine = 500;

}  // namespace

std::string shown_text(std::string_view text) {
  std::string shown(text.substr(0, kMostCharacters));
  for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
  return text.size() > kMostCharacters ? shown + ".." : shown;
}

std::string one_line(std::string_view message) {
  std::string line(message.substr(0, kMostOfALine));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  }
  return message.size() > kMostOfALine ? line + ".." : line;
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
