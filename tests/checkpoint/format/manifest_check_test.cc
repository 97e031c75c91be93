#include "shardwise/checkpoint/detail/format/manifest_check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "testing/change_piece.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"

namespace shardwise::detail {
namespace {

/// Tensors "a" (f32 [4, 4] in two pieces of two chunks) and "b" (u8 [3], one piece).
Manifest valid_manifest() {
  return HandMadeCheckpoint({{.name = "a",
                              .shape = {4, 4},
                              .pieces = {Box({0, 0}, {4, 2}), Box({0, 2}, {4, 4})},
                              .data = counting_values(DType::f32, {4, 4}),
                              .chunk = {2, 2}},
                             {.name = "b",
                              .dtype = DType::u8,
                              .shape = {3},
                              .pieces = {Box({0}, {3})},
                              .data = counting_values(DType::u8, {3})}})
      .manifest;
}

/// As readers do once the files have been described.
void check_manifest(const Manifest& manifest) {
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorEntry& tensor = manifest.tensors[t];
    check_tensor(tensor, static_cast<std::int64_t>(t), manifest.writers.num_writers());
    for (const PieceEntry& piece : tensor.pieces) {
      const std::string problem = piece_problem(piece, tensor);
      if (!problem.empty()) throw Error(ErrorCode::corrupt, problem);
    }
  }
  check_files(manifest.files);
  check_names(manifest.tensors, manifest.files);
}

TEST(ManifestCheck, PassesWhatAWriterMakes) {
  check_manifest(valid_manifest());
  check_manifest({});
}

// Faults that no JSON can have, or that a writer would make; manifest_parse_test.cc has the others.
TEST(ManifestCheck, RefusesWhatAWriterMustNotMake) {
  const struct {
    const char* name;
    std::function<void(Manifest&)> change;
    const char* message;
  } cases[] = {
      {"unsorted", [](Manifest& m) { std::swap(m.tensors[0].name, m.tensors[1].name); },
       "tensor \"a\" follows \"b\": needed are sorted, distinct names"},
      {"no name", [](Manifest& m) { m.tensors[1].name.clear(); }, "tensor 1: its name is empty"},
      {"not UTF-8", [](Manifest& m) { m.tensors[1].name = "\xff"; }, "its name is not UTF-8"},
      {"negative begin",
       [](Manifest& m) {
         m.tensors[0].listed[0].box = Box({-1, 0}, {4, 2});
       },
       "tensor \"a\": box [-1:4, 0:2] leaves the tensor's shape [4, 4]"},
      {"negative begin of a piece",
       [](Manifest& m) {
         change_piece(m.tensors[0], 0, [](PieceEntry& p) { p.box = Box({-1, 0}, {4, 2}); });
       },
       "box [-1:4, 0:2] leaves the tensor's shape [4, 4]"},
      {"large chunk",
       [](Manifest& m) {
         change_piece(m.tensors[0], 1, [](PieceEntry& p) { p.box = Box({0, 3}, {4, 4}); });
       },
       "chunk [2, 2] is larger than the piece"},
      {"a missing piece", [](Manifest& m) { m.tensors[0].listed.pop_back(); },
       "tensor \"a\": cover the tensor: element [0, 2]"},
      {"a gap",
       [](Manifest& m) {
         m.tensors[0].listed[1].box = Box({0, 3}, {4, 4});
       },
       "tensor \"a\": cover the tensor: element [0, 2]"},
      {"contiguous in chunks",
       [](Manifest& m) {
         change_piece(m.tensors[0], 0, [](PieceEntry& p) { p.layout = Layout::contiguous; });
       },
       "it is contiguous and has the extents [4, 2], but its chunk is [2, 2]"},
      {"contiguous and compressed",
       [](Manifest& m) {
         change_piece(m.tensors[1], 0, [](PieceEntry& p) { p.codec = StoredCodec::zstd; });
       },
       "it is contiguous, but its codec is zstd"},
      {"more in a chunk than a decoder must hold",
       [](Manifest& m) {
         m.tensors[1].shape = {1 << 27};
         m.tensors[1].listed[0].box = Box({0}, {1 << 27});
         change_piece(m.tensors[1], 0, [](PieceEntry& p) {
           p.box = Box({0}, {1 << 27});
           p.chunk = {1 << 27};
         });
       },
       "a chunk has 134217728 bytes, needed is at most 67108864"},
      {"empty chunk",
       [](Manifest& m) { change_piece(m.tensors[0], 0, [](PieceEntry& p) {
                           p.chunk = {2, 0};
                         }); },
       "chunk [2, 0] is empty"},
      {"negative writer", [](Manifest& m) { m.tensors[1].listed[0].writer = -1; },
       "tensor \"b\": piece [0:3] has writer -1, needed is 0 to 0"},
      {"a file twice", [](Manifest& m) { m.files.push_back(m.files[0]); },
       "file \"shards-00000-of-00001.h5\" comes twice"},
      {"table outside", [](Manifest& m) { m.files[0].table_address = m.files[0].data_end; },
       "file 0: the 5 records of its table"},
      {"negative chunks", [](Manifest& m) { m.files[0].chunks = -1; }, "file 0: the -1 records"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    Manifest bad = valid_manifest();
    c.change(bad);
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check_manifest(bad); }),
                testing::HasSubstr(c.message));
  }
}

