#include "shardwise/checkpoint/detail/write/part.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Writes the shard files of an attempt, one after the other. Thread-compatible.
class ShardFiles {
 public:
  ShardFiles(const PartTools& tools, const AttemptDirectory& directory,
             const EncodeOptions& options, const FindEarlier& find_earlier)
      : tools_(tools), directory_(directory), options_(options), find_earlier_(find_earlier) {}

  std::vector<WrittenShardFile> write(const SavePlan& plan) {
    const std::vector<ChunkLayout> layouts =
        ChunkLayout::of_files(plan.tensors, std::ssize(plan.files));
    if (directory_.is_reused && !directory_.is_shared) remove_all_but(plan.files);
    const bool may_be_unchanged = has_chunks_to_compare(plan);
    if (!may_be_unchanged || earlier().directory.empty()) check_room(plan);
    std::vector<WrittenShardFile> written;
    for (std::size_t f = 0; f < plan.files.size(); ++f) {
      const std::unique_ptr<File> file = make_file(plan.files[f].name);
      make_pool(layouts[f]);
      std::unique_ptr<UnchangedChunks> unchanged;
      if (may_be_unchanged) {
        unchanged = UnchangedChunks::open(tools_.file_system, earlier(), directory_.path, plan, f,
                                          layouts[f]);
      }
      written.push_back(write_shard_file(plan, f, layouts[f], unchanged.get(), *file, *tools_.pool,
                                         progress_of(plan)));
      done_bytes_ += layouts[f].logical_bytes();
    }
    return written;
  }

 private:
  // Before the first byte, if all of it needs room that is not there. Not if files of a spare are
  // there to be written in, or a step before that may have some of it.
  void check_room(const SavePlan& plan) {
    if (plan.files.empty() || directory_.is_reused) return;
    const std::uint64_t free = tools_.file_system.free_bytes(directory_.path);
    if (plan.least_bytes <= free) return;
    throw Error(ErrorCode::io,
                fmt::format("write shard files in {}: found {} bytes free, needed are at least {}",
                            directory_.path.string(), free, plan.least_bytes),
                ENOSPC);
  }

  // Files of a spare that this checkpoint lacks go first: their room may be needed.
  void remove_all_but(std::span<const FileEntry> wanted) {
    std::unordered_set<std::string_view> names;
    for (const FileEntry& file : wanted) names.insert(file.name);
    for (const std::string& name : tools_.file_system.list(directory_.path)) {
      if (!names.contains(name)) remove_tree(tools_.file_system, directory_.path / name);
    }
  }

  // One that a spare has left, if it can be reused, or a new one.
  std::unique_ptr<File> make_file(const std::string& name) {
    const std::filesystem::path path = directory_.path / name;
    if (directory_.is_reused) {
      if (auto file = tools_.file_system.reuse(path, Caching::direct)) return file;
      tools_.file_system.remove(path);
      tools_.file_system.sync_directory(directory_.path);  // the name is used again
    }
    return tools_.file_system.create(path, Caching::direct);
  }

  // Small pieces are always written.
  bool has_chunks_to_compare(const SavePlan& plan) const {
    if (!find_earlier_) return false;
    for (const TensorEntry& tensor : plan.tensors) {
      for (const PieceEntry& piece : tensor.pieces) {
        if (piece.layout == Layout::chunked) return true;
      }
    }
    return false;
  }

  const EarlierStep& earlier() {
    if (!earlier_) earlier_ = find_earlier_();
    return *earlier_;
  }

  void make_pool(const ChunkLayout& layout) {
    const StagingSizes sizes =
        staging_sizes(options_.memory_budget_bytes, tools_.executor.threads(), layout.most_bytes());
    if (tools_.pool && tools_.pool->sizes() == sizes) return;
    tools_.pool.reset();  // first, so that never both are there
    tools_.pool = std::make_unique<StagingPool>(sizes);
  }

  ProgressFunction progress_of(const SavePlan& plan) const {
    if (!options_.progress) return nullptr;
    return [this, total = plan.logical_bytes](const Progress& of_file) {
      options_.progress({done_bytes_ + of_file.done_bytes, total});
    };
  }

  const PartTools& tools_;
  const AttemptDirectory& directory_;
  const EncodeOptions& options_;
  const FindEarlier& find_earlier_;
  std::optional<EarlierStep> earlier_;
  std::size_t done_bytes_ = 0;  // of the files that are complete
};

}  // namespace

std::vector<WrittenShardFile> write_part(const PartTools& tools, const AttemptDirectory& directory,
                                         const SavePlan& plan, const EncodeOptions& options,
                                         const FindEarlier& find_earlier) {
  std::vector<WrittenShardFile> written =
      ShardFiles(tools, directory, options, find_earlier).write(plan);
  // Runs a reader's checks before the step is published: a tensor that fails here could never be
  // read.
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    if (!plan.tensors[t].sharding) continue;  // other writers have the rest
    check_tensor(plan.tensors[t], static_cast<std::int64_t>(t), plan.writers.num_writers());
  }
  std::vector<FileEntry> files;
  files.reserve(written.size());
  for (const WrittenShardFile& file : written) files.push_back(file.entry);
  check_names(plan.tensors, files);
  check_files(files);
  for (std::size_t f = 0; f < files.size(); ++f) {
    check_chunk_table(plan.tensors, files[f], pieces_in_file(plan.tensors, f), written[f].table,
                      files[f].name);
  }
  return written;
}

}  // namespace shardwise::detail
