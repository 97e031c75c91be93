#include "shardwise/jobs/detail/save/group_save.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "shardwise/checkpoint/detail/lanes/lanes.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/read/written_files.h"
#include "shardwise/checkpoint/detail/record/record.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/part.h"
#include "shardwise/jobs/detail/save/file_transfer.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/jobs/detail/save/messages.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

/// Gives all ranks rank 0's bytes, from rank to rank: each sends them on to a few others, so that
/// no rank sends them to all.
Bytes spread(const ProcessGroup& group, Bytes bytes) {
  for (std::int64_t have = 1; have < group.size(); have *= 2) {
    const std::int64_t rank = group.rank();
    std::vector<ProcessGroup::Outgoing> outgoing;
    std::vector<int> from;
    if (rank < have && rank + have < group.size()) {
      outgoing.push_back({static_cast<int>(rank + have), bytes});
    }
    if (rank >= have && rank < 2 * have) from.push_back(static_cast<int>(rank - have));
    std::vector<Bytes> heard = group.exchange(std::move(outgoing), from);
    if (!heard.empty()) bytes = std::move(heard.front());
  }
  return bytes;
}

/// One save of a group, on one of its ranks.
class GroupSave {
 public:
  GroupSave(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
            const SaveOptions& options)
      : context_(context), group_(group), step_(step), options_(options) {
    if (!is_shared()) return;
    // So that who computes or waits for the disk learns that it is in vain.
    options_.progress = [this, own = options.progress,
                         next = Clock::now()](const Progress& progress) mutable {
      if (const auto now = Clock::now(); now >= next) {
        group_.check();
        next = now + kBetweenChecks;
      }
      if (own) own(progress);
    };
  }

  SaveStats run(std::vector<TensorSource> sources) {
    SaveStats stats =
        group_.rank() == 0 ? coordinate(std::move(sources)) : take_part(std::move(sources));
    stats.plan_seconds = plan_seconds_;
    stats.write_seconds = write_seconds_;
    if (context_.earlier != nullptr && !stats.skipped) {
      *context_.earlier = {stats.directory, std::move(files_)};
    }
    return stats;
  }

 private:
  /// Rank 0: makes the attempt, gathers what the others say, commits.
  SaveStats coordinate(std::vector<TensorSource> sources) {
    if (options_.existing == Existing::skip) {
      if (const auto there = valid_step()) return skip(to_string(*there));
    }
    Attempt attempt(context_.file_system, context_.root, step_, context_.leftovers,
                    &context_.spare);
    try {
      return coordinate(attempt, std::move(sources));
    } catch (...) {
      // Before the attempt is removed: the others would only see that it is not there.
      abort_group(group_, what());
      throw;
    }
  }

  SaveStats coordinate(Attempt& attempt, std::vector<TensorSource> sources) {
    notice_ = {.id = attempt.id(),
               .directory = is_local() ? "" : attempt.directory().filename().string(),
               .is_reused = attempt.is_reused(),
               .terms = terms()};
    group_.broadcast(encode(notice_));
    const SavePlan plan = plan_part(std::move(sources));
    std::vector<WrittenShardFile> written;
    std::vector<std::byte> index;
    // The index needs the shard files' names only, so it is made while the files are written.
    run_both([&] { written = write(directory_of(attempt), plan); },
             [&] { index = make_index(plan); });

    auto [manifest, stats] = combine(plan, written, index);
    manifest.id = attempt.id();
    manifest.step = step_;
    manifest.user_json = options_.user_json;
    manifest.objects_json = with_metrics(options_.objects_json, options_.metrics);
    if (is_local()) {
      const std::string text = checked_manifest(manifest);
      stats.file_bytes += text.size();
      spread(group_, encode(SaveOutcome{.lists_wanted = {}, .stats = stats, .manifest = text}));
      return commit_locally(attempt, manifest, text, stats);
    }
    if (is_shared()) {  // those that others say they have written, too
      check_written_files(context_.file_system, attempt.directory(), manifest);
    }
    clear_unlisted(attempt, manifest);
    stats.file_bytes += complete(context_.file_system, attempt.directory(), manifest, index);
    group_.check();
    stats.directory = attempt.publish(options_.existing);
    try {
      group_.broadcast(encode(SaveOutcome{.lists_wanted = {}, .stats = stats, .manifest = {}}));
    } catch (const Error&) {
      // It is committed; a rank that does not hear of it finds it on the disk.
    }
    return stats;
  }

