#include "shardwise/checkpoint/detail/write/shard_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <span>
#include <string>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/hdf5/address_driver.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"
#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "shardwise/shard/host/page_memory.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

// Makes `box` the two together, if that is a box.
bool join(Box& box, const Box& next) {
  std::size_t joined = box.rank();
  for (std::size_t d = 0; d < box.rank(); ++d) {
    if (box.begin(d) == next.begin(d) && box.end(d) == next.end(d)) continue;
    if (joined != box.rank() || box.end(d) != next.begin(d)) return false;
    joined = d;
  }
  Box both;
  for (std::size_t d = 0; d < box.rank(); ++d) both.push_back(box.begin(d), next.end(d));
  box = both;
  return true;
}

constexpr H5Z_filter_t kZstdFilter = 32015;  // registered with the HDF Group

// The filters' order and their one parameter: docs/checkpoint_format.md, heading "Codecs".
// Optional, so that the library need not have the filter to create the dataset.
void set_zstd_filters(const H5Properties& creation) {
  constexpr unsigned level = 1;  // a note for people; no decoder reads it
  check_hdf5(H5Pset_shuffle(creation.get()), "set the shuffle filter");
  check_hdf5(H5Pset_filter(creation.get(), kZstdFilter, H5Z_FLAG_OPTIONAL, 1, &level),
             "set the zstd filter");
}

using Coordinates = std::array<hsize_t, kMaxRank>;

Coordinates coordinates(const Dims& dims) {
  Coordinates result{};
  for (std::size_t d = 0; d < dims.size(); ++d) result[d] = static_cast<hsize_t>(dims[d]);
  return result;
}

/// Tells HDF5 about chunks that have been written. Under an Hdf5Lock.
class ChunkedDatasets {
 public:
  ChunkedDatasets(AddressDriver& driver, const H5File& file, std::span<const ChunkRecord> records)
      : driver_(driver), file_(file), records_(records) {
    std::uint64_t most = 0;
    for (const ChunkRecord& record : records) {
      if (record.linked == 0) most = std::max(most, record.stored_bytes);
    }
    zeros_.resize(most);
  }

  /// Gives the address of the dataset's object header; no link leads there yet.
  std::uint64_t add(const PieceEntry& piece, const std::string& path, DType dtype) {
    const H5Properties creation = hdf5_timeless(H5P_DATASET_CREATE);
    const Coordinates chunk = coordinates(piece.chunk);
    check_hdf5(H5Pset_chunk(creation.get(), static_cast<int>(piece.chunk.size()), chunk.data()),
               path);
    check_hdf5(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), path);
    if (piece.codec == StoredCodec::zstd) set_zstd_filters(creation);
    const H5Type type = hdf5_type(dtype);
    const H5Space space = hdf5_space(piece.box.shape());
    const H5Dataset dataset(
        H5Dcreate_anon(file_.get(), type.get(), space.get(), creation.get(), H5P_DEFAULT), path);
    check_hdf5(H5Oincr_refcount(dataset.get()), path);  // of the link to come
    const auto records = records_.subspan(static_cast<std::size_t>(piece.first_chunk),
                                          static_cast<std::size_t>(num_chunks(piece)));
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].linked != 0) continue;
      const Box box =
          relative_to(chunk_box(piece, static_cast<std::int64_t>(i)), piece.box.begin());
      place_chunk(path, dataset, coordinates(box.begin()), records[i]);
    }
    return hdf5_address(dataset);
  }

 private:
  // The bytes given to the library go nowhere: they lie at record.address already.
  void place_chunk(const std::string& path, const H5Dataset& dataset, const Coordinates& at,
                   const ChunkRecord& record) {
    driver_.next_address(record.address);
    check_hdf5(H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, record.filter_mask, at.data(),
                              record.stored_bytes, zeros_.data()),
               path);
    driver_.check();
    unsigned mask = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    check_hdf5(H5Dget_chunk_info_by_coord(dataset.get(), at.data(), &mask, &address, &size), path);
    if (address != record.address || size != record.stored_bytes || mask != record.filter_mask) {
      throw Error(ErrorCode::io,
                  fmt::format("index data: {}: HDF5 noted {} bytes at {} with mask {}, needed {} "
                              "at {} with {}",
                              path, size, address, mask, record.stored_bytes, record.address,
                              record.filter_mask));
    }
  }

  AddressDriver& driver_;
  const H5File& file_;
  std::span<const ChunkRecord> records_;
  std::vector<std::byte> zeros_;
};

