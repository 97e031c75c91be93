#include "shardwise/checkpoint/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/record/attempt_place.h"
#include "shardwise/checkpoint/detail/record/save_halves.h"
#include "shardwise/checkpoint/detail/record/target.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

// The one that makes an attempt a checkpoint has its name, and no other attempt has. In a bucket no
// other attempt writes the generation.
std::uint64_t run_in(const std::filesystem::path& directory) {
  if (in_bucket(directory)) return detail::run_of(directory.string());
  const std::filesystem::path name =
      directory.has_filename() ? directory.filename() : directory.parent_path().filename();
  return detail::run_of(name.string());
}

std::shared_ptr<FileSystem> real_if_null(std::shared_ptr<FileSystem> file_system) {
  return file_system ? std::move(file_system) : posix_file_system();
}

// The heads in the order of their writers, and each different list once.
detail::PartsOfSave read_records(std::span<const ShardRecord> records, std::uint64_t run) {
  if (records.empty()) {
    throw Error(ErrorCode::invalid_argument, "found no records, needed one of each writer");
  }
  using Part = detail::SplitRecord;
  std::vector<Part> parts;
  parts.reserve(records.size());
  for (const ShardRecord& record : records) {
    parts.push_back(detail::split(record));
    if (parts.back().head.run == run) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found a record of writer {} for another attempt, needed is one of "
                            "this attempt",
                            parts.back().head.first_writer));
  }
  std::ranges::stable_sort(parts, {}, [](const Part& part) { return part.head.first_writer; });
  detail::PartsOfSave read;
  read.heads.reserve(parts.size());
  for (Part& part : parts) {
    read.heads.push_back(std::move(part.head));
    read.costs = costlier(read.costs, part.costs);
  }
  for (const std::size_t head : detail::first_with_each_list(read.heads)) {
    read.lists.push_back({head, detail::decode_list(parts[head].list)});
  }
  return read;
}

/// A hidden directory next to the target, whose name it gets.
class FolderPlace final : public detail::AttemptPlace {
 public:
  FolderPlace(const std::filesystem::path& target, Existing existing,
              std::shared_ptr<FileSystem> file_system)
      : files_(std::move(file_system)),
        existing_(existing),
        attempt_(*files_, detail::ready_target(*files_, target, existing), leftovers_) {}

  const std::string& id() const override { return attempt_.id(); }
  const std::filesystem::path& directory() const override { return attempt_.directory(); }
  void publish(detail::Manifest& manifest, SaveStats& stats,
               std::span<const std::byte> index) override {
    detail::publish_parts(*files_, attempt_, manifest, stats, index, existing_, true);
  }

 private:
  const std::shared_ptr<FileSystem> files_;
  const Existing existing_;
  std::vector<std::filesystem::path> leftovers_;
  detail::Attempt attempt_;
};

}  // namespace

ShardRecord write_shards(const std::filesystem::path& directory, const ShardWriter& writer,
                         std::vector<TensorSource> sources, const EncodeOptions& options) {
  detail::check_sources(sources);
  detail::WriterMap writers = detail::checked_writers(sources, writer.writer, writer.starts);
  const auto file_system = real_if_null(options.file_system);
  // A bucket has no directory before its first file.
  if (!in_bucket(directory)) static_cast<void>(file_system->open_directory(directory));
  const Executor executor(options.threads);
  static_cast<void>(detail::staging_sizes(options.memory_budget_bytes, executor.threads(), 0));
  std::unique_ptr<detail::StagingPool> pool;
  try {
    detail::WrittenPart part = detail::write_own_part(
        {*file_system, executor, pool}, {directory, false, true}, run_in(directory),
        {.sources = std::move(sources),
         .writers = std::move(writers),
         .mine = {writer.writer, writer.writer + 1},
         .options = options,
         .find_earlier = [&] {
           return detail::earlier_step_at(*file_system, options.unchanged_since);
         }});
    return record_of(part, true);
  } catch (const detail::CallerError& e) {
    std::rethrow_exception(e.cause);
  }
}

struct CheckpointAttempt::Impl {
  const Stopwatch watch;
  const std::unique_ptr<detail::AttemptPlace> place;
};

CheckpointAttempt::CheckpointAttempt(const std::filesystem::path& target, Existing existing,
                                     std::shared_ptr<FileSystem> file_system)
    : CheckpointAttempt(std::make_unique<FolderPlace>(detail::absolute_target(target), existing,
                                                      real_if_null(std::move(file_system)))) {}

CheckpointAttempt::CheckpointAttempt(std::unique_ptr<detail::AttemptPlace> place)
    : impl_(new Impl{{}, std::move(place)}) {}

CheckpointAttempt::~CheckpointAttempt() = default;

const std::filesystem::path& CheckpointAttempt::directory() const {
  return impl_->place->directory();
}

SaveStats CheckpointAttempt::publish(std::span<const ShardRecord> records,
                                     const PublishOptions& options) {
  detail::check_json(options);
  try {
    auto [manifest, stats] = detail::merged_parts(read_records(records, run_in(directory())),
                                                  impl_->place->id(), detail::kNoStep, options);
    const std::vector<std::byte> index =
        detail::build_useful_index(manifest.writers, manifest.tensors);
    impl_->place->publish(manifest, stats, index);
    stats.total_seconds = stats.blocked_seconds = impl_->watch.seconds();
    stats.publish_seconds =
        std::max(0.0, stats.total_seconds - stats.plan_seconds - stats.write_seconds);
    return stats;
  } catch (const Error& e) {
    throw Error(e, fmt::format("publish: {}", e.what()));
  }
}

bool is_saved(const std::filesystem::path& target, std::shared_ptr<FileSystem> file_system) {
  const auto files = real_if_null(std::move(file_system));
  return detail::is_saved_target(*files, detail::absolute_target(target));
}

SaveStats save_checkpoint(const std::filesystem::path& target, std::vector<TensorSource> sources,
                          Existing existing, const EncodeOptions& encode,
                          const PublishOptions& publish) {
  if (existing == Existing::skip && is_saved(target, encode.file_system)) {
    SaveStats stats;
    stats.directory = detail::absolute_target(target);
    stats.skipped = true;
    return stats;
  }
  CheckpointAttempt attempt(target, existing, encode.file_system);
  const ShardRecord record = write_shards(attempt.directory(), {}, std::move(sources), encode);
  return attempt.publish({&record, 1}, publish);
}

}  // namespace shardwise
