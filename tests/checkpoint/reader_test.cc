#include "shardwise/checkpoint/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "shardwise/storage/hash.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/random_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using detail::StoredCodec;
using testing::AllOf;
using testing::HasSubstr;

/// "w" f32 [64, 64]: 4 pieces of 16 rows, each in 2 x 4 chunks of [8, 16]; "b" u8 [5], contiguous.
HandMadeTensor w(StoredCodec codec = StoredCodec::none) {
  HandMadeTensor tensor{.name = "w",
                        .shape = {64, 64},
                        .data = scattered_values(DType::f32, {64, 64}),
                        .chunk = {8, 16},
                        .codec = codec};
  for (std::int64_t row = 0; row < 64; row += 16) {
    tensor.pieces.push_back(Box({row, 0}, {row + 16, 64}));
  }
  return tensor;
}

HandMadeTensor b() {
  return {.name = "b",
          .dtype = DType::u8,
          .shape = {5},
          .pieces = {Box({0}, {5})},
          .data = counting_values(DType::u8, {5})};
}

class Reader : public testing::Test {
 protected:
  CheckpointReader open(ReadOptions options = {}) { return CheckpointReader(path_, options); }

  TempDir dir_;
  std::filesystem::path path_ = HandMadeCheckpoint({w(), b()}, 2).write(dir_.path());
};

TEST_F(Reader, SaysWhatTheCheckpointHolds) {
  const CheckpointReader reader = open();
  EXPECT_EQ(reader.directory(), path_);
  EXPECT_EQ(reader.step(), 100);
  EXPECT_EQ(reader.user_json(), "{}");
  ASSERT_EQ(reader.tensors().size(), 2u);
  EXPECT_EQ(reader.tensors()[0].name, "b");
  const TensorInfo& info = reader.tensor("w");
  EXPECT_EQ(info.dtype, DType::f32);
  EXPECT_EQ(info.shape, (Shape{64, 64}));
  EXPECT_EQ(info.pieces, 4);
  EXPECT_EQ(info.chunks, 32);
  EXPECT_EQ(info.logical_bytes, 16384u);
  EXPECT_EQ(info.stored_bytes, 16384u);
}

TEST_F(Reader, TellsTheChunksOfATensor) {
  const CheckpointReader reader = open();
  const std::vector<StoredChunk> chunks = reader.chunks(1);
  EXPECT_EQ(chunks.size(), 32u);
  std::int64_t elements = 0;
  for (const StoredChunk& chunk : chunks) {
    elements += chunk.box.num_elements();
    EXPECT_EQ(chunk.extents, chunk.box.shape());
    std::vector<std::byte> bytes(num_bytes(chunk.extents, 4));
    reader.read(1, chunk.box, bytes);
    EXPECT_EQ(chunk.hash, hash64(bytes.data(), bytes.size()));
  }
  EXPECT_EQ(elements, 64 * 64);
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { reader.chunks(2); }),
              HasSubstr("there is no tensor number 2, there are 2"));
}

TEST_F(Reader, SuggestsNamesForOneThatIsNotThere) {
  const CheckpointReader reader = open();
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { reader.tensor("v"); }, [&] { reader.read("v", Box({0}, {0}), {}); },
           [&] {
             Devices devices(1);
             reader.restore(devices, "v", Sharding::replicated(Mesh::line(1), 1));
           }}) {
    EXPECT_THAT(message_of(ErrorCode::no_such_name, call),
                AllOf(HasSubstr("there is no tensor \"v\""), HasSubstr("nearest: \"b\", \"w\""),
                      HasSubstr(path_.string())));
  }
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { reader.tensor("something else"); }),
              testing::Not(HasSubstr("nearest")));
}

TEST_F(Reader, ReadsOnlyTheChunksThatItNeeds) {
  const CheckpointReader reader = open();
  EXPECT_EQ(reader.stats().chunks, 0);
  std::vector<std::byte> out(4);
  reader.read("w", Box({17, 20}, {18, 21}), out);
  EXPECT_EQ(out, elements_of(w(), Box({17, 20}, {18, 21})));
  EXPECT_EQ(reader.stats().chunks, 1);
  EXPECT_EQ(reader.stats().stored_bytes, 512u);
  EXPECT_EQ(reader.stats().decoded_bytes, 512u);

  // A column of 16 through 4 pieces of 2 chunks each.
  out.resize(64 * 16 * 4);
  reader.read("w", Box({0, 16}, {64, 32}), out);
  EXPECT_EQ(out, elements_of(w(), Box({0, 16}, {64, 32})));
  EXPECT_EQ(reader.stats().chunks, 1 + 8);

  reader.read("w", Box({5, 5}, {5, 9}), {});
  EXPECT_EQ(reader.stats().chunks, 1 + 8);
}