std::vector<std::byte> table_type() {
  const H5Type type(H5Tcreate(H5T_COMPOUND, sizeof(ChunkRecord)), "make the chunk table's type");
  const auto insert = [&](const char* name, std::size_t offset, hid_t member) {
    check_hdf5(H5Tinsert(type.get(), name, offset, member), "make the chunk table's type");
  };
  insert("address", offsetof(ChunkRecord, address), H5T_STD_U64LE);
  insert("stored_bytes", offsetof(ChunkRecord, stored_bytes), H5T_STD_U64LE);
  insert("xxh3", offsetof(ChunkRecord, hash), H5T_STD_U64LE);
  insert("filter_mask", offsetof(ChunkRecord, filter_mask), H5T_STD_U32LE);
  return hdf5_type_message(type);
}

std::vector<PieceId> pieces_of(const ChunkLayout& layout) {
  std::vector<PieceId> pieces;
  pieces.reserve(layout.pieces().size());
  for (const FilePiece& piece : layout.pieces()) pieces.push_back(piece.id);
  return pieces;
}

std::span<const ChunkRecord> records_of(const PieceEntry& piece,
                                        std::span<const ChunkRecord> records) {
  return records.subspan(static_cast<std::size_t>(piece.first_chunk),
                         static_cast<std::size_t>(num_chunks(piece)));
}

/// The parts of a virtual dataset that stands for a piece some of whose chunks are in linked files:
/// of chunks that follow one another, those that are in one file and make a box are one part. The
/// texts stay in `texts`.
std::vector<Hdf5Mapping> parts_of(const PieceEntry& piece, std::size_t number,
                                  std::span<const ChunkRecord> records,
                                  const UnchangedChunks& unchanged,
                                  std::span<const std::string> linked_names,
                                  std::deque<std::string>& texts) {
  std::vector<std::string_view> datasets(linked_names.size() + 1);  // by ChunkRecord::linked
  const auto dataset = [&](std::uint32_t linked) {
    std::string_view& text = datasets[linked];
    if (text.empty()) {
      text = texts.emplace_back(linked == 0 ? stored_path(piece.dataset)
                                            : unchanged.dataset(linked, number));
    }
    return text;
  };
  std::vector<Hdf5Mapping> parts;
  std::uint32_t last = 0;
  for (std::size_t c = 0; c < records.size(); ++c) {
    const Box box = relative_to(chunk_box(piece, static_cast<std::int64_t>(c)), piece.box.begin());
    const std::uint32_t from = records[c].linked;
    const bool joins = !parts.empty() && last == from && join(parts.back().box, box);
    last = from;
    if (joins) continue;
    parts.push_back({.box = box,
                     .file = from == 0 ? std::string_view(".") : linked_names[from - 1],
                     .dataset = dataset(from),
                     .is_same_box = true});
  }
  return parts;
}

/// HDF5's own bytes of a file whose chunks are written, and the file's tables. The library makes
/// the chunked datasets; the others may be thousands, see hdf5/. Thread-compatible.
class Structure {
 public:
  /// Keeps references; completes the entry.
  Structure(const SavePlan& plan, const ChunkLayout& layout, const UnchangedChunks* unchanged,
            WrittenShardFile& written)
      : plan_(plan),
        ids_(pieces_of(layout)),
        unchanged_(unchanged),
        table_(written.table),
        entry_(written.entry) {}

