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

// Their names, and how many chunks each has: all that is known of them before they are written.
std::vector<FileEntry> planned_files(std::span<const ChunkLayout> layouts) {
  std::vector<FileEntry> files(layouts.size());
  for (std::size_t f = 0; f < files.size(); ++f) {
    files[f].name = fmt::format("shards-{:05}-of-{:05}.h5", f, files.size());
    files[f].chunks = layouts[f].num_chunks();
  }
  return files;
}

// Writes the shard files of an attempt, one after the other. Thread-compatible.
class ShardFiles {
 public:
  ShardFiles(const SaveContext& context, const Attempt& attempt, const SaveOptions& options)
      : context_(context), attempt_(attempt), options_(options) {}

  // `entries` have names, and get all the rest. Returns what each file says about its chunks.
  std::vector<ChunkTable> write(const SavePlan& plan, std::span<const ChunkLayout> layouts,
                                std::span<FileEntry> entries) {
    if (attempt_.is_reused()) keep_reusable(entries);
    std::vector<ChunkTable> tables;
    for (std::size_t f = 0; f < entries.size(); ++f) {
      const std::unique_ptr<File> file = make_file(entries[f].name);
      make_pool(layouts[f]);
      WrittenShardFile written =
          write_shard_file(plan, layouts[f], *file, *context_.pool, progress_of(plan));
      written.entry.name = std::move(entries[f].name);
      entries[f] = std::move(written.entry);
      tables.push_back(std::move(written.table));
      stored_bytes_ += written.stored_bytes;
      done_bytes_ += layouts[f].logical_bytes();
    }
    return tables;
  }

  std::size_t stored_bytes() const { return stored_bytes_; }

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
  std::size_t stored_bytes_ = 0, done_bytes_ = 0;  // of the files that are complete
};

// Writes the files of an attempt, the manifest last.
SaveStats write_attempt(const SaveContext& context, const Attempt& attempt, std::int64_t step,
                        std::vector<TensorSource> sources, const SaveOptions& options) {
  SavePlan plan = plan_save(std::move(sources), options.codec, context.executor, options.writers);
  std::replace(plan.efforts.begin(), plan.efforts.end(), Effort::huffman_only, context.huffman);
  const std::vector<ChunkLayout> layouts = ChunkLayout::of_files(plan.tensors, plan.files);
  const std::vector<FileEntry> planned = planned_files(layouts);
  check_plan(plan, planned);

  // The index and the list of tensors need the shard files' names alone, so they are made while the
  // files are written.
  Manifest manifest;
  manifest.minor = kFormatMinor;
  manifest.id = attempt.id();
  manifest.step = step;
  manifest.user_json = options.user_json;
  manifest.files = planned;
  ShardFiles shards(context, attempt, options);
  std::vector<ChunkTable> tables;
  std::vector<std::byte> index;
  std::string list;  // of tensors, as text
  const std::function<void()> jobs[] = {
      [&] { tables = shards.write(plan, layouts, manifest.files); },
      [&] { index = build_index_file(plan.tensors, planned); },
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

  SaveStats stats;
  stats.logical_bytes = plan.logical_bytes;
  stats.stored_bytes = shards.stored_bytes();
  stats.chunks = plan.chunks;
  stats.file_bytes = index.size() + text.size();
  for (const FileEntry& file : manifest.files) stats.file_bytes += file.bytes;
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
