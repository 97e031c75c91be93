#include "shardwise/jobs/detail/save/save_place.h"

#include <fmt/format.h>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/record/save_halves.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {

void SharedPlace::begin(AttemptNotice& notice) {
  attempt_ = make_attempt();
  notice.id = attempt_->id();
  notice.directory = attempt_->directory().filename().string();
  notice.is_reused = attempt_->is_reused();
}

AttemptDirectory SharedPlace::enter(const Rendezvous& ranks, const AttemptNotice& notice) {
  directory_ = root_ / notice.directory;
  if (ranks.rank() != 0 && !is_there()) {
    throw Error(ErrorCode::io,
                fmt::format("{}, which rank 0 has made, is not there for rank {}, needed is one "
                            "root for all processes, on a file system that they share",
                            directory_.string(), ranks.rank()));
  }
  return {directory_, notice.is_reused, ranks.size() > 1};
}

std::filesystem::path SharedPlace::skip(int /*rank*/, const AttemptNotice& notice) const {
  return root_ / notice.directory;
}

bool SharedPlace::is_there() const {
  try {
    static_cast<void>(file_system_.open_directory(directory_));
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;
  }
}

void SharedPlace::publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
                          std::span<const std::byte> index, Existing existing) {
  publish_parts(file_system_, *attempt_, manifest, stats, index, existing, ranks.size() > 1,
                [&] { ranks.check(); });
}

void SharedPlace::finish(const Rendezvous& /*ranks*/, SaveStats& stats, Existing /*existing*/) {
  stats.directory = root_ / stats.directory.filename();
}

std::optional<std::filesystem::path> SharedPlace::find_committed(const std::string& id) const {
  try {
    for (const std::string& name : names()) {
      const std::filesystem::path path = root_ / name;
      if (read_manifest(open_directory(file_system_, path)).id == id) return path;
    }
  } catch (const Error&) {
    // Then it is not known, and the first error is told.
  }
  return {};
}

std::optional<std::string> SharedStep::find_valid() const {
  const auto there = LatestSteps(file_system_, root_, false).find_valid(step_);
  return there ? std::optional(to_string(*there)) : std::nullopt;
}

std::unique_ptr<Attempt> SharedStep::make_attempt() {
  return std::make_unique<Attempt>(file_system_, root_, step_, leftovers_, spare_);
}

std::vector<std::string> SharedStep::names() const {
  std::vector<std::string> names;
  for (const StepName& name : committed_names(file_system_, root_)) {
    if (name.step == step_) names.push_back(to_string(name));
  }
  return names;
}

}  // namespace shardwise::jobs_detail
