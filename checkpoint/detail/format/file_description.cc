#include "shardwise/checkpoint/detail/format/file_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::uint64_t kMagic = 0x3130'4653'4453'5757;        // "WWSDSF01" in the file
constexpr std::uint64_t kLinkedMagic = 0x3230'4653'4453'5757;  // "WWSDSF02": chunks are elsewhere

// A piece's record: a head of three words, then begin, end and chunk, one word per dim each.
constexpr unsigned kLayoutShift = 8, kCodecShift = 16;

[[noreturn]] void refuse_file(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::corrupt, fmt::format("read shard file {}: {}", path, message));
}

// Takes numbers from a table, from its begin on.
class Words {
 public:
  Words(std::span<const std::uint64_t> words, const std::string& path)
      : rest_(words), path_(path) {}

  bool empty() const { return rest_.empty(); }
  std::size_t size() const { return rest_.size(); }

  std::uint64_t word() {
    if (rest_.empty()) refuse_file(path_, "its piece table ends inside a piece");
    const std::uint64_t word = rest_.front();
    rest_ = rest_.subspan(1);
    return word;
  }

  /// Requires that the table has `count` more words.
  std::span<const std::uint64_t> take(std::size_t count) {
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }

  Dims dims(std::size_t rank) {
    Dims dims;
    for (std::size_t d = 0; d < rank; ++d) dims.push_back(static_cast<std::int64_t>(word()));
    return dims;
  }

 private:
  std::span<const std::uint64_t> rest_;
  const std::string& path_;
};

struct PieceHead {
  std::uint64_t rank, layout, codec;
};

PieceHead split_head(std::uint64_t word) {
  return {word & 0xFF, word >> kLayoutShift & 0xFF, word >> kCodecShift};
}

// The piece whose box must be `box`.
PieceEntry next_piece(Words& words, const TensorEntry& tensor, const Box& box,
                      const std::string& path) {
  const auto fail = [&](const std::string& problem) {
    refuse_file(path, fmt::format("its piece table has, where tensor {:?} {} is to be, {}",
                                  tensor.name, to_string(box), problem));
  };
  if (words.empty()) fail("nothing");
  PieceEntry piece;
  if (words.word() != name_hash(tensor)) fail("a piece of another tensor");
  piece.first_chunk = static_cast<std::int64_t>(words.word());
  const auto [rank, layout, codec] = split_head(words.word());
  if (rank != box.rank()) fail(fmt::format("a piece of {} dims", rank));
  if (layout > 1 || codec > 1) fail(fmt::format("layout {} and codec {}", layout, codec));
  piece.layout = static_cast<Layout>(layout);
  piece.codec = static_cast<StoredCodec>(codec);
  const Dims begin = words.dims(box.rank()), end = words.dims(box.rank());
  if (begin != box.begin() || end != box.end()) {
    fail(fmt::format("the box from {} to {}", to_string(begin), to_string(end)));
  }
  piece.box = box;
  piece.chunk = words.dims(box.rank());
  return piece;
}

}  // namespace

std::uint64_t name_hash(const TensorEntry& tensor) { return hash64(tensor.name); }

std::uint64_t dtype_hash(DType dtype) { return hash64(name(dtype)); }

std::array<std::uint64_t, kDescriptionWords> describe_file(const FileEntry& file) {
  return {file.has_linked ? kLinkedMagic : kMagic,
          static_cast<std::uint64_t>(file.writer),
          file.data_begin,
          file.table_address,
          static_cast<std::uint64_t>(file.chunks),
          file.table_hash,
          file.decoded_address,
          file.decoded_hash,
          file.pieces_address,
          file.pieces_words,
          file.pieces_hash,
          file.structure_hash.high,
          file.structure_hash.low,
          file.stored_bytes,
          file.content_address,
          file.content_hash};
}

void read_description(std::span<const std::uint64_t> words, FileEntry& file,
                      const std::string& path) {
  file.has_linked = words[0] == kLinkedMagic;
  if ((words[0] != kMagic && !file.has_linked) ||
      words[1] != static_cast<std::uint64_t>(file.writer)) {
    refuse_file(path, fmt::format("its description is not that of writer {}", file.writer));
  }
  file.data_begin = words[2];
  file.table_address = words[3];
  file.chunks = static_cast<std::int64_t>(words[4]);
  file.table_hash = words[5];
  file.decoded_address = words[6];
  file.decoded_hash = words[7];
  file.pieces_address = words[8];
  file.pieces_words = words[9];
  file.pieces_hash = words[10];
  file.structure_hash = {.high = words[11], .low = words[12]};
  file.stored_bytes = words[13];
  file.content_address = words[14];
  file.content_hash = words[15];
  if (const std::string problem = file_problem(file); !problem.empty()) {
    refuse_file(path, problem);
  }
  const std::uint64_t table_end =
      file.table_address + static_cast<std::uint64_t>(file.chunks) * sizeof(ChunkRecord);
  if (file.data_end - table_end < kDescriptionBytes) {
    refuse_file(path, fmt::format("its chunk table ends at {}, its description begins at {}",
                                  table_end, file.data_end - kDescriptionBytes));
  }
  if (file.pieces_address < file.data_end || file.pieces_address > file.bytes ||
      file.pieces_words > (file.bytes - file.pieces_address) / sizeof(std::uint64_t)) {
    refuse_file(path,
                fmt::format("the {} words of its piece table, at {}, are not after the data, "
                            "in [{}, {})",
                            file.pieces_words, file.pieces_address, file.data_end, file.bytes));
  }
}

