#include "shardwise/mend/repair.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/mend/detail/chunk_finder.h"
#include "shardwise/mend/detail/chunk_mender.h"
#include "shardwise/mend/detail/file_maker.h"
#include "shardwise/mend/detail/parity_writer.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

using detail::ChunkId;
using detail::StoredCheckpoint;

/// The place of a damage: its file and, for a chunk, the record's number and the tensor.
using Place = std::tuple<std::string, std::int64_t, std::string>;

Place place_of(const Damage& damage) { return {damage.file, damage.chunk, damage.tensor}; }

bool is_parity(const Damage& damage) { return damage.file.ends_with(detail::kParitySuffix); }

/// The other steps of the checkpoint's root, the newest first; then those given in `from`.
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
  try {
    add_steps(own.parent_path());
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;  // the directory that holds it may be nobody's to list
  }
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

/// A shard file, or a linked one, of this name.
std::optional<mend_detail::WantedFile> wanted_file(const StoredCheckpoint& stored,
                                                   const std::string& name) {
  mend_detail::WantedFile wanted;
  for (const detail::FileEntry& entry : stored.manifest.files) {
    if (entry.name != name) continue;
    wanted.entry = entry;
    return wanted;
  }
  for (const detail::LinkedFile& linked : stored.linked) {
    if (linked.name() != name) continue;
    wanted.entry = {.name = name,
                    .bytes = linked.bytes,
                    .data_end = linked.data_end,
                    .description_hash = linked.description_hash};
    wanted.linked = linked;
    return wanted;
  }
  return std::nullopt;
}

/// One repair. Thread-compatible.
class Repairer {
 public:
  Repairer(const fs::path& directory, const RepairOptions& options)
      : directory_(directory),
        options_(options),
        file_system_(options.file_system ? options.file_system : posix_file_system()),
        own_(detail::real_directory(directory)),
        others_(other_checkpoints(*file_system_, own_, options.from)),
        finder_(*file_system_, others_),
        maker_(*file_system_, own_, others_),
        mender_(*file_system_, stored_, {directory_}) {}

  RepairReport run();

 private:
  void verify();
  void open();
  bool try_for_the_first_time(const Damage& damage) {
    return tried_.insert(place_of(damage)).second;
  }
  bool repair_files();
  bool repair_file(const Damage& damage);
  bool repair_chunks();
  bool repair_chunk(const Damage& damage);
  bool repair_parity();
  bool rewrite_parity(const detail::ProtectedFile& file, std::string& why_not);
  std::shared_ptr<File> restored(const std::string& name, std::string& why_not);
  std::optional<mend_detail::FoundChunk> chunk_by_parity(const mend_detail::WantedChunk& wanted,
                                                         std::string& why_not);
  bool is_manifest_right() const;
  void find_lost();
  void find_lost_linked();
  std::optional<std::uint64_t> content_hash(const ChunkId& id);

  const fs::path directory_;
  const RepairOptions& options_;
  const std::shared_ptr<FileSystem> file_system_;
  const fs::path own_;
  const std::vector<fs::path> others_;
  mend_detail::ChunkFinder finder_;
  mend_detail::FileMaker maker_;
  RepairReport report_;
  std::set<Place> tried_;
  std::map<Place, std::string> why_not_;

  // These belong to one round.
  StoredCheckpoint stored_;
  std::vector<std::size_t> unusable_;  // shard files that are damaged so that nothing is known
  mend_detail::ChunkMender mender_;
  std::map<std::size_t, std::vector<std::uint64_t>> content_hashes_;
  std::map<std::string, std::shared_ptr<File>> restored_;  // by name, as their parity makes them
};

// Reads the content table, which says more of the chunk's bytes than the decoded hash alone.
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

/// The file of this name as its parity makes it; null if it has none.
std::shared_ptr<File> Repairer::restored(const std::string& name, std::string& why_not) {
  const auto [known, is_new] = restored_.try_emplace(name);
  if (!is_new) return known->second;
  const std::optional<mend_detail::WantedFile> wanted = wanted_file(stored_, name);
  if (!wanted) return nullptr;
  const fs::path path = own_ / name, parity = path.string() + std::string(detail::kParitySuffix);
  try {
    std::unique_ptr<File> file = file_system_->open(parity);
    const detail::ParityOf of =
        wanted->linked ? detail::parity_of(*wanted->linked) : parity_of(wanted->entry);
    detail::ParityHeader header = detail::read_parity_header(*file, parity.string(), of).header;
    std::shared_ptr<File> damaged;
    try {
      damaged = file_system_->open(path);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found && e.code() != ErrorCode::corrupt) throw;
    }
    known->second = std::make_shared<mend_detail::RestoredFile>(std::move(damaged), std::move(file),
                                                                std::move(header), path.string());
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) why_not += fmt::format("; its parity: {}", e.what());
  }
  return known->second;
}

