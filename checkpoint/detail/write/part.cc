#include "shardwise/checkpoint/detail/write/part.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/detail/write/written_file.h"

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
    std::vector<WrittenShardFile> written;
    for (std::size_t f = 0; f < plan.files.size(); ++f) {
      if (directory_.is_resumed) {
        if (auto there = read_written_file(tools_.file_system, directory_.path, plan, f)) {
          written.push_back(std::move(*there));
          done_bytes_ += layouts[f].logical_bytes();
          continue;
        }
      }
      const std::unique_ptr<File> file = make_file(plan.files[f].name);
      make_pool(layouts[f]);
      const auto unchanged = find_unchanged(plan, f, layouts[f]);
      written.push_back(write_shard_file(plan, f, layouts[f], unchanged.get(), *file, *tools_.pool,
                                         progress_of(plan)));
      done_bytes_ += layouts[f].logical_bytes();
      if (directory_.is_resumed)
        note_written_file(tools_.file_system, directory_.path, written.back().entry);
    }
    return written;
  }

 private:
  // What a spare held and this checkpoint does not goes first: its room may be needed.
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
    if (directory_.is_resumed) remove_tree(tools_.file_system, path);
    if (directory_.is_reused) {
      if (auto file = tools_.file_system.reuse(path, Caching::direct)) return file;
      tools_.file_system.remove(path);
      tools_.file_system.sync_directory(directory_.path);  // the name is given anew
    }
    return tools_.file_system.create(path, Caching::direct);
  }

  // An attempt that is gone on with has no linked files.
  std::unique_ptr<UnchangedChunks> find_unchanged(const SavePlan& plan, std::size_t file,
                                                  const ChunkLayout& layout) {
    if (!find_earlier_ || directory_.is_resumed) return nullptr;
    const auto is_chunked = [&](const FilePiece& piece) {
      return plan.tensors[piece.id.tensor].pieces[piece.id.piece].layout == Layout::chunked;
    };
    if (std::ranges::none_of(layout.pieces(), is_chunked)) return nullptr;
    if (!earlier_) earlier_ = find_earlier_();
    return UnchangedChunks::open(tools_.file_system, *earlier_, directory_.path, plan, file,
                                 layout);
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
  // All that a reader checks of them, before the step is published: nobody could read one that
  // fails here.
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    if (!plan.tensors[t].sharding) continue;  // other writers have the rest
    check_tensor(plan.tensors[t], static_cast<std::int64_t>(t), plan.writers.num_writers());
  }
  std::vector<FileEntry> files;
  files.reserve(written.size());
  for (const WrittenShardFile& file : written) files.push_back(file.entry);
  check_names(plan.tensors, files);
  check_files(files, true);
  for (std::size_t f = 0; f < files.size(); ++f) {
    check_chunk_table(plan.tensors, {.number = f, .entry = files[f]},
                      pieces_in_file(plan.tensors, f), written[f].table, files[f].name);
  }
  return written;
}

}  // namespace shardwise::detail
