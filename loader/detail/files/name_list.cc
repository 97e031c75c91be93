#include "shardwise/loader/detail/files/name_list.h"

#include <fmt/format.h>

namespace shardwise::detail {
namespace {

constexpr std::size_t kShownBytes = 200;

}  // namespace

std::string shown_name(std::string_view name) {
  const auto escaped = [](std::string_view part) {
    std::string text;
    for (const char c : part) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') {
        text += '\\';
        text += c;
      } else if (code < 0x20 || code == 0x7f) {
        text += fmt::format("\\x{:02x}", code);
      } else {
        text += c;
      }
    }
    return text;
  };
  if (name.size() <= kShownBytes) return '"' + escaped(name) + '"';
  const std::size_t half = kShownBytes / 2;
  return fmt::format("\"{}...{}\" ({} bytes)", escaped(name.substr(0, half)),
                     escaped(name.substr(name.size() - half)), name.size());
}

}  // namespace shardwise::detail