std::vector<std::uint64_t> describe_content(std::span<const LinkedFile> linked,
                                            std::span<const TensorEntry> tensors,
                                            std::span<const PieceId> pieces,
                                            std::span<const std::uint64_t> content_hashes) {
  std::vector<std::uint64_t> words{linked.size(), pieces.size()};
  for (const LinkedFile& file : linked) {
    words.insert(words.end(), {file.description_hash.high, file.description_hash.low, file.bytes,
                               file.data_end});
  }
  for (const PieceId& id : pieces) words.push_back(dtype_hash(tensors[id.tensor].dtype));
  words.insert(words.end(), content_hashes.begin(), content_hashes.end());
  return words;
}

std::size_t content_words(std::span<const std::uint64_t, 2> begin, const FileEntry& file,
                          const std::string& path) {
  const auto [linked, pieces] = std::pair(begin[0], begin[1]);
  const auto chunks = static_cast<std::uint64_t>(file.chunks);
  if (linked > kMostLinkedFiles || (linked > 0) != file.has_linked || pieces > chunks) {
    refuse_file(path, fmt::format("its content table is of {} linked files and {} pieces, needed "
                                  "are {} {} and at most {}",
                                  linked, pieces, file.has_linked ? "1 to" : "0, not",
                                  kMostLinkedFiles, chunks));
  }
  return static_cast<std::size_t>(2 + 4 * linked + pieces + chunks);
}

ContentTable read_content(std::span<const std::uint64_t> words, const FileEntry& file,
                          const std::string& path) {
  ContentTable table;
  const std::size_t pieces = words[1];
  auto at = words.begin() + 2;
  for (std::uint64_t left = words[0]; left > 0; --left, at += 4) {
    const LinkedFile linked{{.high = at[0], .low = at[1]}, at[2], at[3]};
    if (linked.data_end < kDescriptionBytes || linked.data_end > linked.bytes) {
      refuse_file(path, fmt::format("the data of its linked file {} end at {} of {} bytes",
                                    linked.name(), linked.data_end, linked.bytes));
    }
    if (std::ranges::find(table.linked, linked.description_hash, &LinkedFile::description_hash) !=
        table.linked.end()) {
      refuse_file(path, fmt::format("its linked file {} comes twice", linked.name()));
    }
    table.linked.push_back(linked);
  }
  table.dtypes.assign(at, at + static_cast<std::ptrdiff_t>(pieces));
  table.hashes.assign(at + static_cast<std::ptrdiff_t>(pieces), words.end());
  if (table.hashes.size() != static_cast<std::size_t>(file.chunks)) {
    refuse_file(path, fmt::format("its content table has {} hashes, needed are {}",
                                  table.hashes.size(), file.chunks));
  }
  return table;
}

bool DescribedPiece::is_like(const PieceEntry& piece, std::uint64_t name) const {
  const std::size_t rank = piece.box.rank();
  if (name_hash != name || layout != piece.layout || dims.size() != 3 * rank) return false;
  for (std::size_t d = 0; d < rank; ++d) {
    if (static_cast<std::int64_t>(dims[d]) != piece.box.begin(d) ||
        static_cast<std::int64_t>(dims[rank + d]) != piece.box.end(d) ||
        static_cast<std::int64_t>(dims[2 * rank + d]) != piece.chunk[d]) {
      return false;
    }
  }
  return true;
}

