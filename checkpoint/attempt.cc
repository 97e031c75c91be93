#include "shardwise/checkpoint/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/group/shard_record.h"
#include "shardwise/checkpoint/detail/manifest_check.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/index_file.h"
#include "shardwise/checkpoint/detail/write/part.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

detail::WriterMap writers_of(const ShardWriter& writer) {
  if (writer.starts.empty()) {
    if (writer.writer == 0) return {};
  } else if (writer.writer >= 0 && writer.writer + 1 < std::ssize(writer.starts) &&
             writer.starts.front() == 0 && writer.starts.back() > 0 &&
             std::ranges::is_sorted(writer.starts)) {
    return detail::WriterMap(writer.starts);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("write shards: writer {} of starts [{}]: needed are integers that ascend "
                          "from 0 on, one more than writers",
                          writer.writer, fmt::join(writer.starts, ", ")));
}

std::shared_ptr<FileSystem> real_if_null(std::shared_ptr<FileSystem> file_system) {
  return file_system ? std::move(file_system) : posix_file_system();
}

// Without a slash at its end, from the directory that the program is in now.
std::filesystem::path absolute_target(const std::filesystem::path& target) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(target, error).lexically_normal();
  if (error) {
    throw Error(ErrorCode::io, fmt::format("save {:?}: {}", target.string(), error.message()));
  }
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

}  // namespace

ShardRecord write_shards(const std::filesystem::path& directory, const ShardWriter& writer,
                         std::vector<TensorSource> sources, const WriteShardsOptions& options) {
  const detail::WriterMap writers = writers_of(writer);
  detail::check_sources(sources);
  if (writers.num_writers() > 1) detail::devices_of(sources, writers.num_devices());
  const auto file_system = real_if_null(options.file_system);
  static_cast<void>(file_system->open_directory(directory));
  const Executor executor(options.threads);
  static_cast<void>(detail::staging_sizes(options.save.memory_budget_bytes, executor.threads(), 0));
  std::unique_ptr<detail::StagingPool> pool;
  std::vector<std::filesystem::path> leftovers;
  detail::Spare spare(*file_system);
  const std::string no_key;
  const detail::SaveContext context{*file_system, directory, executor, pool,
                                    leftovers,    spare,     0,        no_key};
  try {
    detail::SavePlan plan = detail::plan_save(std::move(sources), options.save.codec, executor,
                                              writers, {writer.writer, writer.writer + 1});
    const std::vector<detail::WrittenShardFile> written =
        detail::write_part(context, {directory, false, true}, plan, options.save);
    file_system->sync_directory(directory);
    detail::WriterPart part{.writer = writer.writer,
                            .writers = plan.writers,
                            .tensors = std::move(plan.tensors),
                            .file = {},
                            .logical_bytes = plan.logical_bytes,
                            .stored_bytes = 0,
                            .chunks = plan.chunks};
    for (const detail::WrittenShardFile& file : written) {
      part.file = file.entry;
      part.stored_bytes = file.entry.stored_bytes;
    }
    return encode(part);
  } catch (const detail::CallerError& e) {
    std::rethrow_exception(e.cause);
  }
}

struct CheckpointAttempt::Impl {
  Impl(const std::filesystem::path& target, Existing if_existing,
       std::shared_ptr<FileSystem> file_system)
      : files(std::move(file_system)),
        existing(if_existing),
        attempt(*files, ready(*files, target, if_existing), leftovers) {}

  // The target, of which all above it is there, and it itself not, if it must not.
  static const std::filesystem::path& ready(FileSystem& file_system,
                                            const std::filesystem::path& target,
                                            Existing existing) {
    const std::filesystem::path parent = target.parent_path();
    detail::make_root(file_system, parent);
    const std::vector<std::string> there = file_system.list(parent);
    if (existing == Existing::fail &&
        std::ranges::binary_search(there, target.filename().string())) {
      throw Error(ErrorCode::already_exists,
                  fmt::format("save {}: it is already there", target.string()));
    }
    try {
      detail::collect_root_garbage(file_system, parent);
    } catch (const Error&) {
      // What cannot be removed is in nobody's way.
    }
    return target;
  }

  const Stopwatch watch;
  const std::shared_ptr<FileSystem> files;
  const Existing existing;
  std::vector<std::filesystem::path> leftovers;
  detail::Attempt attempt;
};

CheckpointAttempt::CheckpointAttempt(const std::filesystem::path& target, Existing existing,
                                     std::shared_ptr<FileSystem> file_system)
    : impl_(std::make_unique<Impl>(absolute_target(target), existing,
                                   real_if_null(std::move(file_system)))) {}

CheckpointAttempt::~CheckpointAttempt() = default;

const std::filesystem::path& CheckpointAttempt::directory() const {
  return impl_->attempt.directory();
}

SaveStats CheckpointAttempt::publish(std::span<const ShardRecord> records,
                                     const SaveOptions& options) {
  detail::check_json(options);
  std::vector<detail::WriterPart> parts;
  parts.reserve(records.size());
  for (const ShardRecord& record : records) parts.push_back(detail::decode_part(record));
  SaveStats stats;
  detail::Manifest manifest = detail::merge(std::move(parts), stats);
  manifest.id = impl_->attempt.id();
  manifest.user_json = options.user_json;
  manifest.objects_json = options.objects_json;
  detail::check_manifest(manifest);
  const std::vector<std::byte> index = detail::build_index_file(manifest.writers, manifest.tensors);
  stats.file_bytes += detail::complete(*impl_->files, directory(), manifest, index);
  stats.directory = impl_->attempt.publish(impl_->existing);
  stats.total_seconds = stats.blocked_seconds = impl_->watch.seconds();
  return stats;
}

SaveStats save_checkpoint(const std::filesystem::path& target, std::vector<TensorSource> sources,
                          const SaveOptions& options) {
  CheckpointAttempt attempt(target, options.existing);
  const ShardRecord record =
      write_shards(attempt.directory(), {}, std::move(sources), {.save = options});
  return attempt.publish({&record, 1}, options);
}

}  // namespace shardwise
