#include "shardwise/jobs/detail/save/save_together.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLeastPatience{1000}, kBetweenChecks{100};

Bytes nothing(const std::vector<Bytes>& /*all*/) { return {}; }

}  // namespace

SaveTogether::SaveTogether(const Rendezvous& ranks, SavePlace& place, const PartTools& tools,
                           SaveRequest request)
    : ranks_(ranks), place_(place), tools_(tools), request_(std::move(request)) {
  if (is_alone()) return;
  // So that a rank that computes or waits for the disk learns that it is in vain.
  request_.encode.progress = [&ranks, own = request_.encode.progress,
                              next = Clock::now()](const Progress& progress) mutable {
    if (const auto now = Clock::now(); now >= next) {
      ranks.check();
      next = now + kBetweenChecks;
    }
    if (own) own(progress);
  };
}

// A step of an agreement that calls functions of the caller's.
template <class Step>
auto SaveTogether::by_caller(const Step& step) {
  try {
    return step();
  } catch (const CallerError& e) {
    callers_error_ = e.cause;
    std::rethrow_exception(e.cause);
  }
}

SaveStats SaveTogether::run(std::vector<TensorSource> sources) {
  const Bytes notice = ranks_.agree(
      request_.describe, [&](std::vector<Bytes> described) { return begin(std::move(described)); });
  if (ranks_.rank() != 0) notice_ = decode_notice(notice);
  if (notice_.skipped) return skipped();
  try {
    const auto agree = [&](const Rendezvous::Work& work, const Rendezvous::Merge& merge) {
      const Bytes said = ranks_.agree(work, merge);
      if (ranks_.rank() != 0) outcome_ = decode_outcome(said, ranks_.size());
    };
    agree([&] { return by_caller([&] { return write(std::move(sources)); }); },
          [&](std::vector<Bytes> messages) { return merge_heads(std::move(messages)); });
    if (!outcome_.lists_wanted.empty()) {
      agree([&] { return list_if_wanted(); },
            [&](std::vector<Bytes> messages) {
              std::vector<NumberedList> lists{{0, list_of(part_.plan)}};
              for (const int rank : std::exchange(outcome_.lists_wanted, {})) {
                const auto number = static_cast<std::size_t>(rank);
                lists.push_back({number, decode_list(messages[number])});
              }
              return publish(std::move(lists));
            });
    }
    place_.finish(ranks_, outcome_.stats, notice_.existing);
  } catch (const Error&) {
    // It may be committed: another rank is gone, or the message is lost that says so.
    if (ranks_.rank() == 0 && place_.has_index() && !outcome_.stats.directory.empty()) {
      return outcome_.stats;
    }
    const auto committed = ranks_.rank() == 0 ? std::nullopt : place_.find_committed(notice_.id);
    if (!committed) throw;
    SaveStats stats;
    stats.directory = *committed;
    stats.logical_bytes = part_.plan.logical_bytes;
    return stats;
  }
  return outcome_.stats;
}

// Rank 0 decides whether there is something to save, and makes the attempt.
Bytes SaveTogether::begin(std::vector<Bytes> described) {
  notice_.id = to_hex(Hash128{});
  notice_.terms = request_.terms;
  notice_.existing = request_.is_damaged ? Existing::replace : request_.terms.existing;
  if (notice_.existing == Existing::skip) {
    if (const auto there = place_.find_valid()) {
      notice_.skipped = true;
      notice_.directory = *there;
    }
  }
  if (!notice_.skipped) {
    if (request_.document) request_.publish.objects_json = request_.document(std::move(described));
    place_.begin(notice_);
    if (request_.base) notice_.base = request_.base();
  }
  return is_alone() ? Bytes() : encode(notice_);
}

void SaveTogether::check_terms() const {
  const std::string found = difference(notice_.terms, request_.terms, ranks_.rank());
  if (!found.empty()) throw Error(ErrorCode::invalid_argument, found);
}

// On all ranks at once: one whose terms differ ends the save of all.
SaveStats SaveTogether::skipped() {
  SaveStats stats;
  stats.skipped = true;
  ranks_.agree(
      [&] {
        check_terms();
        stats.directory = place_.skip(ranks_.rank(), notice_);
        return Bytes();
      },
      nothing);
  return stats;
}

