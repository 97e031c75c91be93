#include "shardwise/checkpoint/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

/// How a tensor is cut over the new mesh.
Sharding new_sharding(const TensorInfo& tensor, const Mesh& mesh, const SpecRules& rules) {
  const std::size_t rank = tensor.shape.size();
  const auto ruled = rules.find(tensor.name, rank);
  if (!ruled && tensor.mesh.empty()) return Sharding::replicated(mesh, rank);
  PartitionSpec spec = ruled ? *ruled : PartitionSpec::parse(tensor.spec);
  if (spec.rank() != rank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("its spec \"{}\" has {} dims, its shape {}", tensor.spec, spec.rank(),
                            to_string(tensor.shape)));
  }
  Sharding sharding(mesh, std::move(spec),
                    ruled ? UnevenPolicy() : UnevenPolicy::parse(tensor.policy));
  static_cast<void>(sharding.shard_shape(tensor.shape));
  return sharding;
}

/// The tensors to be saved. Throws one invalid_argument for all that do not fit; `operation` says
/// of what.
std::vector<TensorSource> new_sources(const BoxReader& reader, const Mesh& mesh,
                                      const SpecRules& rules, std::string_view operation) {
  // Not owned: the caller's, who waits for the save.
  const std::shared_ptr<const BoxReader> shared(std::shared_ptr<void>(), &reader);
  std::vector<TensorSource> sources;
  std::vector<std::string> wrong;
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : reader.tensors()) {
    const std::size_t number = names.size();
    names.push_back(tensor.name);
    try {
      sources.push_back({tensor.name, shared, number, new_sharding(tensor, mesh, rules)});
    } catch (const Error& e) {
      wrong.push_back(fmt::format("tensor {:?}: {}", tensor.name, e.what()));
    }
  }
  std::string count = fmt::format("{} of {} tensors do not fit", wrong.size(), names.size());
  for (const std::string& pattern : rules.unmatched(names)) {
    wrong.push_back(fmt::format("rule {:?} matches none", pattern));
  }
  if (!wrong.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} to mesh {}: {}: {}", operation, mesh.to_string(), count,
                            fmt::join(wrong, "; ")));
  }
  return sources;
}

SaveStats reshard(const BoxReader& source, const ReshardTarget& target, const Mesh& mesh,
                  const SpecRules& rules, ReshardOptions options, std::string_view operation) {
  std::vector<TensorSource> sources = new_sources(source, mesh, rules, operation);
  CheckpointManager manager(
      target.root, {.threads = options.read.threads, .file_system = options.read.file_system});
  return manager.save(target.step, std::move(sources), std::move(options.save));
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

SaveStats reshard_checkpoint(const std::filesystem::path& source,
                             const std::filesystem::path& target_root, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options) {
  const auto file_system =
      options.read.file_system ? options.read.file_system : posix_file_system();
  const detail::Pin pin(*file_system, source);  // it may be read for long
  detail::StoredCheckpoint checkpoint = detail::open_checkpoint(*file_system, source);

  options.read.threads = Executor(options.read.threads).threads();
  const Budget budget = divide(options.save.memory_budget_bytes, options.read.threads);
  ReadOptions read = options.read;
  read.memory_budget_bytes = budget.read_bytes;
  read.progress = nullptr;  // of every box: the save's says how far the whole is
  detail::ChunkReader chunks(std::move(checkpoint), read);
  const detail::CachedReader cached(chunks, budget.cache_bytes);

  options.save.memory_budget_bytes = budget.save_bytes;
  options.save.user_json = chunks.checkpoint().manifest.user_json;
  const std::int64_t step = chunks.checkpoint().manifest.step;
  return reshard(cached, {target_root, step}, mesh, rules, std::move(options),
                 "reshard " + source.string());
}

}  // namespace shardwise
