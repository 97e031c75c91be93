// Whatever happens to a checkpoint's files, in any bit: it is found, by reading and by verifying,
// and said with file, tensor, chunk and global box.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/memory_files.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using detail::ChunkRecord;
using detail::FileEntry;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

/// "raw" u16 [6, 5] in two pieces, one per file, of chunks [2, 3]; "zstd" f32 [90], in chunks
/// of 60.
HandMadeCheckpoint made(std::uint64_t first_value = 1) {
  return HandMadeCheckpoint({{.name = "raw",
                              .dtype = DType::u16,
                              .shape = {6, 5},
                              .pieces = {Box({0, 0}, {3, 5}), Box({3, 0}, {6, 5})},
                              .data = scattered_values(DType::u16, {6, 5}, first_value),
                              .chunk = {2, 3}},
                             {.name = "zstd",
                              .shape = {180},
                              .pieces = {Box({0}, {90}), Box({90}, {180})},
                              .data = counting_values(DType::f32, {180}, first_value),
                              .chunk = {60},
                              .codec = detail::StoredCodec::zstd}},
                            2);
}

/// The files of a checkpoint in memory, which a test changes as it likes.
class Integrity : public testing::Test {
 protected:
  Integrity() {
    fs::create_directory(path_);
    const std::string text = print_manifest(made_.manifest);
    const auto bytes = std::as_bytes(std::span(text));
    files_[detail::kManifestName].assign(bytes.begin(), bytes.end());
    // The hand-made index is not HDF5's. Made shorter, it is known to be damaged, and HDF5 is not
    // asked.
    files_[detail::kIndexName].assign(made_.index.begin(), made_.index.end() - 1);
    for (std::size_t f = 0; f < made_.files.size(); ++f) files_[name_of(f)] = made_.files[f].bytes;
  }

  const std::string& name_of(std::size_t file) const { return made_.manifest.files[file].name; }
  std::string path_of(const std::string& name) const { return (path_ / name).string(); }

  ReadOptions options() const {
    return {.threads = 1, .pin = false, .file_system = std::make_shared<MemoryFileSystem>(files_)};
  }

  CheckpointReader open() const { return CheckpointReader(path_, options()); }

  /// The damage that verifying finds, except in the index.
  std::vector<Damage> damage() const {
    std::vector<Damage> found;
    for (Damage& damage : verify_checkpoint(path_, options()).damage) {
      if (damage.file != detail::kIndexName) found.push_back(std::move(damage));
    }
    return found;
  }

  /// The error of reading the tensor; empty if it gives the right values.
  std::string read(const CheckpointReader& reader, const std::string& name) const {
    const TensorInfo& tensor = reader.tensor(name);
    std::vector<std::byte> out(tensor.logical_bytes);
    try {
      reader.read(name, Box::whole(tensor.shape), out);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::corrupt);
      return e.what();
    }
    EXPECT_EQ(out, name == "raw" ? scattered_values(DType::u16, {6, 5})
                                 : counting_values(DType::f32, {180}));
    return "";
  }

  /// Both ways refuse the file as such.
  void expect_refused(const std::string& name, const std::string& message) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { open(); }),
                AllOf(HasSubstr(path_of(name)), HasSubstr(message)));
    const std::vector<Damage> found = damage();
    ASSERT_FALSE(found.empty());
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), [&](const Damage& one) {
      return one.file == name && one.message.find(path_of(name)) != std::string::npos &&
             one.message.find(message) != std::string::npos;
    })) << found[0].message;
  }

  HandMadeCheckpoint made_ = made();
  const TempDir dir_;
  const fs::path path_ = dir_ / "step-00000100";
  MemoryFiles files_;
};

/// Which chunk a byte of a shard file belongs to.
struct Owner {
  const detail::TensorEntry* tensor = nullptr;
  detail::PieceEntry piece = {};
  std::int64_t chunk = 0;
};

Owner owner_of(const HandMadeCheckpoint& made, std::size_t file, std::size_t place) {
  for (const detail::TensorEntry& tensor : made.manifest.tensors) {
    for (const detail::PieceEntry& piece : tensor.pieces) {
      for (std::int64_t c = 0; c < num_chunks(piece); ++c) {
        if (static_cast<std::size_t>(piece.file) != file) continue;
        const auto number = static_cast<std::size_t>(piece.first_chunk + c);
        const ChunkRecord& record = made.files[file].records[number];
        if (place - record.address < record.stored_bytes) return {&tensor, piece, c};
      }
    }
  }
  return {};
}

