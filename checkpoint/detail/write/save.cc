#include "shardwise/checkpoint/detail/write/save.h"

#include <fmt/format.h>

#include <functional>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

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

// The manifest's list of tensors. Whoever reads it makes the same checks, so the list that is
// published is readable; among them the proof that the pieces cover every element once, and each
// file's chunks. Sizes and addresses, which the writing of the other files will tell, are as large
// as can be in this draft: the manifest is not longer.
std::string print_checked_tensors(const SavePlan& plan, Manifest draft, const std::string& path) {
  constexpr std::uint64_t kMost = INT64_MAX;
  draft.index_bytes = kMost;
  for (FileEntry& file : draft.files) {
    file.bytes = file.data_end = kMost;
    file.data_begin = file.table_address =
        kMost - static_cast<std::uint64_t>(file.chunks) * sizeof(ChunkRecord);
  }
  std::string tensors = print_tensors(plan.tensors);
  parse_manifest(print_manifest(draft, tensors), path);
  return tensors;
}

// The other half of what a reader checks: what the writing of a file told. Looked at before the
// step is published, as nobody could read one for which it is wrong.
void check_file(const Manifest& manifest, std::int64_t number, std::int64_t chunks,
                std::span<const ChunkRecord> records) {
  const FileEntry& file = manifest.files[static_cast<std::size_t>(number)];
  std::string problem = file_problem(file);
  if (problem.empty() && file.chunks != chunks) {
    problem = fmt::format("it has {} chunks, must have {}", file.chunks, chunks);
  }
  if (!problem.empty()) {
    throw Error(ErrorCode::corrupt, fmt::format("write {}: {}", file.name, problem));
  }
  check_chunk_table(manifest, number, records, file.name);
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
  SaveStats stats;
  stats.logical_bytes = plan.logical_bytes;
  stats.chunks = plan.chunks;

  Manifest manifest;
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
  std::future<std::vector<std::byte>> making_index =
      std::async(std::launch::async, [&] { return build_index_file(plan.tensors, named); });
  const std::filesystem::path path = attempt.directory() / kManifestName;
  Manifest draft = manifest;
  draft.files = named;
  std::future<std::string> printing = std::async(std::launch::async, print_checked_tensors,
                                                 std::cref(plan), std::move(draft), path.string());
  std::unordered_set<std::string> there;
  if (attempt.is_reused()) there = remove_others(context.file_system, attempt.directory(), named);
  std::vector<std::vector<ChunkRecord>> records;
  std::size_t done_bytes = 0;
  for (const FileEntry& entry : named) {
    const std::unique_ptr<File> file =
        make_file(context.file_system, attempt, entry.name, there.contains(entry.name));
    WrittenShardFile written =
        write_one(context, plan, std::ssize(records), *file, entry.name, options, done_bytes);
    stats.stored_bytes += written.stored_bytes;
    stats.file_bytes += written.entry.bytes;
    records.push_back(std::move(written.records));
    manifest.files.push_back(std::move(written.entry));
  }
  const std::vector<std::byte> index = making_index.get();
  const std::string tensors = printing.get();
  manifest.tensors = std::move(plan.tensors);
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());

  const std::string text = print_manifest(manifest, tensors);
  for (std::size_t f = 0; f < records.size(); ++f) {
    check_file(manifest, static_cast<std::int64_t>(f), named[f].chunks, records[f]);
  }
  write_whole_file(context.file_system, attempt.directory() / kIndexName, index);
  write_whole_file(context.file_system, path, std::as_bytes(std::span(text)));
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
    stats.directory = context.root / to_string(attempt.publish(options.existing));
    return stats;
  } catch (const CallerError& e) {
    std::rethrow_exception(e.cause);
  } catch (const Error& e) {
    context.spare.drop();  // that it was there may be the reason
    throw Error(e.code(), fmt::format("save step {}: {}", step, e.what()));
  }
}

}  // namespace shardwise::detail
