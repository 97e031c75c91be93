// Our pipeline places bytes and then lets HDF5 describe them. The reference path has no part in
// that: HDF5 itself stores the same tensors in a second file, under its own driver, chunk by
// chunk through H5Dwrite_chunk or whole through H5Dwrite and its filters. Both files must be the
// same to h5diff, to the library and to our reader: the second one, too, which needs nothing but a
// manifest and a chunk table that say where HDF5 has put what.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/hdf5/index_file.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/only_layout.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;
using Coordinates = std::array<hsize_t, kMaxRank>;
constexpr std::size_t kMetadataBytes = std::size_t{16} << 20;  // more than any file here needs

Coordinates coordinates(const Dims& dims) {
  Coordinates result{};
  for (std::size_t d = 0; d < dims.size(); ++d) result[d] = static_cast<hsize_t>(dims[d]);
  return result;
}

/// The elements of a chunk, zeros beyond the edge of its piece.
std::vector<std::byte> chunk_of(const HostTensor& tensor, const PieceEntry& piece, const Box& box) {
  const std::size_t element = size_bytes(tensor.spec.dtype);
  std::vector<std::byte> out(chunk_bytes(piece, tensor.spec.dtype));
  Index end = box.begin();
  for (std::size_t d = 0; d < end.size(); ++d) end[d] += piece.chunk[d];
  copy_box(box, element, {tensor.data->data(), Box::whole(tensor.spec.shape)},
           {out.data(), Box(box.begin(), end)});
  return out;
}

/// HDF5's own places, except for two things that the format asks for: data begins at multiples of
/// 8, and none of HDF5's own bytes are between.
H5Properties data_apart() {
  H5Properties access(H5Pcreate(H5P_FILE_ACCESS), "file properties");
  check_hdf5(H5Pset_alignment(access.get(), 1, 8), "alignment");
  check_hdf5(H5Pset_meta_block_size(access.get(), kMetadataBytes), "metadata");
  check_hdf5(H5Pset_small_data_block_size(access.get(), 0), "data");
  return access;
}