std::optional<mend_detail::FoundChunk> Repairer::chunk_by_parity(
    const mend_detail::WantedChunk& wanted, std::string& why_not) {
  const std::string name = stored_.file_name(stored_.file_of(wanted.id));
  const std::shared_ptr<File> file = restored(name, why_not);
  if (!file) return std::nullopt;
  std::vector<std::byte> bytes(static_cast<std::size_t>(wanted.record().stored_bytes));
  try {
    file->read_at(wanted.record().address, bytes.data(), bytes.size());
  } catch (const Error& e) {
    why_not += fmt::format("; by its parity: {}", e.what());
    return std::nullopt;
  }
  if (!mend_detail::are_stored_bytes(wanted, bytes)) {
    why_not += "; its parity is that of the damaged bytes";
    return std::nullopt;
  }
  return mend_detail::FoundChunk{std::move(bytes),
                                 own_ / (name + std::string(detail::kParitySuffix))};
}

bool Repairer::repair_chunk(const Damage& damage) {
  const auto tensor = mend_detail::find_tensor(stored_.manifest, damage.tensor);
  const auto id = tensor ? mend_detail::find_chunk(stored_, *tensor, damage.box) : std::nullopt;
  if (!id) return false;  // its file cannot be read any more
  std::string& why_not = why_not_[place_of(damage)];
  const mend_detail::WantedChunk wanted{stored_, *id, content_hash(*id)};
  std::optional<mend_detail::FoundChunk> found = finder_.find(wanted, why_not);
  if (!found) found = chunk_by_parity(wanted, why_not);
  if (!found) return false;
  try {
    mender_.put(*id, found->bytes);
  } catch (const Error& e) {
    why_not = e.what();
    return false;
  }
  std::erase_if(report_.repaired, [&](const Repaired& repaired) {
    return place_of(repaired.damage) == place_of(damage);
  });
  report_.repaired.push_back({damage, found->from.string()});
  return true;
}

// A checkpoint whose manifest is missing is damaged as long as a copy may have it.
void Repairer::verify() {
  try {
    report_.left = verify_checkpoint(directory_, {.threads = options_.threads,
                                                  .pin = false,
                                                  .progress = options_.progress,
                                                  .file_system = file_system_});
  } catch (const Error& e) {
    const Damage missing{.file = detail::kManifestName, .message = e.what()};
    if (e.code() != ErrorCode::not_found || !try_for_the_first_time(missing)) throw;
    std::string why_not;
    const std::optional<std::string> from = maker_.make_manifest(why_not);
    if (!from) throw Error(e, fmt::format("{}; not repaired: {}", e.what(), why_not));
    report_.repaired.push_back({missing, *from});
    verify();
  }
}

void Repairer::open() {
  unusable_.clear();
  restored_.clear();
  stored_ = detail::open_what_is_readable(*file_system_, directory_,
                                          [&](std::size_t file, const Error& e) {
                                            if (e.code() == ErrorCode::corrupt)
                                              unusable_.push_back(file);
                                          });
}

bool Repairer::is_manifest_right() const {
  try {
    detail::read_manifest(detail::open_directory(*file_system_, directory_));
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::corrupt) throw;
    return false;
  }
}

bool Repairer::repair_file(const Damage& damage) {
  std::string& why_not = why_not_[place_of(damage)];
  std::optional<std::string> from;
  try {
    if (damage.file == detail::kManifestName) {
      from = maker_.make_manifest(why_not);
    } else if (damage.file == detail::kIndexName && stored_.manifest.has_index()) {
      from = maker_.make_index(stored_.manifest, why_not);
    } else if (const std::optional<mend_detail::WantedFile> wanted =
                   wanted_file(stored_, damage.file)) {
      from = maker_.make_shard_file(*wanted, why_not);
      const std::shared_ptr<File> file = from ? nullptr : restored(damage.file, why_not);
      if (file && maker_.make_shard_file(*wanted, file, why_not)) {
        from = (own_ / (damage.file + std::string(detail::kParitySuffix))).string();
      }
    } else {
      why_not = "a repair removes nothing";
    }
  } catch (const Error& e) {
    why_not = e.what();
  }
  if (!from) return false;
  report_.repaired.push_back({damage, *from});
  // A chunk of it that is damaged still is found so again.
  for (const auto* list : {&report_.left.damage, &report_.left.unread}) {
    for (const Damage& chunk : *list) {
      if (chunk.file == damage.file && chunk.chunk >= 0) report_.repaired.push_back({chunk, *from});
    }
  }
  return true;
}

// A shard file with an unreadable part outside the chunks may be on a bad place of the disk.
bool Repairer::repair_files() {
  std::vector<Damage> files = report_.left.damage;
  std::ranges::copy_if(report_.left.unread, std::back_inserter(files), [](const Damage& unread) {
    return unread.file != detail::kManifestName && unread.file != detail::kIndexName;
  });
  bool repaired = false;
  for (const Damage& damage : files) {
    if (damage.chunk >= 0 || is_parity(damage) || !try_for_the_first_time(damage)) continue;
    if (is_manifest_right()) {
      if (damage.file == detail::kManifestName) continue;  // it names too few files
      open();
    }
    repaired = repair_file(damage) || repaired;
  }
  return repaired;
}