TEST_F(Integrity, EveryBitOfAShardFileIsFoundAndNamed) {
  EXPECT_TRUE(damage().empty());
  std::set<std::string> classes;
  for (std::size_t f = 0; f < made_.files.size(); ++f) {
    const FileEntry& entry = made_.manifest.files[f];
    const std::string file = path_of(name_of(f));
    std::vector<std::byte>& bytes = files_[name_of(f)];
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const std::size_t place = bit / 8;
      SCOPED_TRACE(testing::Message() << file << " bit " << bit);
      bytes[place] ^= static_cast<std::byte>(1u << bit % 8);
      const std::vector<Damage> found = damage();
      const bool in_decoded_hashes = place - entry.decoded_address <
                                     made_.files[f].decoded_hashes.size() * sizeof(std::uint64_t);
      const bool in_pieces =
          place - entry.pieces_address < entry.pieces_words * sizeof(std::uint64_t);
      const bool in_description =
          place - (entry.data_end - detail::kDescriptionBytes) < detail::kDescriptionBytes;
      EXPECT_EQ(found[0].file, name_of(f));
      EXPECT_THAT(found[0].message, HasSubstr(file));
      if (in_pieces || in_description) {
        classes.insert(in_pieces ? "piece table" : "description");
        ASSERT_EQ(found.size(), 1u);
        EXPECT_THAT(found[0].message,
                    HasSubstr(in_pieces ? "read piece table of " : "read description of "));
        EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { open(); }), found[0].message);
        bytes[place] ^= static_cast<std::byte>(1u << bit % 8);
        continue;
      }
      // Those have a hash of their own, and are among the bytes outside the data.
      ASSERT_EQ(found.size(), in_decoded_hashes ? 2u : 1u);

      if (place - entry.table_address < made_.files[f].records.size() * sizeof(ChunkRecord)) {
        classes.insert("chunk table");
        EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { open(); }), found[0].message);
        bytes[place] ^= static_cast<std::byte>(1u << bit % 8);
        continue;
      }
      if (in_decoded_hashes) {
        classes.insert("decoded hashes");
        EXPECT_THAT(found[1].message,
                    HasSubstr("read table of decoded hashes of " + path_of(name_of(f))));
        EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { open(); }), found[1].message);
        bytes[place] ^= static_cast<std::byte>(1u << bit % 8);
        continue;
      }
      const CheckpointReader reader = open();
      const Owner owner = owner_of(made_, f, place);
      if (owner.tensor == nullptr) {
        // Nothing that is read.
        const bool own = place < entry.data_begin || place >= entry.data_end;
        classes.insert(own ? "HDF5's own bytes" : "belongs to nothing");
        EXPECT_THAT(found[0].message, HasSubstr(own ? "HDF5's own bytes" : "belongs to nothing"));
        if (bit % 8 == 0) {
          EXPECT_EQ(read(reader, "raw") + read(reader, "zstd"), "");
        }
      } else {
        const std::string& name = owner.tensor->name;
        classes.insert(name);
        const Box box = chunk_box(owner.piece, owner.chunk);
        EXPECT_EQ(found[0].tensor, name);
        EXPECT_EQ(found[0].chunk, owner.piece.first_chunk + owner.chunk);
        EXPECT_EQ(found[0].box, box);
        const std::string which = "tensor \"" + name + "\" chunk " +
                                  std::to_string(found[0].chunk) + " " + to_string(box);
        EXPECT_THAT(found[0].message, HasSubstr(which));
        EXPECT_EQ(read(reader, name), found[0].message);
        if (bit % 8 == 0) {
          EXPECT_EQ(read(reader, name == "raw" ? "zstd" : "raw"), "");
        }
      }
      bytes[place] ^= static_cast<std::byte>(1u << bit % 8);
      if (HasFailure()) return;
    }
  }
  EXPECT_EQ(classes.size(), 8u) << "a byte of each class was met";
}

TEST_F(Integrity, EveryBitOfManifestAndIndexIsFound) {
  files_[detail::kIndexName] = made_.index;
  for (const char* name : {detail::kManifestName, detail::kIndexName}) {
    for (std::size_t bit = 0; bit < files_[name].size() * 8; ++bit) {
      SCOPED_TRACE(testing::Message() << name << " bit " << bit);
      std::byte& byte = files_[name][bit / 8];
      byte ^= static_cast<std::byte>(1u << bit % 8);
      const VerifyReport report = verify_checkpoint(path_, options());
      ASSERT_EQ(report.damage.size(), 1u);
      EXPECT_EQ(report.damage[0].file, name);
      EXPECT_THAT(report.damage[0].message, HasSubstr(path_of(name)));
      if (name == detail::kManifestName) {
        EXPECT_EQ(message_of(ErrorCode::corrupt, [&] { open(); }), report.damage[0].message);
      }
      byte ^= static_cast<std::byte>(1u << bit % 8);
    }
  }
}

