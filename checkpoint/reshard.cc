#include "shardwise/checkpoint/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/internals.h"
#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/reshard/new_shardings.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// What a chunk of 1 MiB takes in the widest dtype that can be cast to the narrowest.
constexpr std::size_t kMostScratchBytes = std::size_t{4} << 20;

/// Throws if the directory is a checkpoint's, or inside one: no checkpoint holds another, and
/// what it holds never changes.
void refuse_inside_checkpoint(const fs::path& root) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(root), error);
  if (error) return;  // the next write there sees it, too
  for (fs::path at = real; at.has_relative_path(); at = at.parent_path()) {
    const std::string name = at.filename().string();
    const auto hidden = detail::parse_hidden_name(name);
    const bool is_unfinished = hidden && (hidden->kind == detail::HiddenKind::attempt ||
                                          hidden->kind == detail::HiddenKind::trash);
    const bool is_committed =
        detail::parse_step_name(name) && fs::exists(at / detail::kManifestName, error);
    if (!is_unfinished && !is_committed) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("reshard into {}: {} is a checkpoint, needed is a directory outside",
                            root.string(), at.string()));
  }
}

SaveStats reshard(const BoxReader& source, const ReshardTarget& target, const Mesh& mesh,
                  const SpecRules& rules, ReshardOptions options, std::string_view operation,
                  std::string resume_key = {}) {
  refuse_inside_checkpoint(target.root);
  // Not owned: the caller's, who waits for the save.
  std::shared_ptr<const BoxReader> reader(std::shared_ptr<void>(), &source);
  if (!options.edits.empty()) {
    std::size_t scratch_bytes = 0;  // of each thread
    if (!options.edits.casts.empty()) {
      const std::size_t threads = as_size(Executor::threads_for(options.threads));
      const std::size_t budget = options.save.memory_budget_bytes;
      scratch_bytes = std::min(budget / 8 / threads, kMostScratchBytes);
      options.save.memory_budget_bytes =
          std::max(budget - scratch_bytes * threads, std::min(budget, detail::kLeastBudgetBytes));
    }
    reader = std::make_shared<EditedTensors>(reader, options.edits, operation, scratch_bytes);
  }
  const std::span<const TensorInfo> tensors = reader->tensors();
  std::vector<Sharding> shardings = detail::new_shardings(tensors, mesh, rules, operation);
  std::vector<TensorSource> sources;
  sources.reserve(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    sources.push_back({tensors[t].name, reader, t, std::move(shardings[t])});
  }
  ManagerOptions manager_options;
  manager_options.threads = options.threads;
  manager_options.group = options.group;
  manager_options.devices = detail::last_device(mesh) + 1;
  manager_options.file_system = options.file_system;
  CheckpointManager manager = detail::Internals::manager(target.root, manager_options,
                                                         {.resume_key = std::move(resume_key)});
  return manager.save(target.step, std::move(sources), std::move(options.save));
}

/// Tells edits from others.
std::string key_text(const TensorEdits& edits) {
  std::string text;
  for (const std::string& pattern : edits.select) text += fmt::format(" select {:?}", pattern);
  for (const std::string& pattern : edits.exclude) text += fmt::format(" exclude {:?}", pattern);
  for (const auto& [pattern, new_name] : edits.renames) {
    text += fmt::format(" rename {:?} {:?}", pattern, new_name);
  }
  for (const auto& [pattern, dtype] : edits.casts) {
    text += fmt::format(" cast {:?} {}", pattern, name(dtype));
  }
  return text;
}

/// How the host memory of a reshard is divided.
struct Budget {
  std::size_t save_bytes;
  std::size_t cache_bytes;  ///< of chunks that the next boxes will ask for again
  std::size_t read_bytes;   ///< of one box: each of the save's workers may ask for one at once
};

Budget divide(std::size_t bytes, int threads) {
  Budget budget{};
  budget.save_bytes = std::min(bytes, std::max(bytes / 2, detail::kLeastBudgetBytes));
  budget.cache_bytes = (bytes - budget.save_bytes) / 2;
  budget.read_bytes =
      (bytes - budget.save_bytes - budget.cache_bytes) / static_cast<std::size_t>(threads);
  return budget;
}

}  // namespace

SaveStats reshard_checkpoint(const BoxReader& source, const ReshardTarget& target, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options) {
  return reshard(source, target, mesh, rules, std::move(options), "reshard");
}

SaveStats reshard_checkpoint(const fs::path& source, const fs::path& target_root, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options) {
  const auto file_system = options.file_system ? options.file_system : posix_file_system();
  const detail::Pin pin(*file_system, source);  // it may be read for long
  detail::StoredCheckpoint checkpoint = detail::open_checkpoint(*file_system, source);

  options.threads = Executor::threads_for(options.threads);
  const Budget budget = divide(options.save.memory_budget_bytes, options.threads);
  const ReadOptions read{.memory_budget_bytes = budget.read_bytes,
                         .threads = options.threads,
                         .file_system = file_system};
  options.save.memory_budget_bytes = budget.save_bytes;
  options.save.user_json = checkpoint.manifest.user_json;
  options.save.objects_json =
      options.edits.keeps_names() ? checkpoint.manifest.objects_json : std::string();
  const std::int64_t step = checkpoint.manifest.step;
  const std::string source_id = checkpoint.manifest.id;
  std::vector<TensorInfo> tensors = detail::tensor_infos(checkpoint);
  detail::ChunkReader chunks(std::move(checkpoint), read);
  const detail::CachedReader cached(chunks, std::move(tensors), budget.cache_bytes);

  // With one file there is nothing to be kept.
  std::string resume_key;
  if (options.save.writers * options.group.size() > 1) {
    resume_key = fmt::format("{} {} {} {} {} {}{}", source_id, name(options.save.codec),
                             options.group.size(), options.save.processes_per_file,
                             options.save.writers, mesh.to_string(), key_text(options.edits));
  }
  return reshard(cached, {target_root, step}, mesh, rules, std::move(options),
                 "reshard " + source.string(), std::move(resume_key));
}

}  // namespace shardwise