TEST_F(Reader, ReadsEachChunkOnceHoweverManyDevicesNeedIt) {
  const CheckpointReader reader = open();
  Devices devices(8, {.threads = 2});
  const Mesh mesh = Mesh::parse("a=4,b=2");
  const TensorRequest requests[] = {
      {"w", {DType::f32, {64, 64}, Sharding(mesh, PartitionSpec::parse("-,-"))}},
      {"w", {DType::f32, {64, 64}, Sharding(mesh, PartitionSpec::parse("b,a"))}},
  };
  const auto arrays = reader.restore(devices, requests);
  EXPECT_EQ(reader.stats().chunks, 32);
  EXPECT_EQ(reader.stats().stored_bytes, 16384u);
  for (const ShardedArray& array : arrays) EXPECT_EQ(array.to_host(), w().data);
  for (std::int64_t p = 0; p < 8; ++p) {
    EXPECT_EQ(std::memcmp(arrays[0].shard(p).data, w().data.data(), 16384), 0) << p;
  }
}

TEST_F(Reader, TakesDeviceMemoryInTheTensorsName) {
  const CheckpointReader reader = open();
  Devices devices(2, {.capacity_bytes = 10000, .threads = 1});
  const Sharding rows(Mesh::line(2, "x"), PartitionSpec::parse("x,-"));
  {
    const ShardedArray array = reader.restore(devices, "w", rows);
    EXPECT_EQ(devices.at(1).memory().in_use_by_kind[static_cast<std::size_t>(MemoryKind::array)],
              8192u);
    EXPECT_THAT(
        message_of(ErrorCode::resource_exhausted, [&] { reader.restore(devices, "w", rows); }),
        HasSubstr("w"));
  }
  EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
  EXPECT_EQ(reader.stats().chunks, 32) << "nothing is read where the memory does not suffice";
}

TEST_F(Reader, ListsAllMismatchesInOneErrorBeforeItReads) {
  const CheckpointReader reader = open();
  Devices devices(2);
  const Sharding flat = Sharding::replicated(Mesh::line(2), 1);
  const Sharding square = Sharding::replicated(Mesh::line(2), 2);
  const Sharding strict(Mesh::line(2), PartitionSpec::parse("devices"), UnevenPolicy::strict());
  const TensorRequest requests[] = {
      {"w", {DType::f16, {64, 64}, square}}, {"w", {DType::f32, {64, 65}, square}},
      {"w", {DType::f32, {64, 64}, flat}},   {"ww", {DType::f32, {64, 64}, square}},
      {"b", {DType::u8, {5}, flat}},         {"b", {DType::u8, {5}, strict}},
  };
  const std::string message =
      message_of(ErrorCode::invalid_argument, [&] { reader.restore(devices, requests); });
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("5 of 6 requests"),
            HasSubstr("tensor \"w\" is f32 [64, 64], wanted is f16 [64, 64]"),
            HasSubstr("wanted is f32 [64, 65]"), HasSubstr("tensor \"w\" has 2 dims"),
            HasSubstr("there is no tensor \"ww\", nearest: \"w\""),
            HasSubstr("tensor \"b\" cannot be cut as is wanted: cut by the spec \"devices\": "
                      "dim 0 of shape [5] has extent 5 over axes \"devices\", 2 ways; needed "
                      "under the policy strict is a multiple of 2, as 4 or 6")));
  EXPECT_EQ(reader.stats().chunks, 0);
  EXPECT_EQ(devices.at(0).memory().peak_bytes, 0u);
}