TEST_F(Integrity, FilesCutOffAfterAnyByteAreRefused) {
  for (auto& [name, bytes] : files_) {
    if (name == detail::kIndexName) continue;
    const std::vector<std::byte> good = bytes;
    for (std::size_t size = 0; size < good.size(); ++size) {
      SCOPED_TRACE(testing::Message() << name << " after " << size);
      bytes.resize(size);
      expect_refused(name, name == detail::kManifestName
                               ? "it does not end in its checksum"
                               : "it has " + std::to_string(size) + " bytes, needed are");
      bytes = good;
      if (HasFailure()) return;
    }
  }
  for (std::size_t size = 0; size < made_.index.size(); ++size) {
    files_[detail::kIndexName].resize(size);
    const VerifyReport report = verify_checkpoint(path_, options());
    ASSERT_EQ(report.damage.size(), 1u);
    EXPECT_THAT(
        report.damage[0].message,
        AllOf(HasSubstr("index.h5"), HasSubstr("it has " + std::to_string(size) + " bytes")));
  }
}

TEST_F(Integrity, ShardFilesThatChangedPlacesAreRefused) {
  ASSERT_EQ(files_[name_of(0)].size(), files_[name_of(1)].size()) << "the size tells nothing";
  std::swap(files_[name_of(0)], files_[name_of(1)]);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { open(); }),
              HasSubstr("read description of " + path_of(name_of(0))));
  std::set<std::string> damaged;
  for (const Damage& found : damage()) damaged.insert(found.file);
  EXPECT_EQ(damaged, (std::set{name_of(0), name_of(1)}));
}

TEST_F(Integrity, AShardFileOfAnotherCheckpointIsRefused) {
  const HandMadeCheckpoint other = made(2);
  for (std::size_t f = 0; f < 2; ++f) {
    const std::vector<std::byte> own = files_[name_of(f)];
    files_[name_of(f)] = other.files[f].bytes;
    ASSERT_EQ(files_[name_of(f)].size(), own.size()) << "the size tells nothing";
    expect_refused(name_of(f), "read description of ");
    // With its tables it is refused chunk by chunk: all but the tables is the other's.
    const FileEntry& entry = made_.manifest.files[f];
    const std::size_t chunks = made_.files[f].records.size();
    const auto give_back = [&](std::uint64_t address, std::size_t size) {
      const auto at = static_cast<std::ptrdiff_t>(address);
      std::copy_n(own.begin() + at, size, files_[name_of(f)].begin() + at);
    };
    give_back(entry.table_address, chunks * sizeof(ChunkRecord));
    give_back(entry.decoded_address, chunks * sizeof(std::uint64_t));
    give_back(entry.data_end - detail::kDescriptionBytes, detail::kDescriptionBytes);
    EXPECT_EQ(damage().size(), chunks);
    files_[name_of(f)] = own;
  }
  EXPECT_TRUE(damage().empty());
}

// A link may lead out of the checkpoint, to a file that changes when nobody thinks of it.
TEST(IntegrityOfLinks, NoFileOfACheckpointMayBeOne) {
  const TempDir dir;
  const fs::path path = made().write(dir.path());
  const std::size_t before = verify_checkpoint(path).damage.size();
  for (const char* name :
       {"manifest.json", "index.h5", "shards-00000-of-00002.h5", "shards-00001-of-00002.h5"}) {
    SCOPED_TRACE(name);
    fs::rename(path / name, dir / name);
    fs::create_symlink(dir / name, path / name);
    const VerifyReport report = verify_checkpoint(path);
    EXPECT_TRUE(std::any_of(report.damage.begin(), report.damage.end(), [&](const Damage& found) {
      return found.file == name && found.message.find("a link, not a file") != std::string::npos;
    }));
    if (name != std::string("index.h5")) {
      EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { CheckpointReader reader(path); }),
                  AllOf(HasSubstr((path / name).string()), HasSubstr("a link, not a file")));
    }
    fs::remove(path / name);
    fs::rename(dir / name, path / name);
  }
  EXPECT_EQ(verify_checkpoint(path).damage.size(), before);
}

}  // namespace
}  // namespace shardwise
