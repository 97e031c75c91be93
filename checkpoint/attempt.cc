#include "shardwise/checkpoint/attempt.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/read/written_files.h"
#include "shardwise/checkpoint/detail/record/record.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/commit.h"
#include "shardwise/checkpoint/detail/write/part.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

detail::WriterMap checked_map(const ShardWriter& writer) {
  if (writer.starts.empty()) {
    if (writer.writer == 0) return {};
  } else if (detail::starts_problem(writer.starts).empty() && writer.writer >= 0 &&
             writer.writer + 1 < std::ssize(writer.starts)) {
    return detail::WriterMap(writer.starts);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("write shards: writer {} of starts [{}]: needed are integers that ascend "
                          "from 0 on, to {} at most, one more than writers",
                          writer.writer, fmt::join(writer.starts, ", "), detail::kMostDevices));
}

// The one that makes an attempt a checkpoint has its name, and no other attempt has.
std::uint64_t run_in(const std::filesystem::path& directory) {
  const std::filesystem::path name =
      directory.has_filename() ? directory.filename() : directory.parent_path().filename();
  return detail::run_of(name.string());
}

// Of a damaged step nothing is used.
detail::FindEarlier earlier_of(FileSystem& file_system, const std::filesystem::path& step) {
  if (step.empty()) return nullptr;
  return [&file_system, step] {
    try {
      return detail::read_earlier_step(file_system, step);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::not_found) {
        throw Error(e, fmt::format("save what has changed since {}: {}", step.string(), e.what()));
      }
      return detail::EarlierStep();
    }
  };
}

std::shared_ptr<FileSystem> real_if_null(std::shared_ptr<FileSystem> file_system) {
  return file_system ? std::move(file_system) : posix_file_system();
}

detail::PartCosts costliest(const detail::PartCosts& a, const detail::PartCosts& b) {
  detail::PartCosts most =
      a.plan_seconds + a.write_seconds < b.plan_seconds + b.write_seconds ? b : a;
  most.memory_bytes = std::max(a.memory_bytes, b.memory_bytes);
  return most;
}

// Of records: the heads in the order of their writers, and each different list once.
struct ReadRecords {
  std::vector<detail::RecordHead> heads;
  std::vector<detail::NumberedList> lists;
  detail::PartCosts costs;  // the time of the writer that took longest; most memory
};

ReadRecords read_records(std::span<const ShardRecord> records, std::uint64_t run) {
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
                            "what was written in this one",
                            parts.back().head.first_writer));
  }
  std::ranges::stable_sort(parts, {}, [](const Part& part) { return part.head.first_writer; });
  ReadRecords read;
  read.heads.reserve(parts.size());
  for (Part& part : parts) {
    read.heads.push_back(std::move(part.head));
    read.costs = costliest(read.costs, part.costs);
  }
  for (const std::size_t head : detail::first_with_each_list(read.heads)) {
    read.lists.push_back({head, detail::decode_list(parts[head].list)});
  }
  return read;
}

// Without a slash at its end, from the directory that the program is in now.
std::filesystem::path absolute_target(const std::filesystem::path& target) {
  std::error_code error;
  std::filesystem::path absolute = std::filesystem::absolute(target, error).lexically_normal();
  if (error) {
    throw Error(ErrorCode::io, fmt::format("save {:?}: {}", target.string(), error.message()),
                error.value());
  }
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

bool has_name(FileSystem& file_system, const std::filesystem::path& target) {
  return std::ranges::binary_search(file_system.list(target.parent_path()),
                                    target.filename().string());
}

}  // namespace