TEST_F(Reader, AnExactRestoreAsksForAllThatIsThere) {
  const CheckpointReader reader = open();
  Devices devices(2);
  const std::vector<TensorRequest> all = {
      {"w", {DType::f32, {64, 64}, Sharding::replicated(Mesh::line(2), 2)}},
      {"b", {DType::u8, {5}, Sharding::replicated(Mesh::line(2), 1)}}};
  const std::span<const TensorRequest> some(all.data(), 1);
  const std::string begin = "restore of checkpoint " + path_.string() + ": ";
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] { reader.restore(devices, some, {.exact = true}); }),
            begin + "1 of 2 tensors that are there are not asked for: \"b\"");
  const TensorRequest none{"x", all[0].spec};
  const std::string both = message_of(ErrorCode::invalid_argument, [&] {
    reader.restore(devices, {&none, 1}, {.exact = true});
  });
  EXPECT_THAT(both, HasSubstr("1 of 1 requests do not fit: there is no tensor \"x\""));
  EXPECT_THAT(both, HasSubstr("; 2 of 2 tensors that are there are not asked for: \"b\", \"w\""));
  EXPECT_EQ(reader.stats().chunks, 0);
  EXPECT_EQ(reader.restore(devices, some).size(), 1u);
  EXPECT_EQ(reader.restore(devices, all, {.exact = true}).size(), 2u);
}

TEST_F(Reader, AJobMayHaveMoreThanTheCheckpoint) {
  const CheckpointReader reader = open();
  Devices devices(2);
  const auto on_both = [](DType dtype, const Shape& shape) {
    return ArraySpec{dtype, shape, Sharding::replicated(Mesh::line(2), shape.size())};
  };
  const std::vector<TensorRequest> more = {{"new", on_both(DType::f32, {3})},
                                           {"w", on_both(DType::f32, {64, 64})},
                                           {"newer", on_both(DType::u8, {2})}};
  std::vector<std::string> made;
  RestoreOptions options{.if_missing = [&](const TensorRequest& request) {
    made.push_back(request.name);
    const std::vector<std::byte> ones(num_bytes(request.spec.shape, size_bytes(request.spec.dtype)),
                                      std::byte{1});
    return ShardedArray::from_host(devices, request.spec, ones);
  }};
  const std::vector<ShardedArray> arrays = reader.restore(devices, more, options);
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_THAT(made, testing::ElementsAre("new", "newer"));
  EXPECT_EQ(arrays[0].to_host(), std::vector<std::byte>(12, std::byte{1}));
  EXPECT_EQ(arrays[1].to_host(), reader.restore(devices, "w", more[1].spec.sharding).to_host());
  EXPECT_EQ(arrays[2].to_host(), std::vector<std::byte>(2, std::byte{1}));

  // `exact` needs all stored tensors to be asked for; those that are must fit all the same.
  options.exact = true;
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { reader.restore(devices, more, options); }),
      HasSubstr("1 of 2 tensors that are there are not asked for: \"b\""));
  const TensorRequest other{"w", on_both(DType::f16, {64, 64})};
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           reader.restore(devices, {&other, 1}, options);
                         }),
              HasSubstr("tensor \"w\" is f32 [64, 64], wanted is f16 [64, 64]"));
}

TEST_F(Reader, RefusesMoreDevicesThanThereAreBeforeItTakesMemory) {
  const CheckpointReader reader = open();
  Devices devices(8);
  const Sharding huge = Sharding::replicated(Mesh::line(std::int64_t{1} << 62), 2);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { reader.restore(devices, "w", huge); }),
              HasSubstr("tensor \"w\" is wanted on 4611686018427387904 devices, there are 8"));
}

TEST_F(Reader, RefusesADeviceThatIsNotThereBeforeItTakesMemory) {
  const CheckpointReader reader = open();
  Devices devices(8);
  const Sharding rows(Mesh({{"x", 2}}, {3, 9}), PartitionSpec::parse("x,-"));
  const TensorRequest requests[] = {{"b", {DType::u8, {5}, Sharding::replicated(Mesh::line(8), 1)}},
                                    {"w", {DType::f32, {64, 64}, rows}}};
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { reader.restore(devices, requests); }),
              HasSubstr("device 9 is not among the 8 devices"));
  EXPECT_EQ(devices.at(3).memory().peak_bytes, 0u);
}

