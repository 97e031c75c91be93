#include "shardwise/checkpoint/detail/root/marks/set_aside.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "shardwise/checkpoint/detail/root/listing.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

/// The steps that have a mark among these names in a root.
std::set<std::string> marked_in(const std::vector<std::string>& names) {
  std::set<std::string> marked;
  for (const std::string& name : names) {
    const std::optional<HiddenName> hidden = parse_hidden_name(name);
    if (hidden && hidden->kind == HiddenKind::aside) marked.insert(hidden->stem);
  }
  return marked;
}

}  // namespace

std::vector<StepName> RunNames::all() const {
  std::vector<StepName> names;
  std::ranges::merge(own, aside, std::back_inserter(names));
  return names;
}

RunNames run_names(FileSystem& file_system, const std::filesystem::path& root) {
  const std::vector<std::string> names = names_in_root(file_system, root);
  const std::set<std::string> marked = marked_in(names);
  RunNames found;
  for (const std::string& name : names) {
    const std::optional<StepName> step = parse_step_name(name);
    if (step) (marked.contains(name) ? found.aside : found.own).push_back(*step);
    if (!step && !name.starts_with('.')) found.others.push_back(name);
  }
  for (const std::string& step : marked) {
    if (std::ranges::find(names, step) == names.end()) found.gone.push_back(*parse_step_name(step));
  }
  for (auto* const list : {&found.own, &found.aside, &found.gone}) std::ranges::sort(*list);
  return found;
}

void set_aside(FileSystem& file_system, const std::filesystem::path& root,
               std::span<const StepName> names) {
  for (const StepName& name : names) {
    try {
      file_system.create(root / aside_name(to_string(name)), Caching::cached)->close();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::already_exists) throw;  // another process was faster
    }
    file_system.sync_directory(root);
  }
}

RunNames remove_stale_marks(FileSystem& file_system, const std::filesystem::path& root) {
  RunNames names = run_names(file_system, root);
  for (const StepName& name : names.gone) file_system.remove(root / aside_name(to_string(name)));
  return names;
}

}  // namespace shardwise::detail
