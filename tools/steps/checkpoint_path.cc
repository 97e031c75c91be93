#include "steps/checkpoint_path.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <system_error>

#include "foreign_format.h"
#include "output.h"
#include "places.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/known_format.h"
#include "shardwise/storage/object/bucket_path.h"
#include "usage.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kLatest = "latest", kBest = "best", kStep = "step-";

CheckpointManager manager_of(const fs::path& root) {
  return CheckpointManager(root, {.collect_garbage = false, .warn = [](const std::string&) {}});
}

/// The number in "20", "step-20" or "step-00000020.g2".
std::optional<std::int64_t> step_number(std::string_view word) {
  if (word.starts_with(kStep)) {
    word.remove_prefix(kStep.size());
    word = word.substr(0, word.find_first_not_of("0123456789"));
  }
  return parse_count(word);
}

/// The number in a name; absent if it has none or several.
std::optional<std::int64_t> only_number(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  const std::size_t begin = name.find_first_of(kDigits), end = name.find_last_of(kDigits);
  return begin == name.npos ? std::nullopt : parse_count(name.substr(begin, end + 1 - begin));
}

/// A step in a root of another format, such as step_20 or checkpoint-20 for "20". Empty if there is
/// none, or several may be meant.
fs::path foreign_step(const fs::path& root, std::string_view word) {
  const KnownFormat known = known_format(root);
  if (known.steps.empty() || known.name == "shardwise") return {};
  if (word == kLatest) return root / known.steps.back();
  if (std::ranges::find(known.steps, word) != known.steps.end()) return root / word;
  const std::optional<std::int64_t> number = step_number(word);
  std::vector<std::string_view> found;
  for (const std::string& step : known.steps) {
    if (number && only_number(step) == number) found.push_back(step);
  }
  return found.size() == 1 ? root / found[0] : fs::path();
}

/// Without a slash at its end.
fs::path without_slash(const fs::path& path) {
  if (in_bucket(path)) return path.has_filename() ? path : path.parent_path();
  const fs::path whole = path.lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

fs::path newest_step(const fs::path& root, const std::string& path) {
  const CheckpointManager manager = manager_of(root);
  if (manager.steps().empty() && !foreign_format(root).empty()) refuse_without_steps(root, path);
  const auto latest = manager.latest();
  if (!latest) refuse_without_steps(root, path);
  for (const RejectedStep& step : latest->rejected) {
    print_note(
        fmt::format("passed over {}: {}", as_given(root, step.directory).string(), step.reason));
  }
  return as_given(root, latest->step.directory);
}

}  // namespace

bool holds_steps(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  return std::ranges::any_of(names, [](const std::string& name) { return is_step(name); });
}

std::string step_path(const std::string& path, const std::string& step) {
  const fs::path root = root_of_steps("step " + step, path);
  // A root of another format may have a folder for each step.
  if (!holds_steps(root) && is_there(root / step)) return (root / step).string();
  if (const fs::path other = foreign_step(root, step); !other.empty()) return other.string();
  if (step == kLatest) return newest_step(root, path).string();
  const CheckpointManager manager = manager_of(root);
  if (manager.steps().empty()) refuse_without_steps(root, path);
  std::optional<std::int64_t> number = step_number(step);
  const std::vector<NamedStep> pinned = number ? std::vector<NamedStep>() : manager.pins().list();
  std::vector<std::string_view> names;
  for (const NamedStep& named : pinned) {
    if (named.name == step) number = named.step;
    names.push_back(named.name);
  }
  if (number) return as_given(root, manager.step(*number).directory).string();
  if (step == kBest) {
    throw BadUsage(fmt::format(
        "{}@best: whether a small or a large metric is best is not stored; `shardwise ls {}` shows "
        "the metrics of each step",
        path, path));
  }
  throw Error(ErrorCode::no_such_name,
              fmt::format("{}: found the step \"{}\", needed a number, latest or a name that pins "
                          "a step{}{}",
                          path, step, names.empty() ? "" : ": ", fmt::join(names, ", ")));
}

std::string chosen_path(const std::string& path) {
  if (is_there(path)) {  // without a slash at its end
    const std::size_t end = path.find_last_not_of('/');
    return end == std::string::npos ? path : path.substr(0, end + 1);
  }
  if (path.empty()) return path;
  const fs::path whole = without_slash(path);
  const std::string name = whole.filename().string();
  const fs::path above = root_above(whole);
  if (const std::size_t at = name.rfind('@'); at != std::string::npos && at + 1 < name.size()) {
    const fs::path root = at > 0 ? whole.parent_path() / name.substr(0, at) : above;
    if (is_folder(root)) return step_path(root.string(), name.substr(at + 1));
  }
  const bool is_word = step_number(name) || name == kLatest || name == kBest;
  const bool names_step = is_word && !is_checkpoint(above) &&
                          (holds_steps(above) || !foreign_step(above, name).empty());
  return names_step ? step_path(above.string(), name) : path;
}