  void build(AddressDriver& driver) {
    links_.reserve(ids_.size() + 6);
    const Hdf5Lock lock;
    add_chunked(driver);
    const Hdf5Types types;
    Hdf5Bytes out(driver.end());
    put_tables(out);
    Hdf5Datasets datasets(out);
    add_virtual(types, datasets);
    // If there are many files, small pieces have no datasets of their own: a job of thousands of
    // processes would make millions.
    const bool own_datasets = plan_.writers.num_writers() <= kMostIndexedWriters;
    if (own_datasets) add_contiguous(types, datasets);
    add_tables(types, datasets);
    if (!own_datasets) {
      const std::size_t bytes = entry_.table_address - entry_.data_begin;
      add(datasets, "/data", types[DType::u8], bytes, {entry_.data_begin, bytes});
    }
    const std::uint64_t root = add_hdf5_groups(out, std::move(links_));
    driver.append(out, root);
  }

 private:
  struct Place {
    std::uint64_t address;
    std::size_t bytes;
  };

  const TensorEntry& tensor(const PieceId& id) const { return plan_.tensors[id.tensor]; }
  PieceEntry piece(const PieceId& id) const { return tensor(id).pieces[id.piece]; }

  void add_chunked(AddressDriver& driver) {
    H5File file = driver.create_file();
    ChunkedDatasets chunked(driver, file, table_.records);
    for (const PieceId& id : ids_) {
      const PieceEntry its = piece(id);
      if (its.layout != Layout::chunked) continue;
      has_chunked_ = true;
      const auto records = records_of(its, table_.records);
      if (std::ranges::all_of(records, is_in_linked)) continue;
      const bool is_split = std::ranges::any_of(records, is_in_linked);
      const std::string& path =
          paths_.emplace_back(is_split ? stored_path(its.dataset) : its.dataset.path());
      links_.push_back({path, chunked.add(its, path, tensor(id).dtype)});
    }
    driver.finish(std::move(file));
  }

  void put_tables(Hdf5Bytes& out) {
    const auto put = [&](std::span<const std::uint64_t> words, std::uint64_t& address,
                         std::uint64_t& hash) {
      const auto bytes = std::as_bytes(words);
      address = out.align();
      hash = hash64(bytes.data(), bytes.size());
      out.put(bytes);
    };
    put(table_.decoded_hashes, entry_.decoded_address, entry_.decoded_hash);
    const std::vector<std::uint64_t> pieces = describe_pieces(plan_.tensors, ids_);
    entry_.pieces_words = pieces.size();
    put(pieces, entry_.pieces_address, entry_.pieces_hash);
    if (!has_chunked_) return;
    const std::vector<std::uint64_t> content =
        describe_content(entry_.linked, plan_.tensors, ids_, table_.content_hashes);
    content_words_ = content.size();
    put(content, entry_.content_address, entry_.content_hash);
  }

  // Adds the pieces that have chunks in linked files.
  void add_virtual(const Hdf5Types& types, Hdf5Datasets& datasets) {
    std::vector<std::string> linked_names;
    for (const LinkedFile& linked : entry_.linked) linked_names.push_back(linked.name());
    std::deque<std::string> sources;  // of the piece's parts
    for (std::size_t p = 0; p < ids_.size() && !linked_names.empty(); ++p) {
      const PieceEntry its = piece(ids_[p]);
      const auto records = records_of(its, table_.records);
      if (std::ranges::none_of(records, is_in_linked)) continue;
      sources.clear();
      const DType dtype = tensor(ids_[p]).dtype;
      const FillValue value = fill_value(dtype);
      links_.push_back(
          {paths_.emplace_back(its.dataset.path()),
           datasets.add_virtual(
               types[dtype], its.box.shape(), std::span(value).first(size_bytes(dtype)),
               parts_of(its, p, records, *unchanged_, linked_names, sources), {})});
    }
  }

  void add_contiguous(const Hdf5Types& types, Hdf5Datasets& datasets) {
    for (const PieceId& id : ids_) {
      const PieceEntry its = piece(id);
      if (its.layout != Layout::contiguous) continue;
      const ChunkRecord& record = table_.records[static_cast<std::size_t>(its.first_chunk)];
      links_.push_back({paths_.emplace_back(its.dataset.path()),
                        datasets.add_contiguous(types[tensor(id).dtype], its.box.shape(),
                                                record.address, record.stored_bytes)});
    }
  }

