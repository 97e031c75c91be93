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

namespace shardwise::jobs_detail {
namespace {

// How often latest() looks again if steps come and go while it looks.
constexpr int kMostLooks = 100;

}  // namespace

Error none_valid(const std::filesystem::path& root, const std::vector<RejectedStep>& rejected) {
  std::vector<std::string> reasons;
  reasons.reserve(rejected.size());
  for (const RejectedStep& step : rejected) {
    reasons.push_back(fmt::format("{}: {}", step.directory.filename().string(), step.reason));
  }
  return Error(ErrorCode::corrupt,
               fmt::format("find the latest checkpoint in {}: none of {} is "
                           "valid; {}",
                           root.string(), rejected.size(), join_few(reasons, reasons.size())));
}

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
    look.changed = look.changed || !before.exists() || now != before;
    look.rejected.push_back({root_ / to_string(*name), reason});
  }
  return look;
}

std::optional<LatestStep> LatestSteps::find(std::int64_t limit) const {
  RunNames names = names_below(limit);
  for (int looks = 1;; ++looks) {
    Look look = look_at(names.own);
    // Another process may have replaced a step since it was listed: then neither an error nor
    // what was found says which is the newest.
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
    throw none_valid(root_, look.rejected);
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

std::optional<LatestStep> LatestSteps::agree(const ProcessGroup& group, std::int64_t limit) const {
  try {
    if (group.rank() == 0) {
      std::optional<LatestStep> latest = find(limit);
      group.broadcast(encode(latest, latest ? id_of(latest->step.directory) : ""));
      group.barrier();
      return latest;
    }
    const auto [latest, id] = decode_latest(group.broadcast({}), root_);
    if (latest && id_of(latest->step.directory) != id) {
      throw Error(ErrorCode::io, fmt::format("find the latest checkpoint: {} is another one for "
                                             "rank {} than for rank 0, needed is one root for "
                                             "all processes, on a file system that they share",
                                             latest->step.directory.string(), group.rank()));
    }
    group.barrier();
    return latest;
  } catch (...) {
    abort_group(group, "");
    throw;
  }
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

namespace {

// How a rank's part of a restore ended.
enum class Outcome : std::uint8_t { restored, corrupt, failed };

// Of what another rank is told.
constexpr std::size_t kMostReason = 2000;

Bytes outcome_message(Outcome outcome, std::string_view reason) {
  const auto text = std::as_bytes(std::span(reason.substr(0, kMostReason)));
  Bytes message(1 + text.size(), static_cast<std::byte>(outcome));
  std::ranges::copy(text, message.begin() + 1);
  return message;
}

// The worst outcome of all ranks, and the reason of the first rank that has it.
std::pair<Outcome, std::string> worst_of(const std::vector<Bytes>& messages) {
  std::pair<Outcome, std::string> worst{Outcome::restored, ""};
  for (std::size_t rank = 0; rank < messages.size(); ++rank) {
    const Bytes& message = messages[rank];
    if (message.empty() || message.size() > kMostReason + 1 ||
        message[0] > static_cast<std::byte>(Outcome::failed)) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format("restore: found {} bytes from rank {} that say nothing, needed is how "
                      "its part ended",
                      message.size(), rank));
    }
    const auto outcome = static_cast<Outcome>(message[0]);
    if (outcome <= worst.first) continue;
    worst = {outcome,
             fmt::format("rank {}: {}", rank,
                         std::string_view(reinterpret_cast<const char*>(message.data()) + 1,
                                          message.size() - 1))};
  }
  return worst;
}

}  // namespace

std::optional<LatestStep> restore_newest(const LatestSteps& steps,
                                         const std::filesystem::path& root,
                                         const ProcessGroup& group,
                                         const std::function<void(const Step&)>& restore) {
  std::vector<RejectedStep> rejected;
  std::int64_t limit = LatestSteps::kNoLimit;
  for (;;) {
    std::optional<LatestStep> found;
    try {
      found = group.size() == 1 ? steps.find(limit) : steps.agree(group, limit);
    } catch (const Error& e) {
      if (rejected.empty() || e.code() != ErrorCode::corrupt) throw;
      throw Error(ErrorCode::corrupt,
                  fmt::format("{}; newer: {}", e.what(), none_valid(root, rejected).what()));
    }
    if (!found && rejected.empty()) return std::nullopt;
    if (!found) throw none_valid(root, rejected);
    rejected.insert(rejected.end(), found->rejected.begin(), found->rejected.end());
    Outcome outcome = Outcome::restored;
    std::string reason;
    std::exception_ptr error;
    try {
      restore(found->step);
    } catch (const Error& e) {
      outcome = e.code() == ErrorCode::corrupt ? Outcome::corrupt : Outcome::failed;
      reason = e.what();
      error = std::current_exception();
    } catch (const std::exception& e) {
      outcome = Outcome::failed;
      reason = e.what();
      error = std::current_exception();
    } catch (...) {
      outcome = Outcome::failed;
      reason = "an exception";
      error = std::current_exception();
    }
    if (group.size() > 1) {
      const auto worst = worst_of(group.all_gather(outcome_message(outcome, reason)));
      if (worst.first == Outcome::failed && outcome != Outcome::failed) {
        throw Error(ErrorCode::cancelled,
                    fmt::format("restore {}: {}", found->step.directory.string(), worst.second));
      }
      std::tie(outcome, reason) = worst;
    }
    if (outcome == Outcome::failed) std::rethrow_exception(error);
    if (outcome == Outcome::restored) return LatestStep{found->step, std::move(rejected)};
    rejected.push_back({found->step.directory, reason});
    limit = found->step.step;
  }
}

}  // namespace shardwise::jobs_detail
