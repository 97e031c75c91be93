#include "shardwise/checkpoint/detail/write/chunks/chunk_encoder.h"

#include <fmt/format.h>

#include <cstring>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

// The high half of the elements' XXH3-128, and their XXH3-64, which is the low half of the other
// for more than 240 bytes.
Hash128 content_of(std::span<const std::byte> elements) {
  Hash128 content = hash128(elements.data(), elements.size());
  if (elements.size() <= 240) content.low = hash64(elements.data(), elements.size());
  return content;
}

// A chunk's elements in the source's memory; empty if they are not side by side there.
std::span<const std::byte> find_in_place(const TensorSource& source, const FileChunk& chunk) {
  if (chunk.held_bytes() != chunk.bytes) return {};
  const std::byte* elements = nullptr;
  call_caller([&] { elements = source.reader->contiguous(source.tensor, chunk.box); });
  if (elements == nullptr) return {};
  return {elements, chunk.bytes};
}

}  // namespace

void check_unchanged(const TensorSource& source, const Box& box,
                     std::span<const std::byte> elements, std::uint64_t decoded_hash) {
  if (hash64(elements.data(), elements.size()) == decoded_hash) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("save: tensor {:?}: found other bytes at {} than before they were written, "
                  "needed is memory that nobody changes until the save has ended",
                  source.name, to_string(box)));
}

// Elements that are not coded can be put where they are written from.
std::span<const std::byte> ChunkEncoder::put_in_memory(const TensorSource& source,
                                                       const FileChunk& chunk,
                                                       std::span<const std::byte> in_place,
                                                       bool is_coded, SlabBytes& out) {
  std::span<std::byte> to(out.room(), chunk.bytes);
  if (is_coded) {
    gathered_.resize(chunk.bytes);
    to = gathered_;
  }
  if (in_place.empty()) {
    gather(source, chunk, to);
  } else {
    std::memcpy(to.data(), in_place.data(), to.size());
  }
  return to;
}

EncodedChunk ChunkEncoder::encode(const TensorSource& source, const FileChunk& chunk,
                                  std::optional<Effort> effort, const FindUnchanged& unchanged,
                                  SlabBytes& out) {
  const std::span<const std::byte> in_place = find_in_place(source, chunk);
  const bool stay = out.takes(in_place);
  const bool may_change = !in_place.empty() && source.reader->may_change();
  // If it may be there already, it is hashed before it is copied.
  const bool copy = !effort && !stay && !unchanged;
  const std::span<const std::byte> elements =
      in_place.empty() || copy ? put_in_memory(source, chunk, in_place, effort.has_value(), out)
                               : in_place;
  EncodedChunk encoded;
  ChunkRecord& record = encoded.record;
  // Taken before the coder sees the elements: its faults have no part in this hash.
  if (chunk.piece.layout == Layout::contiguous) {
    encoded.decoded_hash = hash64(elements.data(), elements.size());
  } else {
    const Hash128 content = content_of(elements);
    encoded.decoded_hash = content.low;
    encoded.content_hash = content.high;
    if (const auto found = unchanged ? unchanged(content) : std::nullopt) {
      record = *found;
      return encoded;
    }
  }
  if (effort) {
    record.stored_bytes =
        encoder_.encode(elements, chunk.element_bytes, *effort, {out.room(), chunk.bytes});
    if (may_change) check_unchanged(source, chunk.box, elements, encoded.decoded_hash);
    if (record.stored_bytes > 0) {
      record.hash = hash64(out.room(), record.stored_bytes);
      out.add(record.stored_bytes);
      return encoded;
    }
  }
  if (chunk.piece.codec != StoredCodec::none) record.filter_mask = kRawMask;
  record.stored_bytes = chunk.bytes;
  record.hash = encoded.decoded_hash;
  if (stay) {
    out.add_in_place(elements);
    if (may_change) encoded.in_place = elements;
    return encoded;
  }
  if (elements.data() != out.room()) {
    std::memcpy(out.room(), elements.data(), elements.size());
    if (may_change) {
      check_unchanged(source, chunk.box, {out.room(), chunk.bytes}, encoded.decoded_hash);
    }
  }
  out.add(elements.size());
  return encoded;
}

// Fills `out` with a chunk's elements; what reaches over the piece's edge is zero.
void ChunkEncoder::gather(const TensorSource& source, const FileChunk& chunk,
                          std::span<std::byte> out) {
  const auto read = [&](std::span<std::byte> to) {
    call_caller([&] { source.reader->read(source.tensor, chunk.box, to); });
  };
  if (chunk.held_bytes() == chunk.bytes) return read(out);
  edge_.resize(chunk.held_bytes());
  read(edge_);
  std::memset(out.data(), 0, out.size());
  const Box held = relative_to(chunk.box, chunk.box.begin());
  copy_box(held, chunk.element_bytes, {edge_.data(), held},
           {out.data(), Box::whole(chunk.piece.chunk)});
}

}  // namespace shardwise::detail
