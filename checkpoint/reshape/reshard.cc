#include "shardwise/reshape/reshard.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/jobs/detail/save/save_together.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/detail/edits/edit_text.h"
#include "shardwise/reshape/detail/reshard/new_shardings.h"
#include "shardwise/reshape/detail/reshard/reshard_costs.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// Room for a chunk of 1 MiB in the widest dtype that can be cast to the narrowest.
constexpr std::size_t kMostScratchBytes = std::size_t{4} << 20;

/// Throws if the directory is a checkpoint's, or inside one: no checkpoint holds another, and its
/// contents never change. In a bucket the names alone tell.
void refuse_inside_checkpoint(const fs::path& root) {
  const auto refuse = [&](const fs::path& at) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("reshard into {}: {} is a checkpoint, needed is a directory outside",
                            root.string(), at.string()));
  };
  if (in_bucket(root)) {
    for (fs::path at = root; at.has_relative_path(); at = at.parent_path()) {
      if (detail::parse_step_name(at.filename().string())) refuse(at);
    }
    return;
  }
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
    if (is_unfinished || is_committed) refuse(at);
  }
}

/// Tensors that are going to be saved, and the reader that has the edits, if there are any.
struct Edited {
  std::vector<TensorSource> sources;
  std::shared_ptr<const EditedTensors> reader;
};

/// Takes memory for edits of elements from the budget of the save.
Edited edited_sources(const BoxReader& source, const Mesh& mesh, const SpecRules& rules,
                      ReshardOptions& options, std::string_view operation) {
  Edited edited;
  // Not owned: the caller's, who waits for the save.
  std::shared_ptr<const BoxReader> reader(std::shared_ptr<void>(), &source);
  if (!options.edits.empty()) {
    std::size_t scratch_bytes = 0;  // of each thread
    if (!options.edits.keeps_elements()) {
      const std::size_t threads = as_size(Executor::threads_for(options.threads));
      const std::size_t budget = options.save.memory_budget_bytes;
      scratch_bytes = std::min(budget / 8 / threads, kMostScratchBytes);
      options.save.memory_budget_bytes =
          std::max(budget - scratch_bytes * threads, std::min(budget, detail::kLeastBudgetBytes));
    }
    edited.reader =
        std::make_shared<const EditedTensors>(reader, options.edits, operation, scratch_bytes);
    reader = edited.reader;
  }
  const std::span<const TensorInfo> tensors = reader->tensors();
  std::vector<Sharding> shardings = reshape_detail::new_shardings(tensors, mesh, rules, operation);
  edited.sources.reserve(tensors.size());
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    edited.sources.push_back({tensors[t].name, reader, t, std::move(shardings[t])});
  }
  return edited;
}

SaveStats reshard(const BoxReader& source, const ReshardTarget& target, const Mesh& mesh,
                  const SpecRules& rules, ReshardOptions options, std::string_view operation) {
  refuse_inside_checkpoint(target.root);
  std::vector<TensorSource> sources =
      edited_sources(source, mesh, rules, options, operation).sources;
  ManagerOptions manager_options;
  manager_options.write.stats = false;  // they are the result
  manager_options.write.threads = options.threads;
  manager_options.group = options.group;
  manager_options.devices = detail::last_device(mesh) + 1;
  manager_options.file_system = options.file_system;
  CheckpointManager manager(target.root, manager_options);
  return manager.save(target.step, std::move(sources), std::move(options.save));
}