ShardRecord write_shards(const std::filesystem::path& directory, const ShardWriter& writer,
                         std::vector<TensorSource> sources, const EncodeOptions& options) {
  detail::WriterMap writers = checked_map(writer);
  detail::check_sources(sources);
  detail::devices_of(sources, writers.num_devices());
  if (writers.num_writers() == 1) writers = {};  // it has all devices
  const auto file_system = real_if_null(options.file_system);
  static_cast<void>(file_system->open_directory(directory));
  const Executor executor(options.threads);
  const Stopwatch watch;
  detail::PartCosts costs;
  static_cast<void>(detail::staging_sizes(options.memory_budget_bytes, executor.threads(), 0));
  std::unique_ptr<detail::StagingPool> pool;
  try {
    const detail::WriterRange mine{writer.writer, writer.writer + 1};
    const detail::SavePlan plan =
        detail::plan_save(std::move(sources), options.codec, executor, writers, mine);
    costs.plan_seconds = watch.seconds();
    const std::vector<detail::WrittenShardFile> written =
        detail::write_part({*file_system, executor, pool}, {directory, false, true}, plan, options,
                           earlier_of(*file_system, options.unchanged_since));
    file_system->sync_directory(directory);
    costs.write_seconds = watch.seconds() - costs.plan_seconds;
    if (pool) costs.memory_bytes = pool->held_bytes();
    const Bytes list = encode(detail::list_of(plan));
    detail::RecordHead head = detail::head_of(run_in(directory), plan, mine, written);
    head.list = detail::hash_of(list);
    return join(head, costs, list);
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
    detail::make_root(file_system, target.parent_path());
    if (has_name(file_system, target) && existing != Existing::replace) {
      throw Error(ErrorCode::already_exists,
                  fmt::format("save {}: it is already there: Existing::replace takes its place, "
                              "Existing::skip writes nothing",
                              target.string()));
    }
    try {
      detail::collect_root_garbage(file_system, target.parent_path());
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
                                     const PublishOptions& options) {
  detail::check_json(options);
  try {
    auto [heads, lists, costs] = read_records(records, run_in(directory()));
    auto [manifest, stats] = detail::merge(heads, std::move(lists), options.process);
    manifest.id = impl_->attempt.id();
    manifest.user_json = options.user_json;
    manifest.objects_json = detail::with_metrics(options.objects_json, options.metrics);
    const std::vector<std::byte> index =
        detail::build_useful_index(manifest.writers, manifest.tensors);
    detail::check_written_files(*impl_->files, directory(), manifest);
    stats.file_bytes += detail::complete(*impl_->files, directory(), manifest, index);
    stats.directory = impl_->attempt.publish(impl_->existing);
    stats.total_seconds = stats.blocked_seconds = impl_->watch.seconds();
    stats.plan_seconds = costs.plan_seconds;
    stats.write_seconds = costs.write_seconds;
    stats.publish_seconds =
        std::max(0.0, stats.total_seconds - stats.plan_seconds - stats.write_seconds);
    stats.memory_bytes = costs.memory_bytes;
    return stats;
  } catch (const Error& e) {
    throw Error(e, fmt::format("publish: {}", e.what()));
  }
}

bool is_saved(const std::filesystem::path& target, std::shared_ptr<FileSystem> file_system) {
  const auto files = real_if_null(std::move(file_system));
  const std::filesystem::path absolute = absolute_target(target);
  try {
    if (!has_name(*files, absolute)) return false;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;  // nor is the folder above
  }
  try {
    static_cast<void>(detail::check_readable(*files, absolute));
    return true;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    throw detail::not_skipped("save " + target.string(), e.what());
  }
}

SaveStats save_checkpoint(const std::filesystem::path& target, std::vector<TensorSource> sources,
                          Existing existing, const EncodeOptions& encode,
                          const PublishOptions& publish) {
  if (existing == Existing::skip && is_saved(target, encode.file_system)) {
    SaveStats stats;
    stats.directory = absolute_target(target);
    stats.skipped = true;
    return stats;
  }
  CheckpointAttempt attempt(target, existing, encode.file_system);
  const ShardRecord record = write_shards(attempt.directory(), {}, std::move(sources), encode);
  return attempt.publish({&record, 1}, publish);
}

}  // namespace shardwise
