#include "testing/hand_made_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/shard/box_copy.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using detail::ChunkRecord;
using detail::PieceEntry;
using detail::StoredCodec;

constexpr std::size_t kFillerBytes = 72;

void append_filler(std::vector<std::byte>& bytes, unsigned first) {
  for (unsigned i = 0; i < kFillerBytes; ++i) {
    bytes.push_back(static_cast<std::byte>(first + i * 31));
  }
}

void pad_to(std::vector<std::byte>& bytes, std::size_t multiple) {
  while (bytes.size() % multiple != 0) bytes.push_back(std::byte{0});
}

std::string five_digits(std::int64_t number) {
  const std::string text = std::to_string(number);
  return std::string(5 - text.size(), '0') + text;
}

}  // namespace

HandMadeCheckpoint::HandMadeCheckpoint(std::vector<HandMadeTensor> tensors, std::int64_t num_files,
                                       std::int64_t step) {
  std::sort(tensors.begin(), tensors.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  manifest.id = "0123456789abcdef0123456789abcdef";
  manifest.step = step;
  for (std::int64_t f = 0; f < num_files; ++f) {
    files.emplace_back();
    append_filler(files.back().bytes, static_cast<unsigned>(f));
    manifest.files.emplace_back();
    manifest.files.back().name =
        "shards-" + five_digits(f) + "-of-" + five_digits(num_files) + ".h5";
    manifest.files.back().data_begin = files.back().bytes.size();
  }
  append_filler(index, 200);

  std::int64_t turn = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const HandMadeTensor& tensor = tensors[t];
    detail::TensorEntry entry{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape};
    for (const Box& box : tensor.pieces) {
      PieceEntry piece;
      piece.box = box;
      piece.file = turn++ % num_files;
      piece.dataset = {static_cast<std::uint32_t>(t),
                       static_cast<std::uint32_t>(entry.pieces.size())};
      piece.chunk = box.shape();
      if (!tensor.chunk.empty()) {
        piece.layout = detail::Layout::chunked;
        piece.codec = tensor.codec;
        for (std::size_t d = 0; d < box.rank(); ++d) {
          piece.chunk[d] = std::min(tensor.chunk[d], piece.chunk[d]);
        }
      }
      ShardFile& file = files[static_cast<std::size_t>(piece.file)];
      piece.first_chunk = static_cast<std::int64_t>(file.records.size());
      for (std::int64_t c = 0; c < num_chunks(piece); ++c) add_chunk(tensor, piece, c);
      entry.pieces.push_back(piece);
    }
    manifest.tensors.push_back(std::move(entry));
  }
  for (std::size_t f = 0; f < files.size(); ++f) {
    detail::FileEntry& entry = manifest.files[f];
    std::vector<std::byte>& bytes = files[f].bytes;
    pad_to(bytes, 64);
    entry.chunks = static_cast<std::int64_t>(files[f].records.size());
    entry.table_address = bytes.size();
    bytes.resize(bytes.size() + files[f].records.size() * sizeof(ChunkRecord));
    bytes.resize(bytes.size() + detail::kDescriptionBytes);
    pad_to(bytes, 64);
    entry.data_end = bytes.size();
    append_filler(bytes, static_cast<unsigned>(f) + 100);
    entry.decoded_address = bytes.size();
    bytes.resize(bytes.size() + files[f].decoded_hashes.size() * sizeof(std::uint64_t));
    entry.pieces_address = bytes.size();
    entry.pieces_words = describe(f).size();
    bytes.resize(bytes.size() + entry.pieces_words * sizeof(std::uint64_t));
    append_filler(bytes, static_cast<unsigned>(f) + 150);
  }
  seal();
}

std::vector<std::uint64_t> HandMadeCheckpoint::describe(std::size_t file) const {
  return describe_pieces(manifest.tensors, pieces_in_file(manifest.tensors, file));
}

void HandMadeCheckpoint::add_chunk(const HandMadeTensor& tensor, const PieceEntry& piece,
                                   std::int64_t chunk) {
  const std::size_t element = size_bytes(tensor.dtype);
  std::vector<std::byte> decoded(chunk_bytes(piece, tensor.dtype));
  const Box box = detail::chunk_box(piece, chunk);
  Index end = box.begin();
  for (std::size_t d = 0; d < box.rank(); ++d) end[d] += piece.chunk[d];
  copy_box(box, element, {tensor.data.data(), Box::whole(tensor.shape)},
           {decoded.data(), Box(box.begin(), end)});

  ShardFile& file = files[static_cast<std::size_t>(piece.file)];
  // Every other chunk leaves a gap, so that readers meet padding of several sizes.
  pad_to(file.bytes, file.records.size() % 2 == 0 ? 8 : 64);
  ChunkRecord record;
  record.address = file.bytes.size();
  file.decoded_hashes.push_back(hash64(decoded.data(), decoded.size()));
  if (piece.codec == StoredCodec::zstd) {
    std::vector<std::byte> stored(decoded.size());
    stored.resize(detail::Encoder().encode(decoded, element, detail::Effort::matches, stored));
    record.filter_mask = stored.empty() ? 3 : 0;
    if (!stored.empty()) decoded = std::move(stored);
  }
  record.stored_bytes = decoded.size();
  record.hash = hash64(decoded.data(), decoded.size());
  file.bytes.insert(file.bytes.end(), decoded.begin(), decoded.end());
  file.records.push_back(record);
}

