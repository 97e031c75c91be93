#include "shardwise/checkpoint/detail/write/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/lanes.h"
#include "shardwise/checkpoint/detail/manifest_check.h"
#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/index_file.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// The file for some of the data: one that a spare has left, where it can be reused, or a new one.
std::unique_ptr<File> make_file(FileSystem& file_system, const Attempt& attempt,
                                const std::string& name, bool is_there) {
  const std::filesystem::path path = attempt.directory() / name;
  if (is_there) {
    if (std::unique_ptr<File> file = file_system.reuse(path, Caching::direct)) return file;
    file_system.remove(path);
    file_system.sync_directory(attempt.directory());  // the name is given anew
  }
  return file_system.create(path, Caching::direct);
}

// Writes one shard file; done_bytes counts for the progress of all.
WrittenShardFile write_one(const SaveContext& context, const SavePlan& plan, std::int64_t number,
                           File& file, const std::string& name, const SaveOptions& options,
                           std::size_t& done_bytes) {
  const std::optional<SavePlan> part =
      plan.files == 1 ? std::nullopt : std::optional(plan_of_file(plan, number));
  const SavePlan& own = part ? *part : plan;
  const StagingSizes sizes =
      staging_sizes(options.memory_budget_bytes, context.executor.threads(), most_data_bytes(own));
  if (!context.pool || context.pool->sizes() != sizes) {
    context.pool.reset();  // first, so that never both are there
    context.pool = std::make_unique<StagingPool>(sizes);
  }
  ProgressFunction progress;
  if (options.progress) {
    progress = [&](const Progress& of_file) {
      options.progress({done_bytes + of_file.done_bytes, plan.logical_bytes});
    };
  }
  WrittenShardFile written = write_shard_file(own, file, name, *context.pool, progress);
  done_bytes += own.logical_bytes;
  return written;
}

// What a reader checks of the tensors, before anything is written: among it the proof that the
// pieces cover every element once.
void check_plan(const SavePlan& plan, std::span<const FileEntry> files) {
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    check_tensor(plan.tensors[t], static_cast<std::int64_t>(t));
  }
  check_lists(plan.tensors, files);
}

// All that a reader checks, before the step is published: nobody could read one that fails here.
void check_written(const Manifest& manifest, std::span<const ChunkTable> tables) {
  check_manifest(manifest);
  for (std::size_t f = 0; f < tables.size(); ++f) {
    check_chunk_table(manifest, static_cast<std::int64_t>(f), tables[f], manifest.files[f].name);
  }
}

// Removes what a spare held and this checkpoint does not: its files are then those that its
// manifest lists. Says which of those are there.
std::unordered_set<std::string> remove_others(FileSystem& file_system,
                                              const std::filesystem::path& directory,
                                              std::span<const FileEntry> wanted) {
  std::unordered_set<std::string_view> names;
  for (const FileEntry& file : wanted) names.insert(file.name);
  std::unordered_set<std::string> there;
  for (std::string& name : file_system.list(directory)) {
    if (names.contains(name)) {
      there.insert(std::move(name));
    } else {
      remove_tree(file_system, directory / name);
    }
  }
  return there;
}

// Writes the files of an attempt, the manifest last.
SaveStats write_attempt(const SaveContext& context, const Attempt& attempt, std::int64_t step,
                        std::vector<TensorSource> sources, const SaveOptions& options) {
  SavePlan plan = plan_save(std::move(sources), options.codec, context.executor, options.writers);
  std::replace(plan.efforts.begin(), plan.efforts.end(), Effort::huffman_only, context.huffman);
  SaveStats stats;
  stats.logical_bytes = plan.logical_bytes;
  stats.chunks = plan.chunks;

  Manifest manifest;
  manifest.minor = kFormatMinor;
  manifest.id = attempt.id();
  manifest.step = step;
  manifest.user_json = options.user_json;
  // The index and the list of tensors need the shard files' names alone, so they are made while the
  // files are written.
  std::vector<FileEntry> named(static_cast<std::size_t>(plan.files));
  for (std::size_t f = 0; f < named.size(); ++f) {
    named[f].name = fmt::format("shards-{:05}-of-{:05}.h5", f, named.size());
  }
  for (const TensorEntry& tensor : plan.tensors) {
    for (const PieceEntry& piece : tensor.pieces) {
      named[static_cast<std::size_t>(piece.file)].chunks += num_chunks(piece);
    }
  }
  check_plan(plan, named);
  std::unordered_set<std::string> there;
  if (attempt.is_reused()) there = remove_others(context.file_system, attempt.directory(), named);
  std::vector<ChunkTable> tables;
  const auto write_files = [&] {
    std::size_t done_bytes = 0;
    for (const FileEntry& entry : named) {
      const std::unique_ptr<File> file =
          make_file(context.file_system, attempt, entry.name, there.contains(entry.name));
      WrittenShardFile written =
          write_one(context, plan, std::ssize(tables), *file, entry.name, options, done_bytes);
      stats.stored_bytes += written.stored_bytes;
      stats.file_bytes += written.entry.bytes;
      tables.push_back(std::move(written.table));
      manifest.files.push_back(std::move(written.entry));
    }
  };
  std::vector<std::byte> index;
  std::string list;  // of tensors, as text
  const std::function<void()> jobs[] = {write_files,
                                        [&] { index = build_index_file(plan.tensors, named); },
                                        [&] { list = print_tensors(plan.tensors); }};
  run_lanes({.jobs = std::size(jobs),
             .lanes = std::size(jobs),
             .run = [&](std::size_t job, std::size_t) { jobs[job](); }});
  manifest.tensors = std::move(plan.tensors);
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());
  check_written(manifest, tables);
  const std::string text = print_manifest(manifest, list);
  if (text.size() > kMaxManifestBytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("write {}: it has {} bytes, at most {} are possible", kManifestName,
                            text.size(), kMaxManifestBytes));
  }
  write_whole_file(context.file_system, attempt.directory() / kIndexName, index);
  write_whole_file(context.file_system, attempt.directory() / kManifestName,
                   std::as_bytes(std::span(text)));
  context.file_system.sync_directory(attempt.directory());
  stats.file_bytes += index.size() + text.size();
  return stats;
}

}  // namespace

SaveStats run_save(const SaveContext& context, std::int64_t step, std::vector<TensorSource> sources,
                   const SaveOptions& options) {
  try {
    Attempt attempt(context.file_system, context.root, step, context.leftovers, &context.spare);
    SaveStats stats = write_attempt(context, attempt, step, std::move(sources), options);
    stats.directory = attempt.publish(options.existing);
    return stats;
  } catch (const CallerError& e) {
    std::rethrow_exception(e.cause);
  } catch (const Error& e) {
    context.spare.drop();  // that it was there may be the reason
    throw Error(e.code(), fmt::format("save step {}: {}", step, e.what()));
  }
}

}  // namespace shardwise::detail
