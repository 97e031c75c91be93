#include "shardwise/checkpoint/detail/write/unchanged.h"

#include <algorithm>
#include <utility>

#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// A linked file is used only if this part of it is: so the linked files of a shard file have at
// most twice the bytes of its chunks there, whatever becomes of the steps that they come from.
constexpr std::uint64_t kLeastLivePart = 2;

std::span<const ChunkRecord> records_of(const DescribedPiece& piece,
                                        std::span<const ChunkRecord> records) {
  return records.subspan(static_cast<std::size_t>(piece.first_chunk),
                         static_cast<std::size_t>(piece.end_chunk - piece.first_chunk));
}

// True if two of a file's own chunks share bytes: a reader would refuse each file that refers to
// both.
bool has_overlap(std::span<const ChunkRecord> records) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (const ChunkRecord& record : records) {
    if (!is_in_linked(record)) {
      spans.emplace_back(record.address, record.address + record.stored_bytes);
    }
  }
  std::ranges::sort(spans);
  return std::ranges::adjacent_find(spans, [](const auto& before, const auto& after) {
           return after.first < before.second;
         }) != spans.end();
}

}  // namespace

std::string stored_path(const PieceDataset& dataset) {
  return "/stored" + dataset.path().substr(std::string_view("/tensors").size());
}

EarlierStep read_earlier_step(FileSystem& file_system, const std::filesystem::path& directory) {
  return {directory, read_manifest(open_directory(file_system, directory)).files};
}

EarlierStep earlier_step_at(FileSystem& file_system, const std::filesystem::path& directory) {
  if (directory.empty()) return {};
  try {
    return read_earlier_step(file_system, directory);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::not_found) {
      throw Error(e,
                  fmt::format("save what has changed since {}: {}", directory.string(), e.what()));
    }
    return {};
  }
}

bool link_file(FileSystem& file_system, File& opened, const std::filesystem::path& from,
               const std::filesystem::path& to, const LinkedFile& linked) {
  try {
    if (!opened.is_sealed()) return false;
    opened.sync();  // a step that was copied here may be in memory alone
    file_system.link(from, to);
  } catch (const Error&) {
    return false;
  }
  try {
    const std::unique_ptr<File> file = file_system.open(to);
    check_structure(*file, to.string(), linked);
    return true;
  } catch (const Error&) {
    file_system.remove(to);
    return false;
  }
}

std::unique_ptr<UnchangedChunks> UnchangedChunks::open(
    FileSystem& file_system, const EarlierStep& earlier, const std::filesystem::path& attempt,
    const SavePlan& plan, std::size_t file_number, const ChunkLayout& layout) {
  const auto entry =
      std::ranges::find(earlier.files, plan.files[file_number].name, &FileEntry::name);
  if (entry == earlier.files.end()) return {};
  std::unique_ptr<UnchangedChunks> found(
      new UnchangedChunks(file_system, earlier.directory, attempt));
  try {
    found->read(*entry);
  } catch (const Error&) {
    return {};  // all is written again
  }
  found->match(plan, layout);
  found->forget_tables();
  return found;
}

void UnchangedChunks::read(const FileEntry& entry) {
  const FileTables own = add(entry);
  const std::string path = (earlier_ / entry.name).string();
  if (own.entry.content_address == 0) throw Error(ErrorCode::unsupported, "no content table");
  content_ = read_content_table(*sources_[0].opened, path, own.entry);
  decoded_hashes_ = own.table.decoded_hashes;
  if (content_.dtypes.size() != sources_[0].pieces.size()) {
    throw Error(ErrorCode::corrupt, "found other pieces in the content table");
  }
  for (const LinkedFile& linked : content_.linked) {
    const std::filesystem::path at = earlier_ / linked.name();
    try {
      static_cast<void>(add(describe_linked_file(*file_system_.open(at), at.string(), linked)));
    } catch (const Error&) {
      // It keeps its number, and its chunks are written again.
      sources_.push_back({.file = linked});
    }
  }
  const MutexLock lock(mutex_);
  is_linked_.resize(sources_.size());
}

