#include "shardwise/jobs/detail/save/save_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/read/written_files.h"
#include "shardwise/checkpoint/detail/record/save_halves.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/jobs/detail/save/file_transfer.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

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

constexpr std::int64_t kClaimSeconds = 86'400;

}  // namespace

void SharedFolder::begin(AttemptNotice& notice) {
  attempt_ = make_attempt();
  notice.id = attempt_->id();
  notice.directory = attempt_->directory().filename().string();
  notice.is_reused = attempt_->is_reused();
}

AttemptDirectory SharedFolder::enter(const Rendezvous& ranks, const AttemptNotice& notice) {
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

bool SharedFolder::is_there() const {
  try {
    static_cast<void>(file_system_.open_directory(directory_));
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;
  }
}

void SharedFolder::publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
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

std::vector<std::string> SharedPlace::names_of(std::int64_t step) const {
  std::vector<std::string> names;
  for (const StepName& name : committed_names(file_system_, root_)) {
    if (name.step == step) names.push_back(to_string(name));
  }
  return names;
}

BucketStep::~BucketStep() {
  if (!claimed_ || !maker_.is_this_process()) return;
  try {
    bucket_.abandon(*claimed_);
  } catch (...) {
    // A collection ends it when its claim is over.
  }
}

std::optional<std::string> BucketStep::find_valid() const {
  const auto there = LatestSteps(file_system_, root_, false).find_valid(step_);
  return there ? std::optional(to_string(*there)) : std::nullopt;
}

void BucketStep::begin(AttemptNotice& notice) {
  bucket_.need_conditions();
  if (notice.existing != Existing::replace) refuse_existing(file_system_, root_, step_);
  notice.id = new_id();
  // Only the claim of a copy has the hash of a manifest: a save does not know it yet.
  claimed_ = bucket_.claim(
      step_, {.id = notice.id, .manifest_hash = to_hex(Hash128{}), .seconds = kClaimSeconds});
  notice.directory = to_string(*claimed_);
}

AttemptDirectory BucketStep::enter(const Rendezvous& ranks, const AttemptNotice& notice) {
  return {root_ / notice.directory, false, ranks.size() > 1};
}

void BucketStep::publish(const Rendezvous& ranks, Manifest& manifest, SaveStats& stats,
                         std::span<const std::byte> index, Existing existing) {
  commit(manifest, stats, index, existing, ranks.size() > 1, [&] { ranks.check(); });
}

void BucketStep::commit(Manifest& manifest, SaveStats& stats, std::span<const std::byte> index,
                        Existing existing, bool written_by_others,
                        const std::function<void()>& check) {
  const StepName name = *claimed_;
  const std::filesystem::path directory = root_ / to_string(name);
  if (written_by_others) check_written_files(file_system_, directory, manifest);
  if (!index.empty()) {
    manifest.index_bytes = index.size();
    manifest.index_hash = hash128(index.data(), index.size());
    write_whole_file(file_system_, directory / kIndexName, index);
  }
  const std::string text = checked_manifest(manifest);
  if (check) check();
  // Another job may have published the step since this one began.
  if (existing != Existing::replace) refuse_existing(file_system_, root_, step_);
  bucket_.commit(name, text);
  claimed_.reset();
  stats.file_bytes += index.size() + text.size();
  stats.directory = directory;
}

std::optional<std::string> OwnPlace::find_valid() const {
  const auto there = LatestSteps(file_system_, root_, true).find_valid(step_);
  return there ? std::optional(to_string(*there)) : std::nullopt;
}

void OwnPlace::make_attempt() { attempt_.emplace(file_system_, root_, step_, leftovers_, spare_); }

void OwnPlace::begin(AttemptNotice& notice) {
  make_attempt();
  notice.id = attempt_->id();
  notice.is_reused = attempt_->is_reused();
}

AttemptDirectory OwnPlace::enter(const Rendezvous& /*ranks*/, const AttemptNotice& /*notice*/) {
  if (!attempt_) make_attempt();
  return {attempt_->directory(), attempt_->is_reused(), false};
}

std::filesystem::path OwnPlace::skip(int rank, const AttemptNotice& /*notice*/) const {
  if (const auto there = find_valid()) return root_ / *there;
  throw not_skipped(root_ / to_string(StepName{step_}),
                    fmt::format("rank 0 has it, rank {} has not", rank));
}

void OwnPlace::publish(const Rendezvous& /*ranks*/, Manifest& manifest, SaveStats& stats,
                       std::span<const std::byte> /*index*/, Existing /*existing*/) {
  text_ = checked_manifest(manifest);
  stats.file_bytes += text_.size();
  manifest_ = std::move(manifest);
}

// Every rank gives and takes copies, looks at all its files, and commits when all have come so far.
// If one of them cannot, the others take their commits back.
void OwnPlace::finish(const Rendezvous& ranks, SaveStats& stats, Existing existing) {
  const auto nothing = [](const std::vector<Bytes>&) { return Bytes(); };
  const auto prepare = [&] {
    if (ranks.rank() == 0) {
      spread(group_, encode(SaveOutcome{.lists_wanted = {}, .stats = {}, .manifest = text_}));
    } else {
      text_ = decode_outcome(spread(group_, {}), group_.size()).manifest;
      manifest_ = parse_manifest(text_, kManifestName);
    }
    copy_to_others(manifest_);
    check_own_directory(manifest_);
    remove_unlisted(file_system_, *attempt_, manifest_);
    write_manifest(file_system_, attempt_->directory(), text_);
    return Bytes();
  };
  ranks.agree(prepare, nothing);
  std::filesystem::path published;
  try {
    ranks.agree(
        [&] {
          published = attempt_->publish(existing);
          return Bytes();
        },
        nothing);
  } catch (const Error&) {
    if (!published.empty()) {
      remove_checkpoint(file_system_, root_, *parse_step_name(published.filename().string()));
    }
    throw;
  }
  stats.directory = published;
}

// The rank that writes a file, then those that get copies of it.
std::vector<int> OwnPlace::holders_of(const FileEntry& file) const {
  std::vector<int> ranks{static_cast<int>(file.writer / writers_)};
  for (int copy = 1; copy <= roots_.copies; ++copy) {
    ranks.push_back((ranks.front() + copy * roots_.processes_per_host) % group_.size());
  }
  return ranks;
}

// Sends each process's files, with the files that they link, to the ranks that get copies and have
// not got them from the step before. Throws io if one does not arrive here.
void OwnPlace::copy_to_others(const Manifest& manifest) const {
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
          group_, file_system_, manifest, transfers,
          [&](const std::string& name) { return attempt_->directory() / name; },
          attempt_->directory(), earlier_())
          .failed;
  if (failed.empty()) return;
  const FileTransfer& transfer = transfers[failed.front().number];
  throw Error(ErrorCode::io, fmt::format("copy {} from rank {} to rank {}: {}", transfer.name,
                                         transfer.from, transfer.to, failed.front().problem));
}

// This process's own files and the copies that it has got.
void OwnPlace::check_own_directory(const Manifest& manifest) const {
  std::vector<std::size_t> numbers;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const std::vector<int> ranks = holders_of(manifest.files[f]);
    if (std::ranges::find(ranks, group_.rank()) != ranks.end()) numbers.push_back(f);
  }
  check_written_files(file_system_, attempt_->directory(), manifest, numbers);
}

}  // namespace shardwise::jobs_detail
