#include "shardwise/checkpoint/detail/write/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/group/one_writer.h"
#include "shardwise/checkpoint/detail/group/save_report.h"
#include "shardwise/checkpoint/detail/group/tensor_views.h"
#include "shardwise/checkpoint/detail/lanes.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/tiers/file_transfer.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/index_file.h"
#include "shardwise/checkpoint/detail/write/part.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Tells the other processes what has ended this one's part.
void abort_save(const ProcessGroup& group, std::int64_t step, const std::exception_ptr& cause) {
  try {
    std::rethrow_exception(cause);
  } catch (const CallerError& e) {
    abort_save(group, step, e.cause);
  } catch (const std::exception& e) {
    group.abort(fmt::format("save step {}: {}", step, e.what()));
  } catch (...) {
    group.abort(fmt::format("save step {}: a source threw something that is no exception", step));
  }
}

/// One save of a group, on one of its ranks.
class GroupSave {
 public:
  GroupSave(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
            const SaveOptions& options)
      : context_(context),
        group_(group),
        step_(step),
        options_(options),
        neighbours_(group, options) {
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

  /// Rank 0: makes the attempt, gathers what the others say, commits.
  SaveStats coordinate(std::vector<TensorSource> sources) {
    Attempt attempt(context_.file_system, context_.root, step_, context_.leftovers, &context_.spare,
                    context_.resume_key);
    try {
      return coordinate(attempt, std::move(sources));
    } catch (const Error& e) {
      abort_save(group_, step_, std::current_exception());
      const bool stays = is_resumable() && e.code() == ErrorCode::cancelled;
      if (!stays) throw;
      attempt.keep();
      throw Error(e.code(), fmt::format("{}; {} keeps what was written, for when the same is begun "
                                        "again",
                                        e.what(), attempt.directory().string()));
    } catch (...) {
      // Before the attempt is removed: the others would only see that it is not there.
      abort_save(group_, step_, std::current_exception());
      throw;
    }
  }

  SaveStats coordinate(Attempt& attempt, std::vector<TensorSource> sources) {
    group_.broadcast(encode(AttemptNotice{.step = step_,
                                          .id = attempt.id(),
                                          .directory = attempt.directory().filename().string(),
                                          .is_reused = attempt.is_reused(),
                                          .user_json = {},
                                          .objects_json = {}}));
    const SavePlan plan = plan_part(std::move(sources));
    std::vector<WrittenShardFile> written;
    std::vector<std::byte> index;
    // The index needs the shard files' names only, so it is made while the files are written.
    const std::function<void()> jobs[] = {
        [&] {
          written =
              write({attempt.directory(), attempt.is_reused(), is_shared(), is_resumable()}, plan);
        },
        [&] { index = make_index(plan); }};
    run_lanes({.jobs = std::size(jobs),
               .lanes = std::size(jobs),
               .run = [&](std::size_t job, std::size_t) { jobs[job](); }});

    Manifest manifest = manifest_of(plan);
    manifest.id = attempt.id();
    manifest.user_json = options_.user_json;
    manifest.objects_json = options_.objects_json;
    SaveStats stats = combine(plan, written, manifest, index);
    write_manifest(attempt, manifest, index, stats);

    group_.check();
    stats.directory = attempt.publish(options_.existing);
    try {
      group_.broadcast(encode(SaveOutcome{.lists_wanted = {}, .stats = stats}));
    } catch (const Error&) {
      // It is committed; who does not hear of it finds it on the disk.
    }
    return stats;
  }

  /// Every rank, where each has a root of its own: makes an attempt there, hears of the others'
  /// files, gives and takes copies, and commits when all have come so far. Where one of them
  /// cannot, the others take back what they have committed.
  SaveStats save_locally(std::vector<TensorSource> sources) {
    Attempt attempt(context_.file_system, context_.root, step_, context_.leftovers,
                    &context_.spare);
    const AttemptNotice notice = decode_notice(
        group_.broadcast(encode(AttemptNotice{.step = step_,
                                              .id = attempt.id(),
                                              .directory = {},
                                              .user_json = options_.user_json,
                                              .objects_json = options_.objects_json})));
    check_step(notice);
    const SavePlan plan = plan_part(std::move(sources));
    const auto written = write({attempt.directory(), attempt.is_reused()}, plan);
    Manifest manifest = manifest_of(plan);
    manifest.id = notice.id;
    manifest.user_json = notice.user_json;
    manifest.objects_json = notice.objects_json;
    std::vector<std::byte> index;
    SaveStats stats = combine(plan, written, manifest, index);
    copy_to_others(attempt, manifest);
    write_manifest(attempt, manifest, index, stats);
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

  /// The other ranks: write their part.
  SaveStats take_part(std::vector<TensorSource> sources) {
    const AttemptNotice notice = decode_notice(group_.broadcast({}));
    check_step(notice);
    const AttemptDirectory directory{context_.root / notice.directory, notice.is_reused, true,
                                     is_resumable()};
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
      group_.gather(encode(report(plan, written)));
      SaveOutcome outcome = decode_outcome(group_.broadcast({}));
      if (!outcome.lists_wanted.empty()) {
        group_.exchange(list_if_wanted(plan, outcome.lists_wanted), {});
        outcome = decode_outcome(group_.broadcast({}));
      }
      outcome.stats.directory = context_.root / outcome.stats.directory;
      return outcome.stats;
    } catch (const Error&) {
      // The message may be lost that says that it was committed.
      if (const auto committed = find_committed(notice.id)) {
        SaveStats stats;
        stats.directory = *committed;
        stats.logical_bytes = plan.logical_bytes;
        return stats;
      }
      throw;
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kLeastPatience{1000}, kBetweenChecks{100};

  bool is_shared() const { return group_.size() > 1; }
  bool is_resumable() const { return !context_.resume_key.empty(); }

  SavePlan plan_part(std::vector<TensorSource> sources) {
    const std::int64_t all = options_.writers * (group_.size() / options_.processes_per_file);
    const WriterMap writers = writers_for(sources, all, context_.devices);
    if (neighbours_.is_writer()) {
      const std::int64_t devices = devices_of(sources, context_.devices);
      sources = neighbours_.gather(std::move(sources), devices);
    }
    SavePlan plan = plan_save(std::move(sources), options_.codec, context_.executor, writers,
                              writers_of(group_.rank(), options_));
    std::replace(plan.efforts.begin(), plan.efforts.end(), Effort::huffman_only, context_.huffman);
    return plan;
  }

  // What this process writes of the shard files; another one may write them for it.
  std::vector<WrittenShardFile> write(const AttemptDirectory& directory, const SavePlan& plan) {
    if (!neighbours_.is_writer()) {
      neighbours_.serve(plan.sources);
      return {};
    }
    std::vector<WrittenShardFile> written = write_part(context_, directory, plan, options_);
    neighbours_.finish();
    return written;
  }

  bool is_local() const { return context_.local_roots.has_value(); }

  void check_step(const AttemptNotice& notice) const {
    if (notice.step == step_) return;
    throw Error(ErrorCode::invalid_argument, fmt::format("rank 0 saves step {}, rank {} step {}",
                                                         notice.step, group_.rank(), step_));
  }

  // Each process's files to those that are to have copies.
  void copy_to_others(const Attempt& attempt, const Manifest& manifest) const {
    std::vector<FileTransfer> transfers;
    for (const FileEntry& file : manifest.files) {
      const int from =
          static_cast<int>(file.writer / options_.writers) * options_.processes_per_file;
      for (int copy = 1; copy <= context_.local_roots->copies; ++copy) {
        const int to = (from + copy * context_.local_roots->processes_per_host) % group_.size();
        transfers.push_back({from, to, file.name, file.bytes});
      }
    }
    transfer_files(
        group_, context_.file_system, transfers,
        [&](const std::string& name) { return attempt.directory() / name; }, attempt.directory());
  }

  void check_is_there(const std::filesystem::path& directory) const {
    if (is_there(directory)) return;
    throw Error(ErrorCode::io,
                fmt::format("{}, which rank 0 has made, is not there for rank {}: all processes "
                            "must have the same root, on a file system that they share",
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

  // Of the tensors of this process, without their pieces.
  Manifest manifest_of(const SavePlan& plan) const {
    Manifest manifest;
    manifest.step = step_;
    manifest.writers = plan.writers;
    manifest.tensors = plan.tensors;
    for (TensorEntry& tensor : manifest.tensors) tensor.pieces.clear();
    return manifest;
  }

  SaveReport report(const SavePlan& plan, std::span<const WrittenShardFile> written) const {
    SaveReport report{.tensors = {},
                      .logical_bytes = plan.logical_bytes,
                      .stored_bytes = 0,
                      .chunks = plan.chunks,
                      .files = {}};
    if (neighbours_.is_writer()) report.files.resize(static_cast<std::size_t>(options_.writers));
    for (const WrittenShardFile& file : written) {
      report.stored_bytes += file.entry.stored_bytes;
      report.files[static_cast<std::size_t>(file.entry.writer % options_.writers)] = file.entry;
    }
    if (is_shared()) report.tensors = hash_of(tensor_list(manifest_of(plan)));
    return report;
  }

  // Completes the manifest with what all processes have written.
  SaveStats combine(const SavePlan& plan, std::span<const WrittenShardFile> written,
                    Manifest& manifest, std::vector<std::byte>& index) const {
    Bytes own = encode(report(plan, written));
    const std::vector<Bytes> messages =
        is_local() ? group_.all_gather(std::move(own)) : group_.gather(std::move(own));
    std::vector<SaveReport> reports;
    reports.reserve(messages.size());
    for (const Bytes& message : messages) reports.push_back(decode_report(message));
    TensorViews views(reports);
    if (const std::vector<int> wanted = views.others(); !wanted.empty()) {
      views.merge(wanted, is_local() ? lists_for_all(plan, wanted, manifest) : lists_of(wanted),
                  manifest);
      if (!is_local()) index = build_index_file(manifest.writers, manifest.tensors);
    }
    SaveStats stats;
    for (std::size_t rank = 0; rank < reports.size(); ++rank) {
      const SaveReport& part = reports[rank];
      stats.logical_bytes += part.logical_bytes;
      stats.stored_bytes += part.stored_bytes;
      stats.chunks += part.chunks;
      for (std::size_t f = 0; f < part.files.size(); ++f) {
        if (part.files[f].bytes == 0) continue;
        FileEntry& file = manifest.files.emplace_back(part.files[f]);
        file.writer =
            writers_of(static_cast<int>(rank), options_).first + static_cast<std::int64_t>(f);
        file.name = shard_file_name(file.writer, manifest.writers.num_writers());
        stats.file_bytes += file.bytes;
      }
    }
    views.check_complete(manifest, reports, options_);
    return stats;
  }

  // Rank 0 asks these ranks which tensors they have.
  std::vector<Bytes> lists_of(const std::vector<int>& wanted) const {
    group_.broadcast(encode(SaveOutcome{.lists_wanted = wanted, .stats = {}}));
    return group_.exchange({}, wanted);
  }

  // All hear of these ranks' tensors, and of rank 0's, which the manifest then has.
  std::vector<Bytes> lists_for_all(const SavePlan& plan, const std::vector<int>& wanted,
                                   Manifest& manifest) const {
    std::vector<int> all{0};
    all.insert(all.end(), wanted.begin(), wanted.end());
    const auto own = list_if_wanted(plan, all);
    std::vector<Bytes> heard = group_.all_gather(own.empty() ? Bytes() : own.front().bytes);
    const std::string_view first(reinterpret_cast<const char*>(heard[0].data()), heard[0].size());
    manifest.tensors = parse_manifest(first, "of rank 0").tensors;
    std::vector<Bytes> lists;
    lists.reserve(wanted.size());
    for (const int rank : wanted) lists.push_back(std::move(heard[static_cast<std::size_t>(rank)]));
    return lists;
  }

  std::vector<std::byte> make_index(const SavePlan& plan) const {
    if (is_local()) return {};
    return is_shared() ? build_index_file(plan.writers, manifest_of(plan).tensors)
                       : build_useful_index(plan.tensors, plan.files);
  }

  void write_manifest(const Attempt& attempt, Manifest& manifest, std::span<const std::byte> index,
                      SaveStats& stats) const {
    if ((is_shared() && attempt.is_reused()) || is_resumable()) {
      remove_unlisted(attempt.directory(), manifest);
    }
    stats.file_bytes += complete(context_.file_system, attempt.directory(), manifest, index);
  }

  // What a spare or an earlier attempt held and no process has written anew, and what only says how
  // far an attempt has come.
  void remove_unlisted(const std::filesystem::path& directory, const Manifest& manifest) const {
    for (const std::string& name : context_.file_system.list(directory)) {
      const bool listed = std::ranges::binary_search(manifest.files, name, {}, &FileEntry::name);
      if (!listed && name != kResumeName) remove_tree(context_.file_system, directory / name);
    }
    // Last: until then the attempt can be gone on with.
    remove_tree(context_.file_system, directory / kResumeName);
  }

  std::vector<ProcessGroup::Outgoing> list_if_wanted(const SavePlan& plan,
                                                     std::span<const int> wanted) const {
    if (std::ranges::find(wanted, group_.rank()) == wanted.end()) return {};
    const std::string list = tensor_list(manifest_of(plan));
    const auto bytes = std::as_bytes(std::span(list));
    return {{0, Bytes(bytes.begin(), bytes.end())}};
  }

  // The checkpoint that this attempt has become; nothing where it has not.
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
  Neighbours neighbours_;
};

}  // namespace

SaveStats run_save(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
                   std::vector<TensorSource> sources, const SaveOptions& options) {
  try {
    GroupSave save(context, group, step, options);
    if (context.local_roots) return save.save_locally(std::move(sources));
    return group.rank() == 0 ? save.coordinate(std::move(sources))
                             : save.take_part(std::move(sources));
  } catch (const CallerError& e) {
    abort_save(group, step, e.cause);
    std::rethrow_exception(e.cause);
  } catch (const Error& e) {
    context.spare.drop();  // that it was there may be the reason
    abort_save(group, step, std::current_exception());
    throw Error(e.code(), fmt::format("save step {}: {}", step, e.what()));
  } catch (...) {
    abort_save(group, step, std::current_exception());
    throw;
  }
}

}  // namespace shardwise::detail