/// A file of plain HDF5's. Under an Hdf5Lock.
class ReferenceFile {
 public:
  explicit ReferenceFile(const fs::path& path)
      : file_(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, data_apart().get()), "create") {
    check_hdf5(H5Pset_create_intermediate_group(links_.get(), 1), "link properties");
    add_plugin_folder();
  }

  /// `whole`: by one H5Dwrite, whatever the layout; else gives where HDF5 has put the chunks.
  std::vector<ChunkRecord> add(const HostTensor& tensor, const PieceEntry& piece, bool whole) {
    const H5Properties creation(H5Pcreate(H5P_DATASET_CREATE), "properties");
    if (piece.layout == Layout::chunked) {
      const Coordinates chunk = coordinates(piece.chunk);
      check_hdf5(H5Pset_chunk(creation.get(), static_cast<int>(piece.chunk.size()), chunk.data()),
                 "chunk");
    }
    if (piece.codec == StoredCodec::zstd) {
      constexpr unsigned level = 1;
      check_hdf5(H5Pset_shuffle(creation.get()), "shuffle");
      check_hdf5(H5Pset_filter(creation.get(), 32015, H5Z_FLAG_OPTIONAL, 1, &level), "zstd");
    }
    const H5Type type = hdf5_type(tensor.spec.dtype);
    const H5Space space = hdf5_space(piece.box.shape());
    const H5Dataset dataset(H5Dcreate2(file_.get(), piece.dataset.path().c_str(), type.get(),
                                       space.get(), links_.get(), creation.get(), H5P_DEFAULT),
                            piece.dataset.path());
    if (piece.layout == Layout::chunked && !whole) return add_chunks(dataset, tensor, piece);
    const std::vector<std::byte> data = tensor.part(piece.box);
    check_hdf5(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()),
               piece.dataset.path());
    if (piece.layout == Layout::chunked) return {};
    return {{.address = H5Dget_offset(dataset.get()), .stored_bytes = data.size()}};
  }

  /// Room for that many elements; gives its address.
  std::uint64_t add_room(const char* name, const H5Type& type, std::int64_t elements) {
    const H5Properties creation(H5Pcreate(H5P_DATASET_CREATE), "properties");
    check_hdf5(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "allocation");
    const H5Space space = hdf5_space({elements});
    const H5Dataset room(H5Dcreate2(file_.get(), name, type.get(), space.get(), H5P_DEFAULT,
                                    creation.get(), H5P_DEFAULT),
                         name);
    return H5Dget_offset(room.get());
  }

 private:
  std::vector<ChunkRecord> add_chunks(const H5Dataset& dataset, const HostTensor& tensor,
                                      const PieceEntry& piece) {
    std::vector<ChunkRecord> records(static_cast<std::size_t>(num_chunks(piece)));
    for (std::int64_t c = 0; c < num_chunks(piece); ++c) {
      const Box box = chunk_box(piece, c);
      std::vector<std::byte> bytes = chunk_of(tensor, piece, box);
      std::uint32_t mask = 0;
      if (piece.codec == StoredCodec::zstd) {
        std::vector<std::byte> encoded(bytes.size());
        encoded.resize(
            encoder_.encode(bytes, size_bytes(tensor.spec.dtype), Effort::matches, encoded));
        mask = encoded.empty() ? 3 : 0;
        if (!encoded.empty()) bytes = std::move(encoded);
      }
      const Coordinates at = coordinates(relative_to(box, piece.box.begin()).begin());
      check_hdf5(
          H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, mask, at.data(), bytes.size(), bytes.data()),
          piece.dataset.path());
      ChunkRecord& record = records[static_cast<std::size_t>(c)];
      haddr_t address = HADDR_UNDEF;
      hsize_t size = 0;
      check_hdf5(H5Dget_chunk_info_by_coord(dataset.get(), at.data(), &record.filter_mask, &address,
                                            &size),
                 piece.dataset.path());
      record.address = address;
      record.stored_bytes = size;
    }
    return records;
  }

  H5File file_;
  H5Properties links_{H5Pcreate(H5P_LINK_CREATE), "link properties"};
  Encoder encoder_;
};

struct Comparison {
  int status = 0;        ///< 0: no difference, 1: some
  std::size_t same = 0;  ///< datasets without a difference
  std::string said;
};

/// Runs h5diff with the plugin of the build tree.
Comparison h5diff(const fs::path& ours, const fs::path& reference) {
  const TempDir scratch;
  const fs::path log = scratch / "log";
  const std::string command = "HDF5_PLUGIN_PATH=" SHARDWISE_HDF5_PLUGINS " h5diff -r " +
                              ours.string() + " " + reference.string() + " /tensors /tensors > " +
                              log.string() + " 2>&1";
  const int status = std::system(command.c_str());
  Comparison found{WEXITSTATUS(status), 0, file_text(log)};
  constexpr std::string_view kSame = "\n0 differences found\n";
  for (std::size_t at = 0; (at = found.said.find(kSame, at)) != std::string::npos; ++at) {
    ++found.same;
  }
  return found;
}

