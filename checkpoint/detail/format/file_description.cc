#include "shardwise/checkpoint/detail/format/file_description.h"

#include <fmt/format.h>

#include <utility>

#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::uint64_t kMagic = 0x3130'4653'4453'5757;  // "WWSDSF01" in the file

// A piece's record: a head of three words, then begin, end and chunk, one word per dim each.
constexpr unsigned kLayoutShift = 8, kCodecShift = 16;

std::uint64_t name_hash(const TensorEntry& tensor) { return hash64(tensor.name); }

[[noreturn]] void refuse_file(const std::string& path, const std::string& message) {
  throw Error(ErrorCode::corrupt, fmt::format("read shard file {}: {}", path, message));
}

// Takes numbers from a table, from its begin on.
class Words {
 public:
  Words(std::span<const std::uint64_t> words, const std::string& path)
      : rest_(words), path_(path) {}

  bool empty() const { return rest_.empty(); }

  std::uint64_t word() {
    if (rest_.empty()) refuse_file(path_, "its piece table ends inside a piece");
    const std::uint64_t word = rest_.front();
    rest_ = rest_.subspan(1);
    return word;
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
  const std::uint64_t head = words.word(), rank = head & 0xFF;
  const std::uint64_t layout = head >> kLayoutShift & 0xFF, codec = head >> kCodecShift;
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

std::array<std::uint64_t, kDescriptionWords> describe_file(const FileEntry& file) {
  return {kMagic,
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
          0,
          0};
}

void read_description(std::span<const std::uint64_t> words, FileEntry& file,
                      const std::string& path) {
  if (words[0] != kMagic || words[1] != static_cast<std::uint64_t>(file.writer)) {
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
  if (const std::string problem = file_problem(file, true); !problem.empty()) {
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