void HandMadeCheckpoint::seal() {
  for (std::size_t f = 0; f < files.size(); ++f) {
    detail::FileEntry& entry = manifest.files[f];
    ShardFile& file = files[f];
    const std::size_t table_bytes = file.records.size() * sizeof(ChunkRecord);
    if (table_bytes != 0) {
      std::memcpy(file.bytes.data() + entry.table_address, file.records.data(), table_bytes);
    }
    const std::size_t hashes_bytes = file.decoded_hashes.size() * sizeof(std::uint64_t);
    if (hashes_bytes != 0) {
      std::memcpy(file.bytes.data() + entry.decoded_address, file.decoded_hashes.data(),
                  hashes_bytes);
    }
    entry.decoded_hash = hash64(file.bytes.data() + entry.decoded_address, hashes_bytes);
    entry.bytes = file.bytes.size();
    entry.table_hash = hash64(file.bytes.data() + entry.table_address, table_bytes);
    const std::vector<std::uint64_t> pieces = describe(f);
    const std::size_t pieces_bytes = pieces.size() * sizeof(std::uint64_t);
    if (pieces_bytes != 0) {
      std::memcpy(file.bytes.data() + entry.pieces_address, pieces.data(), pieces_bytes);
    }
    entry.pieces_hash = hash64(file.bytes.data() + entry.pieces_address, pieces_bytes);
    Hasher128 structure;
    structure.update(file.bytes.data(), entry.data_begin);
    structure.update(file.bytes.data() + entry.data_end, file.bytes.size() - entry.data_end);
    entry.structure_hash = structure.digest();
    describe_itself(f);
  }
  for (detail::TensorEntry& tensor : manifest.tensors) {
    tensor.listed.clear();
    for (const PieceEntry& piece : tensor.pieces) tensor.listed.push_back({piece.file, piece.box});
    std::stable_sort(tensor.listed.begin(), tensor.listed.end(),
                     [](const auto& a, const auto& b) { return a.writer < b.writer; });
  }
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());
}

void HandMadeCheckpoint::describe_itself(std::size_t number) {
  const auto writers = static_cast<std::int64_t>(files.size());
  manifest.writers = writers == 1 ? detail::WriterMap() : detail::WriterMap::even(writers, writers);
  detail::FileEntry& entry = manifest.files[number];
  entry.writer = static_cast<std::int64_t>(number);
  entry.stored_bytes = 0;
  for (const ChunkRecord& record : files[number].records) entry.stored_bytes += record.stored_bytes;
  const auto description = describe_file(entry);
  const auto bytes = std::as_bytes(std::span(description));
  entry.description_hash = hash128(bytes.data(), bytes.size());
  std::memcpy(files[number].bytes.data() + entry.data_end - bytes.size(), bytes.data(),
              bytes.size());
}

std::filesystem::path HandMadeCheckpoint::write(const std::filesystem::path& root) const {
  const std::string step = std::to_string(manifest.step);
  const auto directory =
      root / ("step-" + std::string(8 - std::min<std::size_t>(8, step.size()), '0') + step);
  std::filesystem::create_directories(directory);
  for (std::size_t f = 0; f < files.size(); ++f) {
    write_file(directory / manifest.files[f].name, files[f].bytes);
  }
  write_file(directory / detail::kIndexName, index);
  const std::string text = print_manifest(manifest);
  write_file(directory / detail::kManifestName, std::as_bytes(std::span(text)));
  return directory;
}

std::string with_checksum(std::string text) {
  constexpr std::size_t kTail = 49;
  if (text.size() >= kTail && text.ends_with("\"}\n") &&
      text.substr(text.size() - kTail).starts_with(",\n\"checksum\":\"")) {
    text.resize(text.size() - kTail);
  }
  const auto hash = hash128(reinterpret_cast<const std::byte*>(text.data()), text.size());
  return text + ",\n\"checksum\":\"" + to_hex(hash) + "\"}\n";
}

std::string manifest_with(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("not in the manifest: " + std::string(from));
  text.replace(at, from.size(), to);
  return with_checksum(std::move(text));
}

std::vector<std::byte> counting_values(DType dtype, const Shape& shape, std::uint64_t first) {
  const std::size_t element = size_bytes(dtype);
  std::vector<std::byte> data(num_bytes(shape, element));
  for (std::size_t i = 0; i < data.size() / element; ++i) {
    const std::uint64_t value = dtype == DType::boolean ? (first + i) / 3 % 2 : first + i;
    std::memcpy(data.data() + i * element, &value, std::min(element, sizeof value));
  }
  return data;
}

std::vector<std::byte> scattered_values(DType dtype, const Shape& shape, std::uint64_t first) {
  const std::size_t words = std::max<std::size_t>(size_bytes(dtype) / 8, 1);
  const std::size_t element = size_bytes(dtype) / words;
  std::vector<std::byte> data(num_bytes(shape, size_bytes(dtype)));
  for (std::size_t i = 0; i < data.size() / element; ++i) {
    // Odd multiples modulo 2^64 are all different, and so are their leading bytes, mostly.
    std::uint64_t value = (first + i) * 0x9e3779b97f4a7c15u;
    value = dtype == DType::boolean ? value >> 63 : value >> (64 - 8 * element);
    std::memcpy(data.data() + i * element, &value, element);
  }
  return data;
}

std::vector<std::byte> file_bytes(const std::filesystem::path& path) {
  const std::string text = file_text(path);
  const std::span bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::map<std::string, std::vector<std::byte>> bytes_of_files(const std::filesystem::path& folder) {
  std::map<std::string, std::vector<std::byte>> bytes;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    bytes[entry.path().filename().string()] = file_bytes(entry.path());
  }
  return bytes;
}

}  // namespace shardwise
