#include "shardwise/jobs/detail/save/latest_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/foreign_steps.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/jobs/detail/save/messages.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::jobs_detail {
namespace {

// How often latest() looks again if steps come and go while it looks.
constexpr int kMostLooks = 100;

// The most bytes of an error's text that are sent to another rank.
constexpr std::ptrdiff_t kMostReason = 2000;

// How a rank's part of a restore ended: nothing, or the code of an error and its text.
Bytes ending_of(const Error& error, const Rendezvous& ranks) {
  const std::string text = ranks.size() > 1 ? fmt::format("rank {}: {}", ranks.rank(), error.what())
                                            : std::string(error.what());
  const auto bytes = std::as_bytes(std::span(text));
  Bytes message{static_cast<std::byte>(error.code())};
  message.insert(message.end(), bytes.begin(),
                 bytes.begin() + std::min(std::ssize(bytes), kMostReason));
  return message;
}

ErrorCode code_in(const Bytes& ending) {
  if (ending.front() <= static_cast<std::byte>(ErrorCode::cancelled)) {
    return static_cast<ErrorCode>(ending.front());
  }
  throw Error(ErrorCode::corrupt,
              fmt::format("restore: found {} bytes that say nothing, needed is how a rank's part "
                          "ended",
                          ending.size()));
}

// "step-00000003: it is cut; step-00000002: .."
std::string reasons_of(const std::vector<RejectedStep>& rejected) {
  std::vector<std::string> reasons;
  reasons.reserve(rejected.size());
  for (const RejectedStep& step : rejected) {
    reasons.push_back(fmt::format("{}: {}", step.directory.filename().string(), step.reason));
  }
  return join_few(reasons, reasons.size());
}

}  // namespace

std::string LatestSteps::why_invalid(const StepName& name) const {
  try {
    const std::filesystem::path directory = root_ / to_string(name);
    if (has_parts_) {  // which has some of its files only
      return why_not_step(name, read_manifest(open_directory(files_, directory)).step);
    }
    return why_not_step(name, check_readable(files_, directory));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return e.what();
  }
}

std::optional<StepName> LatestSteps::find_valid(std::int64_t step) const {
  std::optional<StepName> there;
  for (const StepName& name : run_names(files_, root_).own) {
    if (name.step == step) there = name;
  }
  if (!there) return {};
  const std::string reason = why_invalid(*there);
  if (reason.empty()) return there;
  throw not_skipped(root_ / to_string(*there), reason);
}

std::string LatestSteps::why_not_step(const StepName& name, std::int64_t step) const {
  if (step == name.step) return {};
  return fmt::format("{} is of step {}", (root_ / to_string(name)).string(), step);
}

LatestSteps::Look LatestSteps::look_at(const std::vector<StepName>& names) const {
  Look look;
  for (auto name = names.rbegin(); name != names.rend() && !look.newest; ++name) {
    const DirectoryState before(root_ / to_string(*name));
    std::string reason;
    try {
      reason = why_invalid(*name);
    } catch (const Error& e) {
      throw Error(e, fmt::format("find the latest checkpoint in {}: {} cannot be read: {}",
                                 root_.string(), to_string(*name), e.what()));
    }
    if (reason.empty()) {
      look.newest = Step{name->step, name->generation, root_ / to_string(*name)};
      continue;
    }
    const DirectoryState now(root_ / to_string(*name));
    // In a bucket a generation's keys are written once.
    look.changed = look.changed || (!in_bucket(root_) && (!before.exists() || now != before));
    look.rejected.push_back({root_ / to_string(*name), reason});
  }
  return look;
}

std::optional<LatestStep> LatestSteps::find(std::int64_t limit) const {
  RunNames names = names_below(limit);
  for (int looks = 1;; ++looks) {
    Look look = look_at(names.own);
    // Another process may have replaced a step since it was listed: then neither an error nor a
    // valid step says which is the newest.
    RunNames now = names_below(limit);
    if ((look.changed || now.own != names.own) && looks < kMostLooks) {
      names = std::move(now);
      continue;
    }
    if (look.newest) {
      if (limit == kNoLimit) add_foreign(look.newest->step, std::move(now.others), look.rejected);
      return LatestStep{*look.newest, std::move(look.rejected)};
    }
    if (limit == kNoLimit && are_of_others(look.rejected)) refuse_others();
    if (look.rejected.empty()) return std::nullopt;
    throw Error(ErrorCode::corrupt,
                fmt::format("find the latest checkpoint in {}: none of {} is valid; {}",
                            root_.string(), look.rejected.size(), reasons_of(look.rejected)));
  }
}

// True if no damaged step of ours is among them: other libraries name folders "step-100", too.
bool LatestSteps::are_of_others(const std::vector<RejectedStep>& rejected) const {
  return std::ranges::none_of(rejected, [&](const RejectedStep& step) {
    try {
      const std::vector<std::string> names = files_.list(step.directory);
      return std::ranges::find(names, kManifestName) != names.end();
    } catch (const Error&) {
      return false;  // it is no folder
    }
  });
}

