#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise {
class CheckpointManager;
}

namespace shardwise::tools {

// Which checkpoint words mean. `run@20`, `run/20`, `run/step-20` and the words `run 20` mean step
// 20 of the root `run`; in place of a number stands `latest` or a name that pins a step. A file or
// folder that has such a name is meant itself.

/// True if a folder has an entry with a step's name.
bool holds_steps(const std::filesystem::path& folder);

/// The path that words name: a step's directory, or the path itself. Throws no_such_name for a step
/// that the root does not have, BadUsage.
std::string chosen_path(const std::string& path);

/// A step's directory, below the root at `path` as it is given. Throws as chosen_path().
std::string step_path(const std::string& path, const std::string& step);

/// True if a word after a root means one of its steps.
bool names_step(const std::string& root, const std::string& word);

/// The numbers of a root's steps, and the names that pin some; none for another path.
std::vector<std::string> steps_of(const std::string& root);

/// The paths of words such as `run 20 30`, `run@20 other` or `run other 30`. Throws as
/// chosen_path().
std::vector<std::string> chosen_paths(std::span<const std::string> words);

/// The number of a step's directory, as chosen_path() gives it. Throws BadUsage for another path.
std::int64_t number_of_step(std::string_view command, const std::string& path);

/// The checkpoint directory that a path means: itself if it holds a manifest, else the newest valid
/// step below it. Steps that had to be passed over are named on stderr.
std::filesystem::path resolve_checkpoint(const std::string& path);

/// The checkpoint that a path is, or all steps of a directory and its checkpoints of other names.
/// Throws not_found without any, and as refuse_others().
std::vector<std::filesystem::path> each_checkpoint(const std::string& path);

/// True if a path is a checkpoint, also a damaged one, not a root: it holds a manifest or has a
/// step's name. Throws not_found if such a name is of another format's folder.
bool names_checkpoint(const std::filesystem::path& path);

/// A directory of steps, for a command that needs one. Throws BadUsage for a checkpoint in place of
/// the directory that holds it, which is most likely a slip, and as existing_root().
std::filesystem::path root_of_steps(std::string_view command, const std::string& path);

/// A root to look into. Throws not_found if it is missing or no directory: nothing is created.
std::filesystem::path existing_root(const std::string& path);

/// The directory that holds a checkpoint: "." for "step-00000020".
std::filesystem::path root_above(const std::filesystem::path& checkpoint);

/// Throws not_found for a root without a step, with a guess at its content.
[[noreturn]] void refuse_without_steps(const std::filesystem::path& root, const std::string& path);

/// Throws unsupported, with the command that imports them, if folders with names of steps are all
/// other libraries'.
void refuse_others(const CheckpointManager& manager);

/// A step's directory as the user named its root: the library makes it absolute.
inline std::filesystem::path as_given(const std::filesystem::path& root,
                                      const std::filesystem::path& directory) {
  return root / directory.filename();
}

}  // namespace shardwise::tools