/// Writes the pieces that the manifest has in the file once more, and compares. Returns how many.
std::size_t compare(const fs::path& directory, const Manifest& manifest, std::size_t number,
                    std::span<const HostTensor> tensors) {
  const TempDir scratch;
  const fs::path ours = directory / manifest.files[number].name, reference = scratch / "r.h5";
  std::size_t pieces = 0;
  {
    const Hdf5Lock lock;
    {
      ReferenceFile file(reference);
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        for (const PieceEntry& piece : manifest.tensors[t].pieces) {
          if (static_cast<std::size_t>(piece.file) != number) continue;
          file.add(tensors[t], piece, pieces++ % 3 == 0);
        }
      }
    }
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (const PieceEntry& piece : manifest.tensors[t].pieces) {
        if (static_cast<std::size_t>(piece.file) != number) continue;
        const std::string path = piece.dataset.path();
        const RawDataset a = read_raw(ours, path), b = read_raw(reference, path);
        const std::vector<std::byte> expected = tensors[t].part(piece.box);
        const bool same = a.shape == b.shape && H5Tequal(a.type.get(), b.type.get()) > 0;
        EXPECT_TRUE(same) << tensors[t].name;
        EXPECT_TRUE(a.data == expected) << "ours: " << tensors[t].name << to_string(piece.box);
        EXPECT_TRUE(b.data == expected) << "reference: " << tensors[t].name << to_string(piece.box);
      }
    }
  }
  const Comparison found = h5diff(ours, reference);
  EXPECT_EQ(found.status, 0) << found.said;
  EXPECT_EQ(found.same, pieces) << found.said;
  return pieces;
}

void expect_read(const fs::path& directory, std::span<const HostTensor> tensors) {
  for (const Damage& damage : verify_checkpoint(directory).damage) ADD_FAILURE() << damage.message;
  const CheckpointReader reader(directory);
  for (const HostTensor& tensor : tensors) {
    std::vector<std::byte> out(tensor.data->size());
    reader.read(tensor.name, Box::whole(tensor.spec.shape), out);
    EXPECT_TRUE(out == *tensor.data) << tensor.name;
  }
}

/// HDF5's own file in the place of ours, described as the format asks: addresses and sizes are what
/// HDF5 says, hashes those of the file's bytes.
void put_reference(const fs::path& directory, Manifest& manifest, std::size_t number,
                   std::span<const HostTensor> tensors) {
  FileEntry& entry = manifest.files[number];
  const fs::path path = directory / entry.name;
  std::vector<ChunkRecord> records(static_cast<std::size_t>(entry.chunks));
  std::vector<std::uint64_t> decoded_hashes(records.size());
  std::uint64_t description_address = 0;
  {
    const Hdf5Lock lock;
    const RawDataset our_table = read_raw(path, "/chunk_table");
    fs::remove(path);
    ReferenceFile file(path);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (const PieceEntry& piece : manifest.tensors[t].pieces) {
        if (static_cast<std::size_t>(piece.file) != number) continue;
        const std::vector<ChunkRecord> added = file.add(tensors[t], piece, false);
        std::copy(added.begin(), added.end(), records.begin() + piece.first_chunk);
        for (std::int64_t c = 0; c < num_chunks(piece); ++c) {
          const std::vector<std::byte> chunk = chunk_of(tensors[t], piece, chunk_box(piece, c));
          decoded_hashes[static_cast<std::size_t>(piece.first_chunk + c)] =
              hash64(chunk.data(), chunk.size());
        }
      }
    }
    entry.table_address = file.add_room("/chunk_table", our_table.type, entry.chunks);
    description_address = file.add_room("/description", hdf5_type(DType::u64), kDescriptionWords);
  }
  const auto table = std::as_bytes(std::span(records));
  std::vector<std::byte> bytes = file_bytes(path);
  const auto decoded = std::as_bytes(std::span(decoded_hashes));
  entry.decoded_address = bytes.size();
  entry.decoded_hash = hash64(decoded.data(), decoded.size());
  bytes.insert(bytes.end(), decoded.begin(), decoded.end());
  const std::vector<std::uint64_t> piece_words =
      describe_pieces(manifest.tensors, pieces_in_file(manifest.tensors, number));
  const auto pieces = std::as_bytes(std::span(piece_words));
  entry.pieces_address = bytes.size();
  entry.pieces_words = piece_words.size();
  entry.pieces_hash = hash64(pieces.data(), pieces.size());
  bytes.insert(bytes.end(), pieces.begin(), pieces.end());
  entry.content_address = entry.content_hash = 0;
  entry.bytes = bytes.size();
  entry.data_begin = entry.table_address;
  entry.data_end = description_address + kDescriptionBytes;
  entry.stored_bytes = 0;
  for (ChunkRecord& record : records) {
    record.hash = hash64(bytes.data() + record.address, record.stored_bytes);
    entry.data_begin = std::min(entry.data_begin, record.address);
    entry.stored_bytes += record.stored_bytes;
    ASSERT_LE(record.address + record.stored_bytes, description_address);
  }
  std::copy(table.begin(), table.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(entry.table_address));
  entry.table_hash = hash64(table.data(), table.size());
  Hasher128 structure;
  structure.update(bytes.data(), entry.data_begin);
  structure.update(bytes.data() + entry.data_end, bytes.size() - entry.data_end);
  entry.structure_hash = structure.digest();
  const auto description = describe_file(entry);
  const auto words = std::as_bytes(std::span(description));
  entry.description_hash = hash128(words.data(), words.size());
  std::copy(words.begin(), words.end(),
            bytes.begin() + static_cast<std::ptrdiff_t>(description_address));
  write_file(path, bytes);
}