  /// The other ranks: write their part.
  SaveStats take_part(std::vector<TensorSource> sources) {
    notice_ = decode_notice(group_.broadcast({}));
    if (const std::string found = difference(notice_.terms, terms(), group_.rank());
        !found.empty()) {
      throw Error(ErrorCode::invalid_argument, found);
    }
    if (notice_.skipped) return skipped(is_local() ? own_step() : notice_.directory);
    if (!is_local()) return take_part_in_shared(std::move(sources));
    Attempt attempt(context_.file_system, context_.root, step_, context_.leftovers,
                    &context_.spare);
    const SavePlan plan = plan_part(std::move(sources));
    tell(plan, write(directory_of(attempt), plan));
    // Only rank 0 has it so far: which lists it wants, and then the manifest.
    SaveOutcome outcome = decode_outcome(group_.broadcast({}), group_.size());
    if (!outcome.lists_wanted.empty()) {
      group_.exchange(list_if_wanted(plan, outcome.lists_wanted), {});
    }
    outcome = decode_outcome(spread(group_, {}), group_.size());
    const Manifest manifest = parse_manifest(outcome.manifest, kManifestName);
    return commit_locally(attempt, manifest, outcome.manifest, outcome.stats);
  }

  SaveStats take_part_in_shared(std::vector<TensorSource> sources) {
    const AttemptDirectory directory{context_.root / notice_.directory, notice_.is_reused, true};
    SavePlan plan;
    std::vector<WrittenShardFile> written;
    try {
      check_is_there(directory.path);
      plan = plan_part(std::move(sources));
      written = write(directory, plan);
      context_.file_system.sync_directory(directory.path);
    } catch (const Error&) {
      // Rank 0 may have removed it because the save has failed elsewhere.
      if (!is_there(directory.path)) group_.check(kLeastPatience);
      throw;
    }
    try {
      tell(plan, written);
      SaveOutcome outcome = decode_outcome(group_.broadcast({}), group_.size());
      if (!outcome.lists_wanted.empty()) {
        group_.exchange(list_if_wanted(plan, outcome.lists_wanted), {});
        outcome = decode_outcome(group_.broadcast({}), group_.size());
      }
      outcome.stats.directory = context_.root / outcome.stats.directory;
      return outcome.stats;
    } catch (const Error&) {
      // The message may be lost that says that it was committed.
      if (const auto committed = find_committed(notice_.id)) {
        SaveStats stats;
        stats.directory = *committed;
        stats.logical_bytes = plan.logical_bytes;
        return stats;
      }
      throw;
    }
  }

  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLeastPatience{1000}, kBetweenChecks{100};

  std::optional<StepName> valid_step() const {
    return LatestSteps(context_.file_system, context_.root, is_local()).find_valid(step_);
  }

  /// Another rank's part of a step that rank 0 skips, in a root of its own.
  std::string own_step() const {
    if (const auto there = valid_step()) return to_string(*there);
    throw not_skipped(context_.root / to_string(StepName{step_}),
                      fmt::format("rank 0 has it, rank {} has not", group_.rank()));
  }

  /// Rank 0: tells the others that nothing is written.
  SaveStats skip(const std::string& there) {
    group_.broadcast(encode(AttemptNotice{
        .id = to_hex(Hash128{}), .directory = there, .skipped = true, .terms = terms()}));
    return skipped(there);
  }