bool Repairer::repair_chunks() {
  std::vector<Damage> chunks;
  for (const std::vector<Damage>* list : {&report_.left.damage, &report_.left.unread}) {
    for (const Damage& damage : *list) {
      if (damage.chunk >= 0 && try_for_the_first_time(damage)) chunks.push_back(damage);
    }
  }
  if (chunks.empty()) return false;
  open();
  bool repaired = false;
  for (const Damage& damage : chunks) repaired = repair_chunk(damage) || repaired;
  mender_.close();
  content_hashes_.clear();
  return repaired;
}

// Repairs the parity of shard files that are right.
bool Repairer::repair_parity() {
  std::set<std::string> damaged;
  for (const auto* list : {&report_.left.damage, &report_.left.unread}) {
    for (const Damage& damage : *list) damaged.insert(damage.file);
  }
  bool repaired = false;
  for (const Damage& damage : std::vector(report_.left.damage)) {
    if (!is_parity(damage)) continue;
    const std::string of = damage.file.substr(0, damage.file.size() - detail::kParitySuffix.size());
    std::string& why_not = why_not_[place_of(damage)];
    if (damaged.contains(of)) {
      why_not = "its shard file is damaged, too";
      continue;
    }
    if (!try_for_the_first_time(damage)) continue;
    open();
    for (const detail::ProtectedFile& file : protected_files(stored_)) {
      if (file.name != of) continue;
      try {
        repaired = rewrite_parity(file, why_not) || repaired;
        if (why_not.empty()) report_.repaired.push_back({damage, (own_ / of).string()});
      } catch (const Error& e) {
        why_not = e.what();
      }
    }
  }
  return repaired;
}

// With as many blocks as it states or, if it states none, as that of another file has.
bool Repairer::rewrite_parity(const detail::ProtectedFile& file, std::string& why_not) {
  why_not = "it does not say any more how many blocks it has; write_parity rewrites it";
  std::vector<detail::ProtectedFile> files = protected_files(stored_);
  files.insert(files.begin(), file);
  for (const detail::ProtectedFile& other : files) {
    const fs::path path = own_ / other.parity_name();
    std::int64_t blocks = 0;
    try {
      blocks = detail::read_parity_header(*file_system_->open(path), path.string(), other.of)
                   .header.layout.parity_blocks;
    } catch (const Error&) {
      continue;
    }
    mend_detail::Replacer replacer(*file_system_, own_);
    put_parity(*file_system_, replacer, file, blocks,
               {.threads = Executor::threads_for(options_.threads)});
    why_not.clear();
    return true;
  }
  return false;
}

void Repairer::find_lost() {
  for (const Damage& damage : report_.left.damage) {
    if (!damage.tensor.empty()) report_.lost.push_back({damage.tensor, damage.box});
  }
  if (!is_manifest_right()) return;
  open();
  const detail::Manifest& manifest = stored_.manifest;
  std::vector<Box> boxes;
  for (const std::size_t file : unusable_) {
    for (const detail::TensorEntry& tensor : manifest.tensors) {
      boxes.clear();
      detail::add_pieces_of(manifest.files[file].writer, manifest.writers, tensor, boxes);
      for (const Box& box : boxes) report_.lost.push_back({tensor.name, box});
    }
  }
  find_lost_linked();
  std::ranges::stable_sort(report_.lost, {}, &RepairReport::Lost::tensor);
}

// Chunks of files that are here, in linked files that are not.
void Repairer::find_lost_linked() {
  const detail::Manifest& manifest = stored_.manifest;
  std::set<std::size_t> damaged;
  for (std::size_t i = 0; i < stored_.linked.size(); ++i) {
    try {
      stored_.files->at(manifest.files.size() + i);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::corrupt) damaged.insert(manifest.files.size() + i);
    }
  }
  if (damaged.empty()) return;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const detail::PieceList& pieces = manifest.tensors[t].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (!stored_.is_loaded_file(static_cast<std::size_t>(pieces.file(p)))) continue;
      const std::int64_t chunks = num_chunks(pieces[p]);
      for (std::int64_t c = 0; c < chunks; ++c) {
        const ChunkId id{t, p, c};
        if (!damaged.contains(stored_.file_of(id))) continue;
        report_.lost.push_back({manifest.tensors[t].name, stored_.box(id)});
      }
    }
  }
}

RepairReport Repairer::run() {
  const detail::Pin pin(*file_system_, directory_);
  maker_.remove_leftovers();
  do {
    verify();
  } while (repair_files() || repair_chunks() || repair_parity());
  for (std::vector<Damage>* list : {&report_.left.damage, &report_.left.unread}) {
    for (Damage& damage : *list) {
      std::erase_if(report_.repaired, [&](const Repaired& repaired) {
        return place_of(repaired.damage) == place_of(damage);
      });
      const auto why_not = why_not_.find(place_of(damage));
      if (why_not == why_not_.end() || why_not->second.empty()) continue;
      damage.message += fmt::format("; not repaired: {}", why_not->second);
    }
  }
  if (!report_.left.damage.empty()) find_lost();
  return std::move(report_);
}

}  // namespace

RepairReport repair_checkpoint(const fs::path& directory, const RepairOptions& options) {
  return Repairer(directory, options).run();
}

}  // namespace shardwise