/// Reads HDF5's own files in the place of ours.
void expect_reference_read(const fs::path& directory, Manifest manifest,
                           std::span<const HostTensor> tensors) {
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    put_reference(directory, manifest, f, tensors);
  }
  write_file(directory / kManifestName, print_manifest(manifest));
  expect_read(directory, tensors);
}

/// Shapes of any rank with odd extents, all types, cut by rows or columns or not at all.
std::vector<HostTensor> small_odd_tensors(std::size_t count, std::mt19937_64& random) {
  std::vector<HostTensor> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    const DType dtype = all_dtypes()[i % all_dtypes().size()];
    const std::size_t rank = i % 6 == 5 ? 0 : 1 + random() % 4;
    Shape shape;
    std::uint64_t room = 12'000;
    for (std::size_t d = 0; d < rank; ++d) {
      const std::uint64_t most = d + 1 == rank ? room : std::min<std::uint64_t>(room, 40);
      shape.push_back(1 + static_cast<std::int64_t>(random() % most));
      room = std::max<std::uint64_t>(room / static_cast<std::uint64_t>(shape[d]), 1);
    }
    std::string spec;
    const std::size_t cut = random() % (rank + 1);
    for (std::size_t d = 0; d < rank; ++d) {
      spec += std::string(d == 0 ? "" : ",") + (d == cut ? "a" : "-");
    }
    tensors.push_back(host_tensor("t" + std::to_string(1000 + i), dtype, shape, "a=3", spec,
                                  i % 4 == 0 ? Values::noise : Values::ramp, i));
  }
  return tensors;
}

/// Other chunks than the library would choose: any extents, either codec, however small the piece.
void choose_odd_chunks(SavePlan& plan, std::mt19937_64& random) {
  plan.chunks = 0;
  for (std::size_t t = 0; t < plan.tensors.size(); ++t) {
    plan.efforts[t] = random() % 2 == 0 ? Effort::huffman_only : Effort::matches;
    PieceList& pieces = plan.tensors[t].pieces;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      PieceEntry piece = pieces[p];
      if (piece.box.rank() > 0 && random() % 8 != 0) {
        piece.layout = Layout::chunked;
        piece.codec = random() % 3 == 0 ? StoredCodec::none : StoredCodec::zstd;
        for (std::size_t d = 0; d < piece.chunk.size(); ++d) {
          const std::int64_t extent = piece.box.extent(d),
                             least = std::max<std::int64_t>(1, extent / 4);
          piece.chunk[d] = least + static_cast<std::int64_t>(
                                       random() % static_cast<std::uint64_t>(extent - least + 1));
        }
      }
      piece.first_chunk = plan.chunks;
      plan.chunks += num_chunks(piece);
      pieces.set(p, piece);
    }
  }
}