  // On all ranks at once: one whose terms differ ends the save of all.
  SaveStats skipped(const std::string& there) const {
    group_.barrier();
    SaveStats stats;
    stats.directory = context_.root / there;
    stats.skipped = true;
    return stats;
  }

  std::string what() const { return fmt::format("save step {}", step_); }
  bool is_shared() const { return group_.size() > 1; }

  SavePlan plan_part(std::vector<TensorSource> sources) {
    const Stopwatch watch;
    const WriterMap writers =
        writers_for(sources, options_.writers * group_.size(), context_.devices);
    SavePlan plan = plan_save(std::move(sources), options_.codec, context_.executor, writers,
                              writers_of(group_.rank(), options_.writers));
    std::replace(plan.efforts.begin(), plan.efforts.end(), Effort::huffman_only, context_.huffman);
    plan_seconds_ = watch.seconds();
    return plan;
  }

  // What this process writes of the shard files.
  std::vector<WrittenShardFile> write(const AttemptDirectory& directory, const SavePlan& plan) {
    const Stopwatch watch;
    const PartTools tools{context_.file_system, context_.executor, context_.pool};
    std::vector<WrittenShardFile> written = write_part(
        tools, directory, plan,
        {.codec = options_.codec,
         .memory_budget_bytes = options_.memory_budget_bytes,
         .progress = options_.progress},
        context_.earlier == nullptr ? FindEarlier() : [this] { return earlier(); });
    for (const WrittenShardFile& file : written) files_.push_back(file.entry);
    write_seconds_ = watch.seconds();
    return written;
  }

  const EarlierStep& earlier() const {
    if (context_.earlier->directory.empty()) *context_.earlier = context_.find_earlier();
    return *context_.earlier;
  }

  bool is_local() const { return context_.local_roots.has_value(); }

  SaveTerms terms() const {
    return terms_of(step_, options_, context_.devices, context_.local_roots,
                    context_.most_failed_saves);
  }

  AttemptDirectory directory_of(const Attempt& attempt) const {
    return {attempt.directory(), attempt.is_reused(), is_shared() && !is_local()};
  }

  // Every rank, if each has a root of its own: gives and takes copies, looks at all its files, and
  // commits when all have come so far. If one of them cannot, the others take back what they have
  // committed.
  SaveStats commit_locally(Attempt& attempt, const Manifest& manifest, std::string_view text,
                           SaveStats stats) const {
    copy_to_others(attempt, manifest);
    check_own_directory(attempt, manifest);
    clear_unlisted(attempt, manifest);
    write_manifest(context_.file_system, attempt.directory(), text);
    group_.barrier();
    stats.directory = attempt.publish(options_.existing);
    try {
      group_.barrier();
    } catch (const Error&) {
      remove_checkpoint(context_.file_system, context_.root,
                        *parse_step_name(stats.directory.filename().string()));
      throw;
    }
    return stats;
  }

  // The rank that writes a file, then those that get copies of it.
  std::vector<int> holders_of(const FileEntry& file) const {
    std::vector<int> ranks{static_cast<int>(file.writer / options_.writers)};
    for (int copy = 1; copy <= context_.local_roots->copies; ++copy) {
      ranks.push_back((ranks.front() + copy * context_.local_roots->processes_per_host) %
                      group_.size());
    }
    return ranks;
  }

  // Each process's files, with what they link, to those that get copies, and have not got them from
  // the step before. Throws io if one does not arrive here.
  void copy_to_others(const Attempt& attempt, const Manifest& manifest) const {
    std::vector<FileTransfer> transfers;
    for (const FileEntry& file : manifest.files) {
      const std::vector<int> ranks = holders_of(file);
      for (std::size_t copy = 1; copy < ranks.size(); ++copy) {
        transfers.push_back({ranks.front(), ranks[copy], file.name, file.bytes});
      }
    }
    if (transfers.empty()) return;
    const std::vector<FailedTransfer> failed =
        transfer_shard_files(
            group_, context_.file_system, manifest, transfers,
            [&](const std::string& name) { return attempt.directory() / name; },
            attempt.directory(),
            context_.earlier == nullptr ? std::filesystem::path() : earlier().directory)
            .failed;
    if (failed.empty()) return;
    const FileTransfer& transfer = transfers[failed.front().number];
    throw Error(ErrorCode::io, fmt::format("copy {} from rank {} to rank {}: {}", transfer.name,
                                           transfer.from, transfer.to, failed.front().problem));
  }

