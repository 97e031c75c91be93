#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

struct Span {
  std::uint32_t file;  // as ChunkRecord::linked
  std::uint64_t begin, end;
  std::int64_t record;  // -1: the table itself, -2: the description
};

/// Why one record cannot be; empty if it can.
std::string problem(const ChunkRecord& record, const PieceEntry& piece, std::uint64_t chunk_bytes,
                    const FileEntry& file) {
  const bool unfiltered = piece.codec == StoredCodec::none;
  if (record.linked > file.linked.size() ||
      (record.linked > 0 && piece.layout == Layout::contiguous)) {
    return fmt::format("it is in linked file {}, needed is {}", record.linked,
                       piece.layout == Layout::contiguous
                           ? "its own file, 0"
                           : fmt::format("0 to {}", file.linked.size()));
  }
  if (record.filter_mask != 0 && (unfiltered || record.filter_mask != kRawMask)) {
    return fmt::format("its filter mask is {}, needed is {}", record.filter_mask,
                       unfiltered ? "0" : "0 or 3");
  }
  if (is_raw(piece.codec, record)) {
    if (record.stored_bytes != chunk_bytes) {
      return fmt::format("it is stored as it is in {} bytes, but has {}", record.stored_bytes,
                         chunk_bytes);
    }
  } else if (record.stored_bytes == 0 || record.stored_bytes > chunk_bytes) {
    return fmt::format("it is compressed to {} bytes, needed is 1 .. {}", record.stored_bytes,
                       chunk_bytes);
  }
  if (record.address % 8 != 0) {
    return fmt::format("its address {} is not a multiple of 8", record.address);
  }
  const std::uint64_t begin = record.linked == 0 ? file.data_begin : 0;
  const std::uint64_t end = record.linked == 0
                                ? file.data_end
                                : file.linked[record.linked - 1].data_end - kDescriptionBytes;
  if (record.address < begin || record.address > end ||
      record.stored_bytes > end - record.address) {
    return fmt::format("its {} bytes at {} are not inside the data, [{}, {})", record.stored_bytes,
                       record.address, begin, end);
  }
  return {};
}

void check_disjoint(std::vector<Span> spans, const std::string& path) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  for (std::size_t i = 1; i < spans.size(); ++i) {
    const Span &before = spans[i - 1], &after = spans[i];
    if (after.file != before.file || after.begin >= before.end) continue;
    const auto text = [](const Span& span) {
      if (span.record < 0)
        return std::string(span.record == -1 ? "the chunk table" : "the description");
      return fmt::format("chunk {}", span.record);
    };
    throw Error(
        ErrorCode::corrupt,
        fmt::format("read chunk table of {}: {} at [{}, {}) and {} at [{}, {}) overlap", path,
                    text(before), before.begin, before.end, text(after), after.begin, after.end));
  }
}

}  // namespace

bool is_raw(StoredCodec codec, const ChunkRecord& record) {
  return codec == StoredCodec::none || record.filter_mask != 0;
}

std::vector<PieceId> pieces_in_file(std::span<const TensorEntry> tensors, std::size_t file) {
  std::vector<PieceId> ids;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const PieceList& pieces = tensors[t].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if (static_cast<std::size_t>(pieces.file(p)) == file) ids.push_back({t, p});
    }
  }
  return ids;
}

void check_chunk_table(std::span<const TensorEntry> tensors, const FileEntry& entry,
                       std::span<const PieceId> pieces, const ChunkTable& table,
                       const std::string& path) {
  const std::span<const ChunkRecord> records = table.records;
  const auto fail = [&](const TensorEntry& tensor, const PieceEntry& piece, std::int64_t chunk,
                        const std::string& message) {
    throw Error(
        ErrorCode::corrupt,
        fmt::format("read chunk table of {}: tensor {:?} chunk {} {}: {}", path, tensor.name,
                    piece.first_chunk + chunk, to_string(chunk_box(piece, chunk)), message));
  };
  if (records.size() != static_cast<std::size_t>(entry.chunks)) {
    throw Error(ErrorCode::corrupt, fmt::format("read chunk table of {}: it has {} records, the "
                                                "manifest says {}",
                                                path, records.size(), entry.chunks));
  }
  if (table.decoded_hashes.size() != records.size()) {
    throw Error(ErrorCode::corrupt,
                fmt::format("read chunk table of {}: it has {} records, but {} decoded hashes",
                            path, records.size(), table.decoded_hashes.size()));
  }
  std::vector<Span> spans;
  spans.reserve(records.size() + 2);
  if (!records.empty()) {
    spans.push_back({0, entry.table_address, entry.table_address + records.size_bytes(), -1});
  }
  spans.push_back({0, entry.data_end - kDescriptionBytes, entry.data_end, -2});
  for (const PieceId& id : pieces) {
    const TensorEntry& tensor = tensors[id.tensor];
    const PieceEntry piece = tensor.pieces[id.piece];
    const std::uint64_t bytes = chunk_bytes(piece, tensor.dtype);
    const std::int64_t count = num_chunks(piece);
    for (std::int64_t chunk = 0; chunk < count; ++chunk) {
      const std::int64_t number = piece.first_chunk + chunk;
      const ChunkRecord& record = records[static_cast<std::size_t>(number)];
      const std::string wrong = problem(record, piece, bytes, entry);
      if (!wrong.empty()) fail(tensor, piece, chunk, wrong);
      if (is_raw(piece.codec, record)) {
        const std::uint64_t decoded = table.decoded_hashes[static_cast<std::size_t>(number)];
        if (decoded != record.hash) {
          fail(tensor, piece, chunk,
               fmt::format("it is stored as it is with the hash {}, but its decoded hash is {}",
                           to_hex(record.hash), to_hex(decoded)));
        }
      }
      spans.push_back(
          {record.linked, record.address, record.address + record.stored_bytes, number});
    }
  }
  check_disjoint(std::move(spans), path);
}

}  // namespace shardwise::detail