// names: those in the root that are no names of steps.
void LatestSteps::add_foreign(std::int64_t step, std::vector<std::string> names,
                              std::vector<RejectedStep>& rejected) const {
  // Other libraries name folders "step-100", too.
  for (const RejectedStep& one : rejected) names.push_back(one.directory.filename().string());
  const ForeignSteps foreign = foreign_steps(files_, root_, names, step);
  if (foreign.names.empty()) return;
  for (RejectedStep& one : rejected) {
    one.is_foreign =
        std::ranges::find(foreign.names, one.directory.filename().string()) != foreign.names.end();
  }
  const std::filesystem::path newest = root_ / foreign.newest;
  std::erase_if(rejected, [&](const RejectedStep& one) { return one.directory == newest; });
  rejected.push_back({newest, "it is " + foreign.is, true});
}

void LatestSteps::refuse_others() const {
  const RunNames names = run_names(files_, root_);
  if (names.own.empty() && !names.aside.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("find the latest checkpoint in {}: all of its steps are set aside, the "
                            "last is {}; needed is one of the run: remove the mark {} to take it "
                            "up, or the steps to begin from nothing",
                            root_.string(), names.aside.back().step,
                            aside_name(to_string(names.aside.back()))));
  }
  const std::string found = foreign_steps(files_, root_).text();
  if (found.empty()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("find the latest checkpoint in {}: it holds no step of Shardwise, but "
                          "{}; a run that is to begin from nothing needs another folder",
                          root_.string(), found));
}

std::optional<LatestStep> LatestSteps::agree(const Rendezvous& ranks, std::int64_t limit) const {
  std::optional<LatestStep> latest;
  const Bytes said = ranks.agree(nullptr, [&](const std::vector<Bytes>&) {
    latest = find(limit);
    if (ranks.size() == 1) return Bytes();
    return encode(latest, latest ? id_of(latest->step.directory) : "");
  });
  if (ranks.size() == 1) return latest;
  std::string id;
  if (ranks.rank() != 0) std::tie(latest, id) = decode_latest(said, root_);
  const auto compare = [&] {
    if (ranks.rank() != 0 && latest && id_of(latest->step.directory) != id) {
      throw Error(ErrorCode::io, fmt::format("find the latest checkpoint: {} is another one for "
                                             "rank {} than for rank 0, needed is one root for "
                                             "all processes, on a file system that they share",
                                             latest->step.directory.string(), ranks.rank()));
    }
    return Bytes();
  };
  ranks.agree(compare, [](const std::vector<Bytes>&) { return Bytes(); });
  return latest;
}

// Which attempt it was; empty if it is not there.
std::string LatestSteps::id_of(const std::filesystem::path& directory) const {
  try {
    return read_manifest(open_directory(files_, directory)).id;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return {};
  }
}

RunNames LatestSteps::names_below(std::int64_t limit) const {
  RunNames names = run_names(files_, root_);
  std::erase_if(names.own, [&](const StepName& name) { return name.step >= limit; });
  return names;
}

std::optional<std::string> restore_step(const Step& step, const Rendezvous& ranks,
                                        const std::function<void(const Step&)>& restore) {
  std::exception_ptr own;
  const auto work = [&] {
    try {
      restore(step);
      return Bytes();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::corrupt) own = std::current_exception();
      return ending_of(e, ranks);
    }
  };
  // The first error that ends the restore on all, or else the first damage.
  const auto first = [](const std::vector<Bytes>& all) {
    auto told = std::ranges::find_if(
        all, [](const Bytes& one) { return !one.empty() && code_in(one) != ErrorCode::corrupt; });
    if (told == all.end()) told = std::ranges::find_if_not(all, &Bytes::empty);
    return told == all.end() ? Bytes() : *told;
  };
  const Bytes said = ranks.agree(work, first);
  if (own) std::rethrow_exception(own);
  if (said.empty()) return {};
  std::string text(reinterpret_cast<const char*>(said.data()) + 1, said.size() - 1);
  if (code_in(said) == ErrorCode::corrupt) return text;
  throw Error(code_in(said), fmt::format("restore {}: {}", step.directory.string(), text));
}

std::optional<LatestStep> restore_newest(const LatestSteps& steps,
                                         const std::filesystem::path& root, const Rendezvous& ranks,
                                         const std::function<void(const Step&)>& restore) {
  std::vector<RejectedStep> rejected;
  const auto none_whole = [&] {
    return fmt::format("restore the latest checkpoint of {}: none of {} is whole; {}",
                       root.string(), rejected.size(), reasons_of(rejected));
  };
  for (std::int64_t limit = LatestSteps::kNoLimit;;) {
    std::optional<LatestStep> found;
    try {
      found = steps.agree(ranks, limit);
    } catch (const Error& e) {
      if (rejected.empty() || e.code() != ErrorCode::corrupt) throw;
      throw Error(ErrorCode::corrupt, fmt::format("{}; newer: {}", e.what(), none_whole()));
    }
    if (!found && rejected.empty()) return std::nullopt;
    if (!found) throw Error(ErrorCode::corrupt, none_whole());
    rejected.insert(rejected.end(), found->rejected.begin(), found->rejected.end());
    const std::optional<std::string> damage = restore_step(found->step, ranks, restore);
    if (!damage) return LatestStep{found->step, std::move(rejected)};
    rejected.push_back({found->step.directory, *damage});
    limit = found->step.step;
  }
}

}  // namespace shardwise::jobs_detail
