#include "shardwise/checkpoint/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "shardwise/checkpoint/detail/file.h"
#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::Manifest;
using detail::TensorEntry;

/// Each tensor's sharding over the new mesh. Throws one invalid_argument for all that do not fit.
std::vector<Sharding> new_shardings(const Manifest& manifest, const std::string& source,
                                    const Mesh& mesh, const SpecRules& rules) {
  std::vector<Sharding> shardings;
  std::vector<std::string> wrong;
  std::vector<std::string_view> names;
  for (const TensorEntry& tensor : manifest.tensors) {
    names.push_back(tensor.name);
    try {
      const std::size_t rank = tensor.shape.size();
      const auto ruled = rules.find(tensor.name, rank);
      PartitionSpec spec = ruled ? *ruled : PartitionSpec::parse(tensor.spec);
      UnevenPolicy policy = ruled ? UnevenPolicy() : UnevenPolicy::parse(tensor.policy);
      if (spec.rank() != rank) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("its spec \"{}\" has {} dims, its shape {}", tensor.spec,
                                spec.rank(), to_string(tensor.shape)));
      }
      shardings.emplace_back(mesh, std::move(spec), std::move(policy));
      static_cast<void>(shardings.back().shard_shape(tensor.shape));
    } catch (const Error& e) {
      wrong.push_back(fmt::format("tensor {:?}: {}", tensor.name, e.what()));
    }
  }
  std::string count =
      fmt::format("{} of {} tensors do not fit", wrong.size(), manifest.tensors.size());
  for (const std::string& pattern : rules.unmatched(names)) {
    wrong.push_back(fmt::format("rule {:?} matches none", pattern));
  }
  if (!wrong.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("reshard {} to mesh {}: {}: {}", source, mesh.to_string(), count,
                            fmt::join(wrong, "; ")));
  }
  return shardings;
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

SaveStats reshard_checkpoint(const std::filesystem::path& source,
                             const std::filesystem::path& target_root, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options) {
  const auto file_system =
      options.read.file_system ? options.read.file_system : posix_file_system();
  const detail::Pin pin(*file_system, source);  // it may be read for long
  detail::StoredCheckpoint checkpoint = detail::open_checkpoint(*file_system, source);
  const Manifest manifest = checkpoint.manifest;
  const std::vector<Sharding> shardings = new_shardings(manifest, source.string(), mesh, rules);

  const int threads = Executor(options.read.threads).threads();
  const Budget budget = divide(options.save.memory_budget_bytes, threads);
  ReadOptions read = options.read;
  read.memory_budget_bytes = budget.read_bytes;
  read.progress = nullptr;  // of every box: the save's says how far the whole is
  detail::ChunkReader reader(std::move(checkpoint), read);
  detail::CachedReader cached(reader, budget.cache_bytes);

  std::vector<TensorSource> sources;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorEntry& tensor = manifest.tensors[t];
    sources.push_back(
        {tensor.name,
         {tensor.dtype, tensor.shape, shardings[t]},
         [&cached, t](const Box& box, std::span<std::byte> out) { cached.read(t, box, out); }});
  }
  SaveOptions save = options.save;
  save.memory_budget_bytes = budget.save_bytes;
  save.user_json = manifest.user_json;
  CheckpointManager manager(target_root,
                            {.threads = threads, .file_system = options.read.file_system});
  return manager.save(manifest.step, std::move(sources), std::move(save));
}

}  // namespace shardwise