Bytes SaveTogether::write(std::vector<TensorSource> sources) {
  check_terms();
  try {
    write_part_of(std::move(sources), place_.enter(ranks_, notice_));
  } catch (const Error&) {
    // Rank 0 may have removed the directory because the save has failed elsewhere.
    if (ranks_.rank() != 0 && !place_.is_there()) ranks_.check(kLeastPatience);
    throw;
  }
  return is_alone() ? Bytes() : record_of(part_, false);
}

void SaveTogether::write_part_of(std::vector<TensorSource> sources,
                                 const AttemptDirectory& directory) {
  WriterMap writers = request_.writers(sources);
  PartToWrite part{.sources = std::move(sources),
                   .writers = std::move(writers),
                   .mine = writers_of(ranks_.rank(), request_.writers_of_a_rank),
                   .options = request_.encode,
                   .huffman = request_.huffman};
  if (request_.find_earlier) {
    part.find_earlier = [&] { return request_.find_earlier(notice_.base); };
  }
  // The index needs the shard files' names only, so it is made while the files are written.
  if (ranks_.rank() == 0 && place_.has_index()) {
    part.beside = [&](const SavePlan& plan) {
      index_ = build_useful_index(plan.writers, plan.tensors);
    };
  }
  part_ = write_own_part(tools_, directory, run_of(notice_.id), std::move(part));
}

// Rank 0 merges the records of all ranks, unless it needs the lists of some.
Bytes SaveTogether::merge_heads(std::vector<Bytes> messages) {
  parts_.heads.push_back(part_.head);
  parts_.costs = part_.costs;
  for (std::size_t rank = 1; rank < messages.size(); ++rank) {
    SplitRecord record = split(messages[rank]);
    parts_.heads.push_back(head_of_rank(std::move(record.head), static_cast<int>(rank)));
    parts_.costs = costlier(parts_.costs, record.costs);
  }
  for (const std::size_t rank : first_with_each_list(parts_.heads)) {
    if (rank > 0) outcome_.lists_wanted.push_back(static_cast<int>(rank));
  }
  if (!outcome_.lists_wanted.empty()) return outcome_message();
  std::vector<NumberedList> lists;
  lists.push_back({0, list_of(part_.plan)});
  return publish(std::move(lists));
}

Bytes SaveTogether::list_if_wanted() const {
  const auto& wanted = outcome_.lists_wanted;
  if (std::ranges::find(wanted, ranks_.rank()) == wanted.end()) return {};
  return encode(list_of(part_.plan));
}

Bytes SaveTogether::publish(std::vector<NumberedList> lists) {
  const bool differ = lists.size() > 1;
  parts_.lists = std::move(lists);
  auto [manifest, stats] =
      merged_parts(std::move(parts_), notice_.id, request_.step, request_.publish);
  if (differ && place_.has_index()) {
    index_ = build_useful_index(manifest.writers, manifest.tensors);
  }
  place_.publish(ranks_, manifest, stats, index_, notice_.existing);
  outcome_.stats = std::move(stats);
  return outcome_message();
}

Bytes SaveTogether::outcome_message() const { return is_alone() ? Bytes() : encode(outcome_); }

// Throws invalid_argument if it is of another save, or of writers that are not the rank's.
RecordHead SaveTogether::head_of_rank(RecordHead head, int rank) const {
  const WriterRange its = writers_of(rank, request_.writers_of_a_rank);
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

std::vector<FileEntry> SaveTogether::files() const {
  std::vector<FileEntry> files = part_.head.files;
  std::erase_if(files, [](const FileEntry& file) { return file.bytes == 0; });
  return files;
}

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

void abort_group(const ProcessGroup& group, const std::string& subject) {
  try {
    throw;
  } catch (const CallerError& e) {
    try {
      std::rethrow_exception(e.cause);
    } catch (...) {
      abort_group(group, subject);
    }
  } catch (const std::exception& e) {
    group.abort(subject.empty() ? e.what() : fmt::format("{}: {}", subject, e.what()));
  } catch (...) {
    group.abort(fmt::format("{}: a source threw something that is no exception", subject));
  }
}

}  // namespace shardwise::jobs_detail