/// True if the target holds the step.
bool is_there(FileSystem& file_system, const ReshardTarget& target) {
  try {
    return std::ranges::any_of(detail::committed_names(file_system, target.root),
                               [&](const auto& name) { return name.step == target.step; });
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
    return false;
  }
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

namespace {

/// A checkpoint that is going to be written again, and the options of that.
class Source {
 public:
  Source(const fs::path& path, ReshardOptions& options)
      : file_system_(file_system_of(path, options.file_system)),
        pin_(*file_system_, path),  // it may be read for long
        checkpoint_(detail::open_checkpoint(*file_system_, path)) {
    options.threads = Executor::threads_for(options.threads);
    const Budget budget = divide(options.save.memory_budget_bytes, options.threads);
    options.save.memory_budget_bytes = budget.save_bytes;
    options.save.user_json = checkpoint_.manifest.user_json;
    options.save.objects_json =
        options.edits.keeps_names() ? checkpoint_.manifest.objects_json : std::string();
    step_ = std::max<std::int64_t>(checkpoint_.manifest.step, 0);  // 0 without a step
    id_ = checkpoint_.manifest.id;
    std::vector<TensorInfo> tensors = detail::tensor_infos(checkpoint_);
    const ReadOptions read{.memory_budget_bytes = budget.read_bytes,
                           .threads = options.threads,
                           .file_system = file_system_};
    chunks_ = std::make_unique<detail::ChunkReader>(std::move(checkpoint_), read);
    cache_bytes_ = budget.cache_bytes;
    reader_ = std::make_unique<detail::CachedReader>(*chunks_, std::move(tensors), cache_bytes_);
  }

  std::int64_t step() const { return step_; }
  const std::string& id() const { return id_; }
  std::size_t cache_bytes() const { return cache_bytes_; }
  detail::ChunkReader& chunks() const { return *chunks_; }
  const BoxReader& reader() const { return *reader_; }

 private:
  const std::shared_ptr<FileSystem> file_system_;
  const detail::Pin pin_;
  detail::StoredCheckpoint checkpoint_;  // until chunks_ has it
  std::int64_t step_ = 0;
  std::string id_;
  std::size_t cache_bytes_ = 0;
  std::unique_ptr<detail::ChunkReader> chunks_;
  std::unique_ptr<detail::CachedReader> reader_;
};

/// Throws errors of the sources unchanged.
detail::SavePlan planned(std::vector<TensorSource> sources, Codec codec, const Executor& executor,
                         const detail::WriterMap& writer_map, std::int64_t writers) {
  try {
    return detail::plan_save(std::move(sources), codec, executor, writer_map, {0, writers});
  } catch (const detail::CallerError& e) {
    std::rethrow_exception(e.cause);
  }
}

}  // namespace

SaveStats reshard_checkpoint(const fs::path& source, const fs::path& target_root, const Mesh& mesh,
                             const SpecRules& rules, ReshardOptions options) {
  const Source checkpoint(source, options);
  return reshard(checkpoint.reader(), {target_root, checkpoint.step()}, mesh, rules,
                 std::move(options), "reshard " + source.string());
}

ReshardPlan plan_reshard(const fs::path& source, const fs::path& target_root, const Mesh& mesh,
                         const SpecRules& rules, ReshardOptions options) {
  const Source checkpoint(source, options);
  refuse_inside_checkpoint(target_root);
  Edited edited =
      edited_sources(checkpoint.reader(), mesh, rules, options, "reshard " + source.string());
  jobs_detail::check_save(checkpoint.step(), edited.sources, options.save, options.threads,
                          options.group.size());
  const auto targets = file_system_of(target_root, options.file_system);
  if (is_there(*targets, {target_root, checkpoint.step()})) {
    if (options.save.existing == Existing::fail) {
      detail::refuse_existing(*targets, detail::absolute_root(target_root), checkpoint.step());
    }
    if (options.save.existing == Existing::skip) {
      jobs_detail::LatestSteps(*targets, target_root, false).find_valid(checkpoint.step());
      return {.step = checkpoint.step(), .skipped = true};
    }
  }
  const std::int64_t writers = options.save.writers * options.group.size();
  const Executor executor(options.threads);
  const detail::WriterMap writer_map =
      detail::writers_for(edited.sources, writers, detail::last_device(mesh) + 1);
  const detail::SavePlan plan =
      planned(std::move(edited.sources), options.save.codec, executor, writer_map, writers);
  const std::vector<detail::ChunkLayout> files =
      detail::ChunkLayout::of_files(plan.tensors, std::ssize(plan.files));
  for (const detail::ChunkLayout& file : files) {
    detail::staging_sizes(options.save.memory_budget_bytes, options.threads, file.most_bytes());
  }
  const auto boxes_of = [&edited](const TensorSource& tensor, const Box& box) {
    if (edited.reader) return edited.reader->source_boxes(tensor.tensor, box);
    return std::vector<EditedTensors::SourceBox>{{tensor.tensor, box}};
  };
  const reshape_detail::ReadCosts costs = reshape_detail::costs_of_reading(
      checkpoint.chunks(), plan, files, boxes_of, checkpoint.cache_bytes());
  return {.step = checkpoint.step(),
          .tensors = plan.tensors.size(),
          .source_tensors = checkpoint.reader().tensors().size(),
          .logical_bytes = plan.logical_bytes,
          .chunks = costs.chunks,
          .decodes = costs.decodes,
          .read_bytes = costs.stored_bytes,
          .decoded_bytes = costs.decoded_bytes,
          .needed_bytes = costs.needed_bytes,
          .files = std::ssize(plan.files),
          .file_chunks = plan.chunks,
          .most_file_bytes = reshape_detail::most_file_bytes(plan, files)};
}

}  // namespace shardwise