  // This process's own files and the copies that it has got.
  void check_own_directory(const Attempt& attempt, const Manifest& manifest) const {
    std::vector<std::size_t> numbers;
    for (std::size_t f = 0; f < manifest.files.size(); ++f) {
      const std::vector<int> ranks = holders_of(manifest.files[f]);
      if (std::ranges::find(ranks, group_.rank()) != ranks.end()) numbers.push_back(f);
    }
    check_written_files(context_.file_system, attempt.directory(), manifest, numbers);
  }

  void check_is_there(const std::filesystem::path& directory) const {
    if (is_there(directory)) return;
    throw Error(ErrorCode::io,
                fmt::format("{}, which rank 0 has made, is not there for rank {}, needed is one "
                            "root for all processes, on a file system that they share",
                            directory.string(), group_.rank()));
  }

  bool is_there(const std::filesystem::path& directory) const {
    try {
      static_cast<void>(context_.file_system.open_directory(directory));
      return true;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;
      return false;
    }
  }

  RecordHead own_head(const SavePlan& plan, std::span<const WrittenShardFile> written) const {
    return head_of(run_of(notice_.id), plan, writers_of(group_.rank(), options_.writers), written);
  }

  // Another rank's record: its head goes to rank 0 at once, its list only if that asks for it.
  void tell(const SavePlan& plan, std::span<const WrittenShardFile> written) {
    RecordHead head = own_head(plan, written);
    head.list = hash_of(encode(list_of(plan)));
    group_.gather(encode(head));
  }

  // Rank 0: what all processes have written, together.
  std::pair<Manifest, SaveStats> combine(const SavePlan& plan,
                                         std::span<const WrittenShardFile> written,
                                         std::vector<std::byte>& index) const {
    std::vector<RecordHead> heads{own_head(plan, written)};
    std::vector<NumberedList> lists;
    lists.push_back({0, list_of(plan)});
    if (!is_shared()) return merge(heads, std::move(lists), "rank");
    heads.front().list = hash_of(encode(lists.front().list));
    const std::vector<Bytes> messages = group_.gather(encode(heads.front()));
    for (std::size_t rank = 1; rank < messages.size(); ++rank) {
      heads.push_back(head_of_rank(messages[rank], static_cast<int>(rank)));
    }
    std::vector<int> wanted;
    for (const std::size_t rank : first_with_each_list(heads)) {
      if (rank > 0) wanted.push_back(static_cast<int>(rank));
    }
    if (!wanted.empty() || is_local()) {
      group_.broadcast(encode(SaveOutcome{.lists_wanted = wanted, .stats = {}, .manifest = {}}));
    }
    if (!wanted.empty()) {
      const std::vector<Bytes> heard = group_.exchange({}, wanted);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        lists.push_back({static_cast<std::size_t>(wanted[i]), decode_list(heard[i])});
      }
    }
    auto merged = merge(heads, std::move(lists), "rank");
    if (!wanted.empty() && !is_local()) {
      index = build_useful_index(merged.first.writers, merged.first.tensors);
    }
    return merged;
  }

  // Throws invalid_argument if it is of another save, or of writers that are not the rank's.
  RecordHead head_of_rank(const Bytes& message, int rank) const {
    RecordHead head = decode_head(message);
    const WriterRange its = writers_of(rank, options_.writers);
    if (head.run == run_of(notice_.id) && head.first_writer == its.first &&
        std::ssize(head.files) == its.end - its.first) {
      return head;
    }
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("found a record of rank {} for {} writers from writer {} on, needed one "
                    "of this save for {} from writer {} on",
                    rank, head.files.size(), head.first_writer, its.end - its.first, its.first));
  }

  std::vector<std::byte> make_index(const SavePlan& plan) const {
    if (is_local()) return {};
    return build_useful_index(plan.writers, plan.tensors);
  }

  void clear_unlisted(const Attempt& attempt, const Manifest& manifest) const {
    if (is_shared() && attempt.is_reused()) {
      remove_unlisted(attempt.directory(), manifest);
    }
  }

  // A spare holds no linked files: its other files that no process has written go.
  void remove_unlisted(const std::filesystem::path& directory, const Manifest& manifest) const {
    for (const std::string& name : context_.file_system.list(directory)) {
      const bool listed = std::ranges::binary_search(manifest.files, name, {}, &FileEntry::name) ||
                          name.starts_with(kLinkedPrefix);
      if (!listed) remove_tree(context_.file_system, directory / name);
    }
  }

  std::vector<ProcessGroup::Outgoing> list_if_wanted(const SavePlan& plan,
                                                     std::span<const int> wanted) const {
    if (std::ranges::find(wanted, group_.rank()) == wanted.end()) return {};
    return {{0, encode(list_of(plan))}};
  }

  // The checkpoint that this attempt has become; nothing if it has not.
  std::optional<std::filesystem::path> find_committed(const std::string& id) const {
    try {
      for (const StepName& name : committed_names(context_.file_system, context_.root)) {
        if (name.step != step_) continue;
        const std::filesystem::path path = context_.root / to_string(name);
        if (read_manifest(open_directory(context_.file_system, path)).id == id) return path;
      }
    } catch (const Error&) {
      // Then it is not known, and the first error is told.
    }
    return {};
  }

  const SaveContext& context_;
  const ProcessGroup& group_;
  const std::int64_t step_;
  SaveOptions options_;
  AttemptNotice notice_;
  std::vector<FileEntry> files_;  // that this process has written
  double plan_seconds_ = 0, write_seconds_ = 0;
};

}  // namespace

