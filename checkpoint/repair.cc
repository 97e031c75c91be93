#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/repair/chunk_finder.h"
#include "shardwise/checkpoint/detail/root/pin.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

using detail::ChunkId;
using detail::StoredCheckpoint;

/// What a damage is of: its file and, of a chunk, the record's number and the tensor.
using Place = std::tuple<std::string, std::int64_t, std::string>;

Place place_of(const Damage& damage) { return {damage.file, damage.chunk, damage.tensor}; }

/// The other steps of the checkpoint's root, the newest first; then what was given.
std::vector<fs::path> other_checkpoints(FileSystem& file_system, const fs::path& own,
                                        std::span<const fs::path> from) {
  std::vector<fs::path> paths;
  const auto add_steps = [&](const fs::path& root) {
    std::vector<detail::StepName> names = detail::committed_names(file_system, root);
    std::ranges::reverse(names);
    for (const detail::StepName& name : names) {
      const fs::path path = root / to_string(name);
      if (path != own) paths.push_back(path);
    }
    return !names.empty();
  };
  add_steps(own.parent_path());
  for (const fs::path& given : from) {
    try {
      const fs::path copy = detail::real_directory(given);
      const std::vector<std::string> names = file_system.list(copy);
      if (std::ranges::find(names, detail::kManifestName) != names.end()) {
        if (copy != own) paths.push_back(copy);
        continue;
      }
      if (add_steps(copy)) continue;
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found) throw;
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("repair {}: found no checkpoint in {}, needed is a copy of it or a "
                            "directory of steps",
                            own.string(), given.string()));
  }
  return paths;
}

/// One repair. Thread-compatible.
class Repairer {
 public:
  Repairer(const fs::path& directory, const RepairOptions& options)
      : directory_(directory),
        options_(options),
        file_system_(options.file_system ? options.file_system : posix_file_system()),
        finder_(*file_system_,
                other_checkpoints(*file_system_, detail::real_directory(directory), options.from)) {
  }

  RepairReport run();

 private:
  bool repair_chunk(const Damage& damage);
  std::optional<std::uint64_t> content_hash(const ChunkId& id);
  void write(const detail::WantedChunk& wanted, std::span<const std::byte> bytes);
  File& opened_for_update(std::size_t number);

  const fs::path directory_;
  const RepairOptions& options_;
  const std::shared_ptr<FileSystem> file_system_;
  detail::ChunkFinder finder_;
  RepairReport report_;
  std::map<Place, std::string> why_not_;

  // Of one round.
  StoredCheckpoint stored_;
  std::map<std::size_t, std::unique_ptr<File>> opened_;
  std::map<std::size_t, std::vector<std::uint64_t>> content_hashes_;
};

// By its content table, which says more of the chunk's bytes than the decoded hash alone.
std::optional<std::uint64_t> Repairer::content_hash(const ChunkId& id) {
  const detail::PieceEntry piece = stored_.piece(id);
  const auto number = static_cast<std::size_t>(piece.file);
  const detail::FileEntry& entry = stored_.manifest.files[number];
  if (entry.content_address == 0 || piece.layout == detail::Layout::contiguous) return {};
  const auto [hashes, is_new] = content_hashes_.try_emplace(number);
  if (is_new) {
    try {
      hashes->second = detail::read_content_table(*stored_.files->at(number),
                                                  (directory_ / entry.name).string(), entry)
                           .hashes;
    } catch (const Error&) {
      // The verification tells of it.
    }
  }
  const auto chunk = static_cast<std::size_t>(piece.first_chunk + id.chunk);
  if (chunk >= hashes->second.size()) return {};
  return hashes->second[chunk];
}

// The name may lead to another checkpoint's file by now: what is written to is the file that says
// of itself that it is the one.
File& Repairer::opened_for_update(std::size_t number) {
  std::unique_ptr<File>& opened = opened_[number];
  if (opened) return *opened;
  const std::string path = (directory_ / stored_.file_name(number)).string();
  std::unique_ptr<File> file = file_system_->open_for_update(path);
  if (file->size() != stored_.file_bytes(number)) {
    throw Error(ErrorCode::corrupt, fmt::format("repair {}: found {} bytes, needed are {}", path,
                                                file->size(), stored_.file_bytes(number)));
  }
  const std::size_t own = stored_.manifest.files.size();
  if (number < own) {
    read_file_tables(*file, directory_, tables_of(stored_.manifest, number));
  } else {
    describe_linked_file(*file, path, stored_.linked[number - own]);
  }
  opened = std::move(file);
  return *opened;
}

void Repairer::write(const detail::WantedChunk& wanted, std::span<const std::byte> bytes) {
  const detail::ChunkRecord& record = wanted.record();
  File& file = opened_for_update(stored_.file_of(wanted.id));
  std::vector<std::byte> found(bytes.size());
  const auto is_right = [&] {
    file.read_at(record.address, found.data(), found.size());
    return std::ranges::equal(found, bytes);
  };
  try {
    if (is_right()) return;  // somebody else was faster
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
  }
  file.write_at(record.address, bytes.data(), bytes.size());
  file.sync();
  if (is_right()) return;
  throw Error(ErrorCode::io, fmt::format("repair {}: the bytes that were written are not those "
                                         "that are read",
                                         stored_.describe(wanted.id)));
}

bool Repairer::repair_chunk(const Damage& damage) {
  const auto tensor = detail::find_tensor(stored_.manifest, damage.tensor);
  const auto id = tensor ? detail::find_chunk(stored_, *tensor, damage.box) : std::nullopt;
  if (!id) return false;  // its file cannot be read any more
  std::string& why_not = why_not_[place_of(damage)];
  const detail::WantedChunk wanted{stored_, *id, content_hash(*id)};
  const std::optional<detail::FoundChunk> found = finder_.find(wanted, why_not);
  if (!found) return false;
  try {
    write(wanted, found->bytes);
  } catch (const Error& e) {
    why_not = e.what();
    return false;
  }
  report_.repaired.push_back({damage, found->from});
  return true;
}

RepairReport Repairer::run() {
  const detail::Pin pin(*file_system_, directory_);
  std::set<Place> tried;
  for (bool again = true; again;) {
    report_.left = verify_checkpoint(directory_, {.threads = options_.threads,
                                                  .pin = false,
                                                  .progress = options_.progress,
                                                  .file_system = file_system_});
    again = false;
    std::vector<Damage> chunks;
    for (const std::vector<Damage>* list : {&report_.left.damage, &report_.left.unread}) {
      for (const Damage& damage : *list) {
        if (damage.chunk >= 0 && tried.insert(place_of(damage)).second) chunks.push_back(damage);
      }
    }
    if (chunks.empty()) break;
    stored_ = detail::open_what_is_readable(*file_system_, directory_);
    for (const Damage& damage : chunks) again = repair_chunk(damage) || again;
    opened_.clear();
    content_hashes_.clear();
  }
  for (std::vector<Damage>* list : {&report_.left.damage, &report_.left.unread}) {
    for (Damage& damage : *list) {
      const auto why_not = why_not_.find(place_of(damage));
      if (why_not == why_not_.end()) continue;
      damage.message += fmt::format("; not repaired: {}", why_not->second);
    }
  }
  return std::move(report_);
}

}  // namespace

RepairReport repair_checkpoint(const fs::path& directory, const RepairOptions& options) {
  return Repairer(directory, options).run();
}

}  // namespace shardwise
