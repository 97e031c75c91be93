#include "shardwise/checkpoint/detail/write/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
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

// All that a reader checks, before the step is published: nobody could read one that fails here.
void check_written(const Manifest& manifest, std::span<const ChunkTable> tables) {
  check_manifest(manifest);
  for (std::size_t f = 0; f < tables.size(); ++f) {
    check_chunk_table(manifest, static_cast<std::int64_t>(f), tables[f], manifest.files[f].name);
  }
}

// Writes the shard files of an attempt, one after the other. Thread-compatible.
class ShardFiles {
 public:
  ShardFiles(const SaveContext& context, const Attempt& attempt, const SaveOptions& options)
      : context_(context), attempt_(attempt), options_(options) {}

  std::vector<WrittenShardFile> write(const SavePlan& plan, std::span<const ChunkLayout> layouts) {
    if (attempt_.is_reused()) keep_reusable(plan.files);
    std::vector<WrittenShardFile> written;
    for (std::size_t f = 0; f < plan.files.size(); ++f) {
      const std::unique_ptr<File> file = make_file(plan.files[f].name);
      make_pool(layouts[f]);
      written.push_back(
          write_shard_file(plan, f, layouts[f], *file, *context_.pool, progress_of(plan)));
      done_bytes_ += layouts[f].logical_bytes();
    }
    return written;
  }

 private:
  // Removes what a spare held and this checkpoint does not: its files are then those that its
  // manifest lists.
  void keep_reusable(std::span<const FileEntry> wanted) {
    std::unordered_set<std::string_view> names;
    for (const FileEntry& file : wanted) names.insert(file.name);
    for (std::string& name : context_.file_system.list(attempt_.directory())) {
      if (names.contains(name)) {
        reusable_.insert(std::move(name));
      } else {
        remove_tree(context_.file_system, attempt_.directory() / name);
      }
    }
  }

  // One that a spare has left, where it can be reused, or a new one.
  std::unique_ptr<File> make_file(const std::string& name) {
    const std::filesystem::path path = attempt_.directory() / name;
    if (reusable_.contains(name)) {
      if (auto file = context_.file_system.reuse(path, Caching::direct)) return file;
      context_.file_system.remove(path);
      context_.file_system.sync_directory(attempt_.directory());  // the name is given anew
    }
    return context_.file_system.create(path, Caching::direct);
  }

  void make_pool(const ChunkLayout& layout) {
    const StagingSizes sizes = staging_sizes(options_.memory_budget_bytes,
                                             context_.executor.threads(), layout.most_bytes());
    if (context_.pool && context_.pool->sizes() == sizes) return;
    context_.pool.reset();  // first, so that never both are there
    context_.pool = std::make_unique<StagingPool>(sizes);
  }

  ProgressFunction progress_of(const SavePlan& plan) const {
    if (!options_.progress) return nullptr;
    return [this, total = plan.logical_bytes](const Progress& of_file) {
      options_.progress({done_bytes_ + of_file.done_bytes, total});
    };
  }

  const SaveContext& context_;
  const Attempt& attempt_;
  const SaveOptions& options_;
  std::unordered_set<std::string> reusable_;
  std::size_t done_bytes_ = 0;  // of the files that are complete
};

// Whether index.h5 would be of use, see kMostIndexedWriters.
bool wants_index(const SavePlan& plan) {
  std::size_t mappings = 0;
  for (const TensorEntry& tensor : plan.tensors) mappings += tensor.pieces.size();
  return plan.writers.num_writers() <= kMostIndexedWriters && mappings <= kMostMappings;
}

// Writes the files of an attempt, the manifest last.
SaveStats write_attempt(const SaveContext& context, const Attempt& attempt, std::int64_t step,
                        std::vector<TensorSource> sources, const SaveOptions& options) {
  const WriterMap writers = writers_for(sources, options.writers);
  SavePlan plan =
      plan_save(std::move(sources), options.codec, context.executor, writers, {0, options.writers});
  std::replace(plan.efforts.begin(), plan.efforts.end(), Effort::huffman_only, context.huffman);
  const std::vector<ChunkLayout> layouts =
      ChunkLayout::of_files(plan.tensors, std::ssize(plan.files));

  Manifest manifest;
  manifest.id = attempt.id();
  manifest.step = step;
  manifest.user_json = options.user_json;
  manifest.writers = writers;
  // The index needs the shard files' names only, so it is made while the files are written.
  ShardFiles shards(context, attempt, options);
  std::vector<WrittenShardFile> written;
  std::vector<std::byte> index;
  const std::function<void()> jobs[] = {[&] { written = shards.write(plan, layouts); },
                                        [&] {
                                          if (!wants_index(plan)) return;
                                          index = build_index_file(plan.tensors, plan.files);
                                        }};
  run_lanes({.jobs = std::size(jobs),
             .lanes = std::size(jobs),
             .run = [&](std::size_t job, std::size_t) { jobs[job](); }});
  manifest.tensors = std::move(plan.tensors);
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());
  SaveStats stats;
  std::vector<ChunkTable> tables;
  for (WrittenShardFile& file : written) {
    stats.stored_bytes += file.entry.stored_bytes;
    stats.file_bytes += file.entry.bytes;
    manifest.files.push_back(std::move(file.entry));
    tables.push_back(std::move(file.table));
  }
  check_written(manifest, tables);
  const std::string text = print_manifest(manifest);
  if (text.size() > kMaxManifestBytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("write {}: it has {} bytes, at most {} are possible", kManifestName,
                            text.size(), kMaxManifestBytes));
  }
  if (manifest.has_index()) {
    write_whole_file(context.file_system, attempt.directory() / kIndexName, index);
  }
  write_whole_file(context.file_system, attempt.directory() / kManifestName,
                   std::as_bytes(std::span(text)));
  context.file_system.sync_directory(attempt.directory());

  stats.logical_bytes = plan.logical_bytes;
  stats.chunks = plan.chunks;
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