std::vector<DescribedPiece> read_pieces(std::span<const std::uint64_t> table, const FileEntry& file,
                                        const std::string& path) {
  Words words(table, path);
  std::vector<DescribedPiece> pieces;
  PieceDatasets datasets;
  std::size_t tensor = 0;
  std::int64_t chunks = 0;
  while (!words.empty()) {
    DescribedPiece piece;
    piece.name_hash = words.word();
    if (!pieces.empty() && pieces.back().name_hash != piece.name_hash) ++tensor;
    piece.dataset = datasets.next(tensor);
    piece.first_chunk = static_cast<std::int64_t>(words.word());
    const auto [rank, layout, codec] = split_head(words.word());
    if (rank > kMaxRank || layout > 1 || codec > 1 || words.size() < 3 * rank) {
      refuse_file(path, fmt::format("its piece table has a piece of rank {}, layout {}, codec {}",
                                    rank, layout, codec));
    }
    piece.layout = static_cast<Layout>(layout);
    piece.codec = static_cast<StoredCodec>(codec);
    piece.dims = words.take(3 * rank);
    std::int64_t count = 1;
    for (std::size_t d = 0; d < rank; ++d) {
      const auto [begin, end, chunk] = std::array{
          static_cast<std::int64_t>(piece.dims[d]), static_cast<std::int64_t>(piece.dims[rank + d]),
          static_cast<std::int64_t>(piece.dims[2 * rank + d])};
      const bool fits = begin >= 0 && end > begin && chunk > 0 && chunk <= end - begin &&
                        !__builtin_mul_overflow(count, (end - begin - 1) / chunk + 1, &count);
      if (!fits) refuse_file(path, "its piece table has a piece without chunks");
    }
    if (piece.first_chunk != chunks || count > file.chunks - chunks) {
      refuse_file(path, fmt::format("its piece table has {} chunks from {} on, needed are at most "
                                    "{} from {} on",
                                    count, piece.first_chunk, file.chunks - chunks, chunks));
    }
    piece.end_chunk = chunks += count;
    pieces.push_back(piece);
  }
  return pieces;
}

std::vector<std::uint64_t> describe_pieces(std::span<const TensorEntry> tensors,
                                           std::span<const PieceId> pieces) {
  std::vector<std::uint64_t> words;
  const auto add = [&](const Dims& dims) { words.insert(words.end(), dims.begin(), dims.end()); };
  for (const PieceId& id : pieces) {
    const PieceEntry piece = tensors[id.tensor].pieces[id.piece];
    words.push_back(name_hash(tensors[id.tensor]));
    words.push_back(static_cast<std::uint64_t>(piece.first_chunk));
    words.push_back(piece.box.rank() | static_cast<std::uint64_t>(piece.layout) << kLayoutShift |
                    static_cast<std::uint64_t>(piece.codec) << kCodecShift);
    add(piece.box.begin());
    add(piece.box.end());
    add(piece.chunk);
  }
  return words;
}

std::vector<PieceId> add_file_pieces(std::span<const std::uint64_t> table, Manifest& manifest,
                                     std::size_t file, const std::string& path) {
  const FileEntry& entry = manifest.files[file];
  Words words(table, path);
  std::vector<Box> boxes;
  PieceDatasets datasets;
  std::vector<std::pair<std::size_t, PieceList>> added;  // with the tensor's number
  std::int64_t chunks = 0;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorEntry& tensor = manifest.tensors[t];
    boxes.clear();
    add_pieces_of(entry.writer, manifest.writers, tensor, boxes);
    if (boxes.empty()) continue;
    PieceList& pieces = added.emplace_back(t, PieceList()).second;
    pieces.reserve(boxes.size(), tensor.shape.size());
    for (const Box& box : boxes) {
      PieceEntry piece = next_piece(words, tensor, box, path);
      piece.file = static_cast<std::int64_t>(file);
      piece.dataset = datasets.next(t);
      if (const std::string problem = piece_problem(piece, tensor); !problem.empty()) {
        refuse_file(path,
                    fmt::format("tensor {:?} piece {}: {}", tensor.name, to_string(box), problem));
      }
      if (piece.first_chunk != chunks || num_chunks(piece) > entry.chunks - chunks) {
        refuse_file(path, fmt::format("tensor {:?} piece {}: its {} chunks begin at record {} of "
                                      "{}, needed is record {} and room for all",
                                      tensor.name, to_string(box), num_chunks(piece),
                                      piece.first_chunk, entry.chunks, chunks));
      }
      chunks += num_chunks(piece);
      pieces.push_back(piece);
    }
  }
  if (!words.empty()) refuse_file(path, "its piece table goes on after the last piece");
  if (chunks != entry.chunks) {
    refuse_file(path, fmt::format("{} chunk records belong to pieces, its table has {}", chunks,
                                  entry.chunks));
  }
  std::vector<PieceId> ids;
  for (auto& [tensor, pieces] : added) {
    PieceList& all = manifest.tensors[tensor].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) ids.push_back({tensor, all.size() + p});
    all.append(std::move(pieces));
  }
  return ids;
}

}  // namespace shardwise::detail