// Neighbours that place alike, or have an earlier one's spec, are not mixed up.
TEST_F(Reader, RestoresEachArrayOfOneCallByItsOwnSpec) {
  const CheckpointReader reader = open();
  Devices devices(8);
  const auto on = [](const char* mesh, const char* spec) {
    return ArraySpec{DType::f32, {64, 64}, Sharding(Mesh::parse(mesh), PartitionSpec::parse(spec))};
  };
  const ArraySpec small{DType::u8, {5}, Sharding::replicated(Mesh::line(8), 1)};
  const ArraySpec specs[] = {on("x=2", "-,-"),
                             on("x=2@1,0", "-,-"),
                             small,
                             on("x=2", "-,x"),
                             on("x=2@1,0", "-,x"),
                             small,
                             on("x=2", "x,-"),
                             on("a=4,b=2", "b,a"),
                             on("x=2", "-,-"),
                             small,
                             on("x=4@3,1,2,0", "x,-")};
  std::vector<TensorRequest> requests;
  for (const ArraySpec& spec : specs)
    requests.push_back({spec.dtype == DType::u8 ? "b" : "w", spec});
  const std::vector<ShardedArray> arrays = reader.restore(devices, requests);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    SCOPED_TRACE(r);
    const HandMadeTensor made = requests[r].name == "b" ? b() : w();
    const ArraySpec& spec = requests[r].spec;
    for (std::int64_t position = 0; position < spec.sharding.mesh().size(); ++position) {
      EXPECT_EQ(arrays[r].buffer(position)->device(), spec.sharding.mesh().device_at(position));
      const ConstBoxView held = arrays[r].shard(position);
      const std::vector<std::byte> expected = elements_of(made, held.box);
      EXPECT_EQ(std::memcmp(held.data, expected.data(), expected.size()), 0);
    }
  }
}

TEST_F(Reader, ChecksBoxAndOutput) {
  const CheckpointReader reader = open();
  std::vector<std::byte> out(16);
  const auto refused = [&](const Box& box, std::size_t bytes) {
    out.resize(bytes);
    return message_of(ErrorCode::invalid_argument, [&] { reader.read("w", box, out); });
  };
  EXPECT_THAT(refused(Box({0, 0}, {1, 65}), 260), HasSubstr("leaves tensor \"w\""));
  EXPECT_THAT(refused(Box({-1, 0}, {1, 1}), 8), HasSubstr("box [-1:1, 0:1]"));
  EXPECT_THAT(refused(Box({0}, {1}), 4), HasSubstr("leaves tensor \"w\" of shape [64, 64]"));
  EXPECT_THAT(refused(Box({0, 0}, {1, 2}), 9), HasSubstr("has 8 bytes, the output 9"));
}

TEST_F(Reader, ReportsProgressUpToTheTotal) {
  std::vector<Progress> seen;
  const CheckpointReader reader = open(
      {.memory_budget_bytes = 4096, .progress = [&](const Progress& p) { seen.push_back(p); }});
  std::vector<std::byte> out(16384);
  reader.read("w", Box::whole({64, 64}), out);
  ASSERT_FALSE(seen.empty());
  for (std::size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].total_bytes, 16384u);
    EXPECT_GE(seen[i].done_bytes, i == 0 ? 0 : seen[i - 1].done_bytes);
  }
  EXPECT_EQ(seen.back().done_bytes, 16384u);
}

TEST_F(Reader, EndsWithWhatProgressThrows) {
  struct Enough {};
  const CheckpointReader reader =
      open({.memory_budget_bytes = 4096, .progress = [](const Progress&) { throw Enough(); }});
  std::vector<std::byte> out(16384);
  EXPECT_THROW(reader.read("w", Box::whole({64, 64}), out), Enough);
}