bool names_step(const std::string& root, const std::string& word) {
  if (is_there(word) || is_checkpoint(root) || !is_folder(root)) return false;
  if (!foreign_step(root, word).empty()) return true;
  if (!holds_steps(root)) return step_number(word) && is_there(fs::path(root) / word);
  const auto is_pin = [&] {
    const std::vector<NamedStep> pinned = manager_of(root).pins().list();
    return std::ranges::find(pinned, word, &NamedStep::name) != pinned.end();
  };
  return step_number(word) || word == kLatest || is_pin();
}

std::vector<std::string> steps_of(const std::string& root) {
  std::vector<std::string> names;
  if (is_checkpoint(root) || !holds_steps(root)) return names;
  const CheckpointManager manager = manager_of(root);
  for (const Step& step : manager.steps()) names.push_back(std::to_string(step.step));
  for (const NamedStep& named : manager.pins().list()) names.push_back(named.name);
  return names;
}

std::vector<std::string> chosen_paths(std::span<const std::string> words) {
  std::vector<std::string> paths;
  std::string root;
  bool has_step = false;
  for (const std::string& word : words) {
    if (!root.empty() && names_step(root, word)) {
      if (!has_step) paths.pop_back();
      has_step = true;
      paths.push_back(step_path(root, word));
      continue;
    }
    paths.push_back(chosen_path(word));
    has_step = !is_there(word) && is_there(paths.back());  // "run@20 30"
    root = has_step ? root_above(paths.back()).string() : word;
  }
  return paths;
}

std::int64_t number_of_step(std::string_view command, const std::string& path) {
  const fs::path directory = without_slash(path);
  const std::optional<std::int64_t> number = step_number(directory.filename().string());
  if (number && is_step(directory)) return *number;
  if (!holds_steps(existing_root(path))) refuse_without_steps(directory, path);
  throw BadUsage(fmt::format("{0}: step is required, as in `shardwise {0} {1} 20`", command, path));
}

fs::path existing_root(const std::string& path) {
  if (path.empty()) {
    throw Error(ErrorCode::not_found,
                "the path is \"\", needed is a checkpoint, or a directory of checkpoints");
  }
  if (!is_there(path)) {
    throw Error(ErrorCode::not_found, fmt::format("{} does not exist", path));
  }
  if (!is_folder(path)) {
    const std::string what = foreign_format(path);
    throw Error(ErrorCode::not_found,
                fmt::format("{} is not a directory, needed is a checkpoint, or a directory of "
                            "checkpoints{}",
                            path, what.empty() ? "" : "; it seems to be " + what));
  }
  return path;
}

fs::path root_above(const fs::path& checkpoint) {
  const fs::path step = without_slash(checkpoint);
  return step.has_parent_path() ? step.parent_path() : ".";
}

fs::path root_of_steps(std::string_view command, const std::string& path) {
  if (fs::path root = existing_root(path); !names_checkpoint(root)) return root;
  throw BadUsage(fmt::format("{}: {} is a checkpoint; needed is the directory that holds it, {}",
                             command, path, root_above(path).string()));
}

void refuse_without_steps(const fs::path& root, const std::string& path) {
  std::string more;
  if (const std::string what = foreign_format(root); !what.empty()) {
    more = "; it seems to be " + what;
  } else if (const fs::path inside = root_inside(root); !inside.empty()) {
    more = fmt::format("; {} in it does", inside.string());
  } else if (const std::vector<fs::path> named = named_checkpoints(root); !named.empty()) {
    more = fmt::format(" with the name of a step; {} is a checkpoint", named.front().string());
  }
  throw Error(ErrorCode::not_found, fmt::format("{} holds no committed checkpoint{}", path, more));
}

bool names_checkpoint(const fs::path& path) {
  if (is_checkpoint(path)) return true;
  if (!is_step(path)) return false;
  // Without a manifest it is damaged, or another format's.
  if (!foreign_format(path).empty()) refuse_without_steps(path, path.string());
  return true;
}

std::vector<fs::path> each_checkpoint(const std::string& path) {
  const fs::path given = existing_root(path);
  if (names_checkpoint(given)) return {given};
  const CheckpointManager manager = manager_of(given);
  std::vector<fs::path> directories;
  for (const Step& step : manager.steps()) directories.push_back(as_given(given, step.directory));
  std::ranges::copy(named_checkpoints(given), std::back_inserter(directories));
  if (directories.empty()) refuse_without_steps(given, path);
  refuse_others(manager);
  return directories;
}

void refuse_others(const CheckpointManager& manager) {
  try {
    static_cast<void>(manager.latest());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported) throw;
  }
}

fs::path resolve_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  const fs::path root = existing_root(path);
  if (names_checkpoint(root)) {
    throw Error(ErrorCode::not_found,
                fmt::format("{} holds no manifest.json: not a committed checkpoint", path));
  }
  return newest_step(root, path);
}

}  // namespace shardwise::tools
