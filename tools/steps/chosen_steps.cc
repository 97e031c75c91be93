#include "steps/chosen_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace {

using Words = std::vector<std::string>;

void choose(std::string& path, const std::string& step) {
  path = step.empty() ? chosen_path(path) : step_path(chosen_path(path), step);
}

[[noreturn]] void refuse_word(std::string_view command, const std::string& word) {
  throw BadUsage(fmt::format("{}: \"{}\" is one argument too many", command, word));
}

/// Takes the first word away if it names a step of the path.
void take_step(const std::string& path, std::string& step, Words& words) {
  if (!step.empty() || words.empty() || !names_step(chosen_path(path), words[0])) return;
  step = words[0];
  words.erase(words.begin());
}

/// Whether the newest checkpoint of a root has a tensor of this name, which then is no step.
bool is_tensor(const std::string& root, const std::string& name) {
  if (!holds_steps(root)) return false;
  const CheckpointReader reader(resolve_checkpoint(root), {.pin = false});
  return std::ranges::find(reader.tensors(), name, &TensorInfo::name) != reader.tensors().end();
}

void choose_for_patterns(std::string& path, std::string& step, Words& patterns) {
  const bool may_name = !patterns.empty() && names_step(chosen_path(path), patterns[0]);
  if (may_name && !is_tensor(path, patterns[0])) take_step(path, step, patterns);
  choose(path, step);
}

/// Of a root and words after it that mean steps. Throws for a word that means none.
Words paths_of_steps(std::string_view command, const std::string& root, const Words& words) {
  Words all{root};
  all.insert(all.end(), words.begin(), words.end());
  Words paths = chosen_paths(all);
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

void choose_with_target(std::string_view command, std::string& source, std::string& step,
                        Words& words, std::string& target) {
  if (words.size() > 1) take_step(source, step, words);
  if (words.size() > 1) refuse_word(command, words[1]);
  choose(source, step);
  target = words[0];
}

}  // namespace

void choose_steps(LsOptions& options) { choose(options.root, options.step); }
void choose_steps(VerifyOptions& options) { choose(options.path, options.step); }
void choose_steps(ParityCommandOptions& options) { choose(options.path, options.step); }
void choose_steps(DuOptions& options) { choose(options.path, options.step); }
void choose_steps(BenchRestoreOptions& options) { choose(options.directory, options.step); }

void choose_steps(InspectOptions& options) {
  choose_for_patterns(options.path, options.step, options.patterns);
}

void choose_steps(StatsOptions& options) {
  choose_for_patterns(options.path, options.step, options.patterns);
}

void choose_steps(CatOptions& options) {
  if (options.words.size() > 1) take_step(options.path, options.step, options.words);
  if (options.words.size() == 2 && names_step(chosen_path(options.path), options.words[1])) {
    throw BadUsage(fmt::format("cat: the step stands before the tensor: `shardwise cat {} {} {}`",
                               options.path, options.words[1], options.words[0]));
  }
  if (options.words.size() > 1) refuse_word("cat", options.words[1]);
  choose(options.path, options.step);
  if (!options.words.empty()) options.tensor = options.words[0];
}

void choose_steps(CheckedReshardOptions& options) {
  choose_with_target("reshard", options.source, options.step, options.words, options.target);
}

void choose_steps(ExportOptions& options) {
  choose_with_target("export", options.source, options.step, options.words, options.target);
}

void choose_steps(DiffOptions& options) {
  Words words{options.first};
  words.insert(words.end(), options.words.begin(), options.words.end());
  Words paths = chosen_paths(words);
  if (paths.size() != 2) {
    for (const std::string& path : paths) {
      if (!is_there(path)) existing_root(path);  // throws
    }
    throw BadUsage(
        fmt::format("diff: found {} checkpoint{}, needed two, as in `shardwise diff run 20 30`",
                    paths.size(), paths.size() == 1 ? "" : "s"));
  }
  for (std::string& path : paths) choose(path, options.step);
  options.first = paths[0];
  options.second = paths[1];
}

void choose_steps(RmOptions& options) {
  std::set<std::string> roots;
  for (const std::string& path : paths_of_steps("rm", options.root, options.words)) {
    options.steps.push_back(number_of_step("rm", path));
    roots.insert(root_above(path).string());
  }
  if (roots.size() > 1) {
    throw BadUsage(fmt::format("rm: found steps of {} and {}, needed those of one directory",
                               *roots.begin(), *roots.rbegin()));
  }
  options.root = *roots.begin();
}

void choose_steps(PinOptions& options) {
  if (options.words.size() == 1 && names_step(chosen_path(options.root), options.words[0])) {
    throw BadUsage(fmt::format("pin: name is required, as in `shardwise pin {} {} best`",
                               options.root, options.words[0]));
  }
  const Words steps(options.words.begin(), options.words.end() - 1);
  const Words paths = paths_of_steps("pin", options.root, steps);
  if (paths.size() > 1) refuse_word("pin", steps[0]);
  options.step = number_of_step("pin", paths[0]);
  options.root = root_above(paths[0]).string();
  options.name = options.words.back();
}

}  // namespace shardwise::tools