TEST_F(Reader, ServesSeveralThreads) {
  const CheckpointReader reader = open({.threads = 2});
  std::vector<std::jthread> threads;
  std::atomic<int> right{0};
  for (std::int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; i < 20; ++i) {
        const Box box({(t * 13 + i) % 60, i}, {(t * 13 + i) % 60 + 4, 40 + i});
        const auto expected = elements_of(w(), box);
        std::vector<std::byte> out(expected.size());
        reader.read("w", box, out);
        if (out == expected) ++right;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(right, 80);
}

// Whichever operation of the disk fails, opening and restoring end in that error or in the truth.
TEST_F(Reader, PassesOnEveryFailureOfTheDisk) {
  Devices devices(2, {.threads = 1});
  const Sharding columns(Mesh::line(2, "x"), PartitionSpec::parse("-,x"));
  const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
  const auto restore = [&] {
    const CheckpointReader reader = open({.pin = false, .file_system = files});
    EXPECT_EQ(reader.restore(devices, "w", columns).to_host(), w().data);
  };
  restore();
  const std::int64_t operations = files->operations();
  ASSERT_GT(operations, 8);
  std::int64_t failed = 0;
  for (std::int64_t at = 1; at <= operations; ++at) {
    SCOPED_TRACE(at);
    files->restart(at);
    try {
      restore();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
      ++failed;
    }
    EXPECT_EQ(devices.at(0).memory().in_use_bytes, 0u);
  }
  EXPECT_GE(failed, operations - 3) << "but closing may fail without harm";
}

TEST_F(Reader, StaysUsableAfterAnError) {
  const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
  const CheckpointReader reader = open({.file_system = files});
  std::vector<std::byte> out(16384);
  files->restart(1);
  EXPECT_THAT(message_of(ErrorCode::io,
                         [&] {
                           reader.read("w", Box::whole({64, 64}), out);
                         }),
              AllOf(HasSubstr("tensor \"w\" chunk"), HasSubstr(path_.string())));
  EXPECT_EQ(reader.stats().chunks, 0) << "of calls that did not fail";
  files->restart(0);
  reader.read("w", Box::whole({64, 64}), out);
  EXPECT_EQ(out, w().data);
}

TEST_F(Reader, MovesWithItsState) {
  CheckpointReader reader = open();
  CheckpointReader other = std::move(reader);
  reader = std::move(other);
  std::vector<std::byte> out(5);
  reader.read("b", Box::whole({5}), out);
  EXPECT_EQ(out, b().data);
}

TEST(ReaderFormats, ReadsEveryDTypeInBothCodecsAndLayouts) {
  Devices devices(2, {.threads = 1});
  std::vector<HandMadeTensor> tensors;
  for (const DType dtype : all_dtypes()) {
    for (const bool compress : {false, true}) {
      for (const bool chunked : {false, true}) {
        if (compress && !chunked) continue;
        HandMadeTensor tensor{.name = std::string(name(dtype)) + (compress ? " zstd" : " none") +
                                      (chunked ? " chunked" : " contiguous"),
                              .dtype = dtype,
                              .shape = {300, 7}};
        tensor.pieces = {Box({0, 0}, {299, 7}), Box({299, 0}, {300, 7})};
        // Counting shrinks and takes the decoder's way; the last piece is too small to.
        tensor.data =
            compress ? counting_values(dtype, tensor.shape) : scattered_values(dtype, tensor.shape);
        if (chunked) tensor.chunk = {250, 4};
        if (compress) tensor.codec = StoredCodec::zstd;
        tensors.push_back(std::move(tensor));
      }
    }
  }
  const TempDir dir;
  const HandMadeCheckpoint made(tensors);
  const CheckpointReader reader(made.write(dir.path()));
  const Sharding cut(Mesh::line(2, "x"), PartitionSpec::parse("-,x"));
  for (const HandMadeTensor& tensor : tensors) {
    SCOPED_TRACE(tensor.name);
    EXPECT_EQ(reader.restore(devices, tensor.name, cut).to_host(), tensor.data);
  }
  EXPECT_LT(reader.tensor("f64 zstd chunked").stored_bytes,
            reader.tensor("f64 none chunked").stored_bytes / 2);
}

TEST(ReaderFormats, RestoresScalarsAndTensorsWithoutElements) {
  const HandMadeTensor scalar{.name = "s",
                              .dtype = DType::i64,
                              .pieces = {Box()},
                              .data = scattered_values(DType::i64, {})};
  const HandMadeTensor empty{.name = "e", .shape = {4, 0, 3}};
  const TempDir dir;
  const CheckpointReader reader(HandMadeCheckpoint({scalar, empty}, 1).write(dir.path()));
  Devices devices(3);
  EXPECT_EQ(reader.restore(devices, "s", Sharding::replicated(Mesh::line(3), 0)).to_host(),
            scalar.data);
  const Sharding cut(Mesh::line(3, "x"), PartitionSpec::parse("x,-,-"));
  const ShardedArray array = reader.restore(devices, "e", cut);
  EXPECT_EQ(array.shape(), (Shape{4, 0, 3}));
  EXPECT_TRUE(array.to_host().empty());
  EXPECT_EQ(reader.restore(devices, std::span<const TensorRequest>()).size(), 0u);
}

TEST(ReaderFormats, OpensACheckpointWithoutTensors) {
  const TempDir dir;
  const CheckpointReader reader(HandMadeCheckpoint({}, 1, 0).write(dir.path()));
  EXPECT_TRUE(reader.tensors().empty());
  EXPECT_EQ(reader.step(), 0);
  EXPECT_THROW(reader.tensor("w"), Error);
}

}  // namespace
}  // namespace shardwise