void check_save(std::int64_t step, std::span<const TensorSource> tensors,
                const SaveOptions& options, int threads, int processes) {
  if (step < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: step is {}, needed 0 or more", step));
  }
  if (options.writers < 1 || options.writers > kMostWriters / processes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: writers is {}, needed 1 to {}", options.writers,
                            kMostWriters / processes));
  }
  check_sources(tensors);
  for (const TensorSource& tensor : tensors) {
    if (!tensor.boxes || options.writers == 1) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: tensor {:?} has boxes, with {} writers: needed is 1",
                            tensor.name, options.writers));
  }
  check_json({.user_json = options.user_json,
              .objects_json = options.objects_json,
              .metrics = options.metrics});
  static_cast<void>(staging_sizes(options.memory_budget_bytes, threads, 0));
}

void abort_group(const ProcessGroup& group, const std::string& what) {
  try {
    throw;
  } catch (const CallerError& e) {
    try {
      std::rethrow_exception(e.cause);
    } catch (...) {
      abort_group(group, what);
    }
  } catch (const std::exception& e) {
    group.abort(what.empty() ? e.what() : fmt::format("{}: {}", what, e.what()));
  } catch (...) {
    group.abort(fmt::format("{}: a source threw something that is no exception", what));
  }
}

SaveStats run_save(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
                   std::vector<TensorSource> sources, const SaveOptions& options) {
  try {
    GroupSave save(context, group, step, options);
    return save.run(std::move(sources));
  } catch (const CallerError& e) {
    abort_group(group, fmt::format("save step {}", step));
    std::rethrow_exception(e.cause);
  } catch (const Error& e) {
    context.spare.drop();  // that it was there may be the reason
    abort_group(group, fmt::format("save step {}", step));
    throw Error(e, fmt::format("save step {}: {}", step, e.what()));
  } catch (...) {
    abort_group(group, fmt::format("save step {}", step));
    throw;
  }
}

}  // namespace shardwise::jobs_detail