TEST(FileEntry, ProblemsAreNamed) {
  const FileEntry file{.name = "shards.h5",
                       .bytes = 500,
                       .data_begin = 100,
                       .data_end = 400,
                       .table_address = 200,
                       .chunks = 6,
                       .decoded_address = 400};
  EXPECT_EQ(file_problem(file), "");
  const auto problem_with = [file](auto change) {
    FileEntry changed = file;
    change(changed);
    return file_problem(changed);
  };
  for (const std::string& name :
       {std::string("a/b"), std::string("../shards.h5"), std::string(".."), std::string("."),
        std::string(), std::string(kManifestName), std::string(kIndexName)}) {
    EXPECT_EQ(problem_with([&](FileEntry& f) { f.name = name; }),
              fmt::format("\"{}\" cannot be the name of a shard file", name));
  }
  EXPECT_THAT(problem_with([](FileEntry& f) { f.name = std::string("a\0", 2); }),
              testing::HasSubstr("cannot be the name"));
  EXPECT_EQ(problem_with([](FileEntry& f) { f.decoded_address = 399; }),
            "its 6 decoded hashes, at 399, are not after the data, in [400, 500)");
  EXPECT_EQ(problem_with([](FileEntry& f) { f.decoded_address = 453; }),
            "its 6 decoded hashes, at 453, are not after the data, in [400, 500)");
  EXPECT_EQ(problem_with([](FileEntry& f) { f.data_begin = 401; }),
            "\"data\" begins at 401 and ends at 400");
  EXPECT_EQ(problem_with([](FileEntry& f) { f.bytes = 399; }),
            "\"data\" is [100, 400), but the file has 399 bytes");
  const auto table_problem = [](std::int64_t chunks, std::uint64_t address) {
    return fmt::format("the {} records of its table, at {}, are not inside the data, [100, 400)",
                       chunks, address);
  };
  EXPECT_EQ(problem_with([](FileEntry& f) { f.chunks = 7; }), table_problem(7, 200));
  EXPECT_EQ(problem_with([](FileEntry& f) { f.chunks = -1; }), table_problem(-1, 200));
  EXPECT_EQ(problem_with([](FileEntry& f) { f.chunks = INT64_MAX; }),
            fmt::format("its table has {} chunks, needed is at most 33554432", INT64_MAX));
  EXPECT_EQ(problem_with([](FileEntry& f) { f.table_address = 99; }), table_problem(6, 99));
  EXPECT_EQ(problem_with([](FileEntry& f) { f.table_address = 401; }), table_problem(6, 401));
}

}  // namespace
}  // namespace shardwise::detail