TEST(ReferencePath, GivesTheSameFileForAnyChunks) {
  const TempDir dir;
  std::mt19937_64 random(11);
  const std::vector<HostTensor> tensors = small_odd_tensors(390, random);
  const Executor executor(2);
  SavePlan plan = plan_save(sources_of(tensors), Codec::none, executor);
  choose_odd_chunks(plan, random);
  ASSERT_GT(plan.chunks, 3000);
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(std::size_t{16} << 20, 2, layout.most_bytes()));
  const fs::path directory = dir / "step-00000001";
  fs::create_directory(directory);
  WrittenShardFile written = write_shard_file(
      plan, 0, layout, nullptr,
      *posix_file_system()->create(directory / plan.files[0].name, Caching::direct), pool, {});
  Manifest manifest;
  manifest.id = "0123456789abcdef0123456789abcdef";
  manifest.step = 1;
  manifest.tensors = plan.tensors;
  manifest.files = {written.entry};
  const std::vector<std::byte> index = build_index_file(manifest.tensors, manifest.files);
  manifest.index_bytes = index.size();
  manifest.index_hash = hash128(index.data(), index.size());
  write_file(directory / kIndexName, index);
  write_file(directory / kManifestName, print_manifest(manifest));

  EXPECT_GT(compare(directory, manifest, 0, tensors), 390u);
  expect_read(directory, tensors);
  expect_reference_read(directory, manifest, tensors);
}

// As it is saved, with the chunks that the library chooses: several in each piece, cut off at its
// edges.
TEST(ReferencePath, GivesTheSameFileForEveryType) {
  for (const Codec codec : {Codec::automatic, Codec::zstd}) {
    const TempDir dir;
    std::vector<HostTensor> tensors;
    for (const DType dtype : all_dtypes()) {
      const auto rows = static_cast<std::int64_t>(2'000'000 / size_bytes(dtype) / 1021);
      const std::string type(name(dtype));
      tensors.push_back(host_tensor(type + "/noise", dtype, {rows, 1021}, "a=2", "-,-"));
      tensors.push_back(
          host_tensor(type + "/ramp", dtype, {rows, 1021}, "a=2", "-,a", Values::ramp));
    }
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    const SaveStats stats =
        CheckpointManager(dir.path()).save(1, sources_of(tensors), {.codec = codec});
    const StoredCheckpoint stored = open_checkpoint(*posix_file_system(), stats.directory);
    std::size_t pieces = 0;
    for (std::size_t f = 0; f < stored.manifest.files.size(); ++f) {
      pieces += compare(stats.directory, stored.manifest, f, tensors);
    }
    EXPECT_GE(pieces, 3 * all_dtypes().size());
    expect_read(stats.directory, tensors);
    expect_reference_read(stats.directory, stored.manifest, tensors);
  }
}

// The comparison is sharp: h5diff reports one changed bit of one element.
TEST(ReferencePath, AChangedElementIsADifference) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("t", DType::bf16, {300, 7}, "", "-,-", Values::ramp);
  HostTensor changed = tensor;
  auto data = std::make_shared<std::vector<std::byte>>(*tensor.data);
  data->back() ^= std::byte{1};
  changed.data = data;
  PieceEntry piece{.box = Box::whole({300, 7}),
                   .layout = Layout::chunked,
                   .chunk = {100, 4},
                   .codec = StoredCodec::zstd};
  {
    const Hdf5Lock lock;
    ReferenceFile(dir / "a.h5").add(tensor, piece, false);
    ReferenceFile(dir / "b.h5").add(tensor, piece, true);
    ReferenceFile(dir / "c.h5").add(changed, piece, false);
  }
  EXPECT_EQ(h5diff(dir / "a.h5", dir / "b.h5").status, 0);
  EXPECT_EQ(h5diff(dir / "a.h5", dir / "b.h5").same, 1u);
  EXPECT_EQ(h5diff(dir / "a.h5", dir / "c.h5").status, 1);
  EXPECT_EQ(h5diff(dir / "a.h5", dir / "c.h5").same, 0u);
}

}  // namespace
}  // namespace shardwise::detail