FileTables UnchangedChunks::add(const FileEntry& entry) {
  const std::filesystem::path path = earlier_ / entry.name;
  std::unique_ptr<File> file = file_system_.open(path);
  if (file->size() != entry.bytes) throw Error(ErrorCode::corrupt, "found another size");
  FileTables tables = read_file_tables(*file, earlier_, entry);
  if (has_overlap(tables.table.records)) throw Error(ErrorCode::corrupt, "chunks overlap");
  // Moved, a vector's elements stay where they are.
  std::vector<DescribedPiece> pieces = read_pieces(tables.words, tables.entry, path.string());
  std::unordered_multimap<std::uint64_t, std::size_t> by_name;
  for (std::size_t p = 0; p < pieces.size(); ++p) by_name.emplace(pieces[p].name_hash, p);
  sources_.push_back({.file = {entry.description_hash, entry.bytes, entry.data_end},
                      .name = entry.name,
                      .opened = std::move(file),
                      .words = std::move(tables.words),
                      .pieces = std::move(pieces),
                      .by_name = std::move(by_name),
                      .records = std::move(tables.table.records),
                      .stored_bytes = tables.entry.stored_bytes});
  return tables;
}

std::vector<std::int64_t> UnchangedChunks::little_used(std::span<const ChunkRecord> records) const {
  std::vector<std::uint64_t> live(sources_.size() + 1);
  for (const ChunkRecord& record : records) {
    if (is_in_linked(record)) live[record.linked] += record.stored_bytes;
  }
  std::vector<bool> is_little(live.size());
  std::size_t used = 0;
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (live[s + 1] == 0) continue;
    is_little[s + 1] =
        live[s + 1] < sources_[s].stored_bytes / kLeastLivePart || used++ >= kMostLinkedFiles;
  }
  std::vector<std::int64_t> chunks;
  for (std::size_t c = 0; c < records.size(); ++c) {
    if (is_little[records[c].linked]) chunks.push_back(static_cast<std::int64_t>(c));
  }
  return chunks;
}

std::optional<ChunkRecord> UnchangedChunks::find(std::int64_t chunk, const Hash128& content) {
  const Chunk& earlier = chunks_[static_cast<std::size_t>(chunk)];
  if (earlier.record.linked == 0 || earlier.content != content) return {};
  const std::size_t number = earlier.record.linked - 1;
  const MutexLock lock(mutex_);
  std::optional<bool>& is_linked = is_linked_[number];
  if (!is_linked) is_linked = link(sources_[number]);
  return *is_linked ? std::optional(earlier.record) : std::nullopt;
}

bool UnchangedChunks::link(const Source& source) const {
  return link_file(file_system_, *source.opened, earlier_ / source.name,
                   attempt_ / source.file.name(), source.file);
}

void UnchangedChunks::match(const SavePlan& plan, const ChunkLayout& layout) {
  chunks_.resize(static_cast<std::size_t>(layout.num_chunks()));
  for (Source& source : sources_) source.datasets.resize(layout.pieces().size());
  for (std::size_t p = 0; p < layout.pieces().size(); ++p) {
    const PieceId& id = layout.pieces()[p].id;
    const TensorEntry& tensor = plan.tensors[id.tensor];
    const PieceEntry piece = tensor.pieces[id.piece];
    if (piece.layout != Layout::chunked) continue;
    const std::uint64_t name = name_hash(tensor);
    const DescribedPiece* earlier = sources_[0].find(piece, name);
    if (earlier == nullptr) continue;
    const auto number = static_cast<std::size_t>(earlier - sources_[0].pieces.data());
    if (content_.dtypes[number] != dtype_hash(tensor.dtype)) continue;
    match_piece(p, tensor, piece, *earlier);
  }
}

const DescribedPiece* UnchangedChunks::Source::find(const PieceEntry& piece,
                                                    std::uint64_t tensor) const {
  for (auto [at, end] = by_name.equal_range(tensor); at != end; ++at) {
    if (pieces[at->second].is_like(piece, tensor)) return &pieces[at->second];
  }
  return nullptr;
}