  void add(Hdf5Datasets& datasets, const char* path, std::span<const std::byte> type,
           std::size_t count, const Place& at) {
    links_.push_back({path, datasets.add_contiguous(type, Shape{static_cast<std::int64_t>(count)},
                                                    at.address, at.bytes)});
  }

  void add_tables(const Hdf5Types& types, Hdf5Datasets& datasets) {
    constexpr std::size_t kWord = sizeof(std::uint64_t);
    const auto words = types[DType::u64];
    const std::size_t chunks = table_.records.size();
    add(datasets, "/chunk_table", table_type(), chunks,
        {entry_.table_address, chunks * sizeof(ChunkRecord)});
    add(datasets, "/decoded_hashes", words, chunks, {entry_.decoded_address, chunks * kWord});
    add(datasets, "/piece_table", words, entry_.pieces_words,
        {entry_.pieces_address, entry_.pieces_words * kWord});
    if (has_chunked_) {
      add(datasets, "/content_table", words, content_words_,
          {entry_.content_address, content_words_ * kWord});
    }
    add(datasets, "/description", words, kDescriptionWords,
        {entry_.data_end - kDescriptionBytes, kDescriptionBytes});
  }

  const SavePlan& plan_;
  const std::vector<PieceId> ids_;
  const UnchangedChunks* const unchanged_;
  const ChunkTable& table_;
  FileEntry& entry_;
  bool has_chunked_ = false;
  std::size_t content_words_ = 0;
  std::vector<Hdf5Link> links_;
  std::deque<std::string> paths_;  // of the links
};

Hash128 hash_structure(const AddressDriver& driver) {
  Hasher128 hasher;
  hasher.update(driver.front().data(), driver.front().size());
  hasher.update(driver.tail().data(), driver.tail().size());
  return hasher.digest();
}

std::uint64_t page_end(std::uint64_t address) {
  return (address + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

WrittenShardFile write_shard_file(const SavePlan& plan, std::size_t file_number,
                                  const ChunkLayout& layout, UnchangedChunks* unchanged, File& file,
                                  StagingPool& pool, const ProgressFunction& progress) {
  static_assert(std::endian::native == std::endian::little, "elements are stored as they are");
  WrittenChunks chunks = write_chunks(plan, layout, unchanged, file, kFrontBytes, pool, progress);

  WrittenShardFile written{.entry = plan.files[file_number], .table = std::move(chunks.table)};
  written.unchanged_bytes = chunks.unchanged_bytes;
  if (unchanged != nullptr) unchanged->settle(written.table, written.entry);
  const std::span<const std::byte> table = std::as_bytes(std::span(written.table.records));
  FileEntry& entry = written.entry;
  entry.chunks = std::ssize(written.table.records);
  entry.stored_bytes = chunks.stored_bytes;
  entry.table_address = chunks.end;
  entry.table_hash = hash64(table.data(), table.size());
  entry.data_begin = kFrontBytes;
  entry.data_end = page_end(chunks.end + table.size() + kDescriptionBytes);

  AddressDriver driver(entry.data_begin, entry.data_end);
  Structure(plan, layout, unchanged, written).build(driver);
  entry.bytes = entry.data_end + driver.tail().size();
  entry.structure_hash = hash_structure(driver);
  const auto words = describe_file(entry);
  const std::span<const std::byte> description = std::as_bytes(std::span(words));
  entry.description_hash = hash128(description.data(), description.size());

  file.resize(entry.bytes);
  file.write_at(entry.table_address, table.data(), table.size());
  file.write_at(entry.data_end - kDescriptionBytes, description.data(), description.size());
  file.write_at(entry.data_end, driver.tail().data(), driver.tail().size());
  file.write_at(0, driver.front().data(), driver.front().size());
  file.sync();
  file.seal();
  file.close();
  return written;
}

}  // namespace shardwise::detail
