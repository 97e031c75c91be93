#include "steps/chosen_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "shardwise/checkpoint/reader.h"
#include "steps/checkpoint_path.h"
#include "usage.h"

namespace shardwise::tools {
namespace {

/// True if the newest checkpoint of a root has a tensor of this name, which then is no step.
bool is_tensor(const std::string& root, const std::string& name) {
  if (!holds_steps(root)) return false;
  const CheckpointReader reader(resolve_checkpoint(root), {.pin = false});
  return std::ranges::find(reader.tensors(), name, &TensorInfo::name) != reader.tensors().end();
}

}  // namespace

void choose_step(std::string& path, const std::string& step) {
  path = step.empty() ? chosen_path(path) : step_path(chosen_path(path), step);
}

void choose_step(std::string& path, std::string& step, std::vector<std::string>& patterns) {
  const bool may_name = !patterns.empty() && names_step(chosen_path(path), patterns[0]);
  if (may_name && !is_tensor(path, patterns[0])) take_step(path, step, patterns);
  choose_step(path, step);
}

void choose_with_target(std::string_view command, std::string& source, std::string& step,
                        std::vector<std::string>& words, std::string& target) {
  if (words.size() > 1) take_step(source, step, words);
  if (words.size() > 1) refuse_word(command, words[1]);
  choose_step(source, step);
  target = words[0];
}

void take_step(const std::string& path, std::string& step, std::vector<std::string>& words) {
  if (!step.empty() || words.empty() || !names_step(chosen_path(path), words[0])) return;
  step = words[0];
  words.erase(words.begin());
}

std::vector<std::string> paths_of_steps(std::string_view command, const std::string& root,
                                        const std::vector<std::string>& words) {
  std::vector<std::string> all{root};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<std::string> paths = chosen_paths(all);
  for (const std::string& path : paths) {
    if (is_there(path)) continue;
    // Throws for a checkpoint, which has no steps, and for a root without any.
    const std::filesystem::path found = root_of_steps(command, paths[0]);
    if (!holds_steps(found)) refuse_without_steps(found, paths[0]);
    throw BadUsage(
        fmt::format("{}: step: found \"{}\", needed its number or directory", command, path));
  }
  return paths;
}

void refuse_word(std::string_view command, const std::string& word) {
  throw BadUsage(fmt::format("{}: \"{}\" is one argument too many", command, word));
}

}  // namespace shardwise::tools