// A chunk counts only if its file has it in the same place of the same piece: other tools find it
// there, by the datasets of that file.
void UnchangedChunks::match_piece(std::size_t number, const TensorEntry& tensor,
                                  const PieceEntry& piece, const DescribedPiece& earlier) {
  std::vector<std::span<const ChunkRecord>> there(sources_.size());
  std::vector<StoredCodec> codecs(sources_.size());
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    Source& source = sources_[s];
    if (!source.opened) continue;
    const DescribedPiece* const same = source.find(piece, name_hash(tensor));
    if (same == nullptr) continue;
    there[s] = records_of(*same, source.records);
    codecs[s] = same->codec;
    const bool is_split = std::ranges::any_of(there[s], is_in_linked);
    source.datasets[number] = is_split ? stored_path(same->dataset) : same->dataset.path();
  }
  const std::uint64_t bytes = chunk_bytes(piece, tensor.dtype);
  const auto records = records_of(earlier, sources_[0].records);
  for (std::size_t c = 0; c < records.size(); ++c) {
    const std::uint32_t source = records[c].linked;
    if (source >= there.size() || there[source].empty()) continue;
    ChunkRecord record = there[source][c];
    if (record.linked != 0 || record.address != records[c].address ||
        record.hash != records[c].hash) {
      continue;
    }
    const bool raw = is_raw(codecs[source], record);
    if (!raw && piece.codec == StoredCodec::none) continue;  // it cannot be said of this piece
    if (!is_sound(sources_[source], record, raw, bytes)) continue;
    record.filter_mask = raw && piece.codec != StoredCodec::none ? kRawMask : 0;
    record.linked = source + 1;
    const auto at = static_cast<std::size_t>(earlier.first_chunk) + c;
    chunks_[static_cast<std::size_t>(piece.first_chunk) + c] = {
        record, {.high = content_.hashes[at], .low = decoded_hashes_[at]}};
  }
}

// True if a reader would accept the record, and with it the file that refers to it.
bool UnchangedChunks::is_sound(const Source& source, const ChunkRecord& record, bool raw,
                               std::uint64_t chunk_bytes) {
  const std::uint64_t end = source.file.data_end - kDescriptionBytes;
  return record.address % 8 == 0 && record.address <= end &&
         record.stored_bytes <= end - record.address &&
         (raw ? record.stored_bytes == chunk_bytes
              : record.stored_bytes > 0 && record.stored_bytes <= chunk_bytes);
}

// Called when the wanted values of each file and chunk are known.
void UnchangedChunks::forget_tables() {
  for (Source& source : sources_) {
    source.words = {};
    source.pieces = {};
    source.by_name = {};
    source.records = {};
  }
  content_ = {};
  decoded_hashes_ = {};
}

void UnchangedChunks::settle(ChunkTable& table, FileEntry& entry) {
  std::vector<std::uint32_t> numbers(sources_.size() + 1, 0);  // of the records until now
  for (ChunkRecord& record : table.records) {
    if (record.linked == 0) continue;
    std::uint32_t& number = numbers[record.linked];
    if (number == 0) {
      settled_.push_back(record.linked - 1);
      entry.linked.push_back(sources_[settled_.back()].file);
      number = static_cast<std::uint32_t>(settled_.size());
    }
    record.linked = number;
  }
  entry.has_linked = !entry.linked.empty();
  chunks_ = {};
  const MutexLock lock(mutex_);
  for (std::size_t s = 0; s < sources_.size(); ++s) {
    if (is_linked_[s].value_or(false) && numbers[s + 1] == 0) {
      file_system_.remove(attempt_ / sources_[s].file.name());
    }
  }
}

std::string UnchangedChunks::dataset(std::uint32_t linked, std::size_t piece) const {
  return sources_[settled_[linked - 1]].datasets[piece];
}

}  // namespace shardwise::detail
