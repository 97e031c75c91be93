#include "completion.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string_view>

#include "output.h"
#include "parse.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {

std::string names_after(std::span<char* const> words) {
  if (words.size() < 3) return {};
  const std::string command = words[0], path = words[1], begin = words[2];
  std::string text;
  const auto add = [&](const std::string& name) {
    const bool is_word = name.find_first_of(" \t\n'\"\\$`") == std::string::npos;
    const bool is_seen = one_line(name) == name;  // a shell would put it on the terminal
    if (is_word && is_seen && name.starts_with(begin)) text += name + "\n";
  };
  const auto is_one_of = [&](std::initializer_list<std::string_view> commands) {
    return std::ranges::find(commands, command.substr(command.find(' ') + 1)) != commands.end();
  };
  const bool takes_tensor = is_one_of({"inspect", "cat", "stats"});
  if (takes_tensor || is_one_of({"ls", "verify", "diff", "du", "parity", "rm", "pin", "export",
                                 "reshard", "bench restore"})) {
    for (const std::string& step : steps_of(path)) add(step);
  }
  if (takes_tensor) {
    const std::unique_ptr<BoxReader> reader = describe_tensors(chosen_path(path));
    for (const TensorInfo& tensor : reader->tensors()) add(tensor.name);
  }
  return text;
}

}  // namespace shardwise::tools
