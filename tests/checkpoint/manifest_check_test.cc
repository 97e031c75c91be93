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

/// As the parser does, of a manifest of version 1.
void check_manifest(const Manifest& manifest) {
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    check_listed_tensor(manifest.tensors[t], static_cast<std::int64_t>(t));
  }
  check_files(manifest.files, manifest.has_decoded_hashes());
  check_lists(manifest.tensors, manifest.files);
}

TEST(ManifestCheck, PassesWhatAWriterMakes) {
  check_manifest(valid_manifest());
  check_manifest({});
}

// What no JSON can say, or what a writer would get wrong; manifest_parse_test.cc has the others.
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
      {"no index", [](Manifest& m) { m.tensors[0].index.clear(); },
       "tensor \"a\": \"index\" is not the path"},
      {"negative begin",
       [](Manifest& m) {
         change_piece(m.tensors[0], 0, [](PieceEntry& p) { p.box = Box({-1, 0}, {4, 2}); });
       },
       "tensor \"a\" piece 0: box [-1:4, 0:2] leaves the tensor's shape [4, 4]"},
      {"a gap",
       [](Manifest& m) {
         change_piece(m.tensors[0], 1, [](PieceEntry& p) { p.box = Box({0, 3}, {4, 4}); });
       },
       "chunk [2, 2] is larger than the piece"},
      {"a missing piece", [](Manifest& m) { m.tensors[0].pieces.pop_back(); },
       "tensor \"a\": cover the tensor: element [0, 2]"},
      {"empty chunk",
       [](Manifest& m) { change_piece(m.tensors[0], 0, [](PieceEntry& p) {
                           p.chunk = {2, 0};
                         }); },
       "piece 0: chunk [2, 0] is empty"},
      {"negative file",
       [](Manifest& m) { change_piece(m.tensors[1], 0, [](PieceEntry& p) { p.file = -1; }); },
       "\"file\" is -1, there are 1"},
      {"records twice",
       [](Manifest& m) { change_piece(m.tensors[0], 1, [](PieceEntry& p) { p.first_chunk = 0; }); },
       "its 2 chunks begin at record 0 of 5"},
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
                       .chunks = 6};
  EXPECT_EQ(file_problem(file, false), "");
  const auto problem_with = [file](auto change) {
    FileEntry changed = file;
    change(changed);
    return file_problem(changed, false);
  };
  EXPECT_EQ(problem_with([](FileEntry& f) { f.name = "a/b"; }),
            "\"a/b\" cannot be the name of a shard file");
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

// Before anything is written, addresses and sizes are not known.
TEST(ManifestCheck, ListsNeedNoAddresses) {
  Manifest planned = valid_manifest();
  planned.files = {{.name = planned.files[0].name, .chunks = 5}};
  check_lists(planned.tensors, planned.files);
  planned.files[0].chunks = 6;
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check_lists(planned.tensors, planned.files); }),
              testing::HasSubstr("5 chunk records belong to pieces, the table has 6"));
}

}  // namespace
}  // namespace shardwise::detail
