#include "shardwise/checkpoint/detail/write/save.h"

#include <fmt/format.h>

#include <future>
#include <span>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/write/attempt.h"
#include "shardwise/checkpoint/detail/write/index_file.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Writes the files of an attempt, the manifest last.
SaveStats write_attempt(const SaveContext& context, const Attempt& attempt, std::int64_t step,
                        std::vector<TensorSource> sources, const SaveOptions& options) {
  SavePlan plan = plan_save(std::move(sources), options.codec, context.executor);
  SaveStats stats;
  stats.logical_bytes = plan.logical_bytes;
  stats.chunks = plan.chunks;

  Manifest manifest;
  manifest.id = attempt.id();
  manifest.step = step;
  manifest.user_json = options.user_json;
  // The index needs the shard files' names alone, so it is made while they are written.
  const std::string shard_name = "shards-00000-of-00001.h5";
  const FileEntry named{.name = shard_name};
  std::future<std::vector<std::byte>> making_index = std::async(std::launch::async, [&] {
    return build_index_file(plan.tensors, {&named, 1});
  });
  std::vector<ChunkRecord> records;
  if (plan.chunks > 0) {
    const StagingSizes sizes = staging_sizes(options.memory_budget_bytes,
                                             context.executor.threads(), most_data_bytes(plan));
    if (!context.pool || context.pool->sizes() != sizes) {
      context.pool.reset();  // first, so that never both are there
      context.pool = std::make_unique<StagingPool>(sizes);
    }
    WrittenShardFile file = write_shard_file(plan, context.file_system, attempt.directory(),
                                             shard_name, *context.pool, options.progress);
    stats.stored_bytes = file.stored_bytes;
    stats.file_bytes += file.entry.bytes;
    records = std::move(file.records);
    manifest.files.push_back(std::move(file.entry));
  }
  const std::vector<std::byte> index = making_index.get();
  manifest.tensors = std::move(plan.tensors);
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());

  // Whoever reads it makes the same checks, so what is published is what is readable; among them
  // the proof that the pieces cover every element once.
  const std::string text = print_manifest(manifest);
  const std::filesystem::path path = attempt.directory() / kManifestName;
  std::future<void> checking = std::async(std::launch::async, [&] {
    const Manifest checked = parse_manifest(text, path.string());
    if (!records.empty()) check_chunk_table(checked, 0, records, checked.files[0].name);
  });
  write_whole_file(context.file_system, attempt.directory() / kIndexName, index);
  write_whole_file(context.file_system, path, std::as_bytes(std::span(text)));
  context.file_system.sync_directory(attempt.directory());
  checking.get();
  stats.file_bytes += index.size() + text.size();
  return stats;
}

}  // namespace

SaveStats run_save(const SaveContext& context, std::int64_t step, std::vector<TensorSource> sources,
                   const SaveOptions& options) {
  try {
    Attempt attempt(context.file_system, context.root, step, context.leftovers);
    SaveStats stats = write_attempt(context, attempt, step, std::move(sources), options);
    stats.directory = context.root / to_string(attempt.publish(options.existing));
    return stats;
  } catch (const CallerError& e) {
    std::rethrow_exception(e.cause);
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("save step {}: {}", step, e.what()));
  }
}

}  // namespace shardwise::detail
