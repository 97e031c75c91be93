#include "shardwise/checkpoint/reshard.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "shardwise/checkpoint/detail/file.h"
#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/write/pin.h"
#include "shardwise/checkpoint/manager.h"
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
  for (const TensorEntry& tensor : manifest.tensors) {
    try {
      const std::size_t rank = tensor.shape.size();
      const auto ruled = rules.find(tensor.name, rank);
      PartitionSpec spec = ruled ? *ruled : PartitionSpec::parse(tensor.spec);
      if (spec.rank() != rank) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("its spec \"{}\" has {} dims, its shape {}", tensor.spec,
                                spec.rank(), to_string(tensor.shape)));
      }
      shardings.emplace_back(mesh, std::move(spec));
    } catch (const Error& e) {
      wrong.push_back(fmt::format("tensor {:?}: {}", tensor.name, e.what()));
    }
  }
  if (!wrong.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("reshard {} to mesh {}: {} of {} tensors do not fit: {}", source,
                            mesh.to_string(), wrong.size(), manifest.tensors.size(),
                            fmt::join(wrong, "; ")));
  }
  return shardings;
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

  // Half of the budget for chunks that the next boxes will ask for again, half for reading.
  const std::size_t cache_bytes = options.read.memory_budget_bytes / 2;
  ReadOptions read = options.read;
  read.memory_budget_bytes -= cache_bytes;
  read.progress = nullptr;  // of every box: the save's says how far the whole is
  detail::ChunkReader reader(std::move(checkpoint), read);
  detail::CachedReader cached(reader, cache_bytes);

  std::vector<TensorSource> sources;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorEntry& tensor = manifest.tensors[t];
    sources.push_back(
        {tensor.name,
         {tensor.dtype, tensor.shape, shardings[t]},
         [&cached, t](const Box& box, std::span<std::byte> out) { cached.read(t, box, out); }});
  }
  SaveOptions save = options.save;
  save.user_json = manifest.user_json;
  CheckpointManager manager(
      target_root, {.threads = options.read.threads, .file_system = options.read.file_system});
  return manager.save(manifest.step, std::move(sources), std::move(save));
}

}  // namespace shardwise
