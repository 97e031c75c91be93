#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <random>
#include <thread>

#include "loader/sources/hdf5_files.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/storage/detail/hdf5_reader.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Bytes hdf5_noise(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Bytes all(as_size(count));
  for (std::byte& byte : all) byte = static_cast<std::byte>(random() % 5);
  return all;
}

Bytes hdf5_row(const Bytes& data, std::int64_t record, std::size_t row) {
  const auto begin = data.begin() + static_cast<std::ptrdiff_t>(as_size(record) * row);
  return Bytes(begin, begin + static_cast<std::ptrdiff_t>(row));
}

struct LayoutCase {
  const char* name;
  WrittenDataset dataset;
  detail::Hdf5Layout::Kind kind;
};

std::vector<LayoutCase> layout_cases() {
  using Kind = detail::Hdf5Layout::Kind;
  const Shape shape{53, 9, 14};
  return {
      {"contiguous", {"x", DType::u16, shape}, Kind::contiguous},
      {"big-endian",
       {.name = "x", .dtype = DType::f32, .shape = shape, .big_endian = true},
       Kind::contiguous},
      {"whole rows", {"x", DType::u16, shape, {4, 9, 14}}, Kind::chunks},
      {"one row each", {"x", DType::i32, shape, {1, 9, 14}}, Kind::chunks},
      {"parts of rows", {"x", DType::u16, shape, {7, 4, 5}}, Kind::chunks},
      {"big-endian chunks",
       {.name = "x", .dtype = DType::i64, .shape = shape, .chunk = {7, 9, 5}, .big_endian = true},
       Kind::chunks},
      {"compressed", {"x", DType::u16, shape, {7, 4, 5}, 3}, Kind::library},
      {"compressed rows", {"x", DType::f64, shape, {5, 9, 14}, 3}, Kind::library},
      {"compressed, big-endian",
       {.name = "x",
        .dtype = DType::i16,
        .shape = shape,
        .chunk = {60, 9, 14},
        .deflate = 1,
        .big_endian = true},
       Kind::library},
      {"bool", {"x", DType::boolean, shape}, Kind::contiguous},
      {"half", {"x", DType::bf16, shape, {10, 9, 14}}, Kind::chunks},
      {"complex", {"x", DType::c64, shape}, Kind::contiguous},
  };
}

TEST(Hdf5Source, ReadsEveryLayoutKeptOrNot) {
  const TempDir dir;
  for (LayoutCase& c : layout_cases()) {
    SCOPED_TRACE(c.name);
    const DType dtype = c.dataset.dtype;
    if (!c.dataset.chunk.empty()) {  // no chunk of a fixed dataset may be larger than it
      c.dataset.chunk[0] = std::min<std::int64_t>(c.dataset.chunk[0], 53);
    }
    Bytes data =
        hdf5_noise(num_elements({53, 9, 14}) * static_cast<std::int64_t>(size_bytes(dtype)), 1);
    if (dtype == DType::boolean) {
      for (std::byte& byte : data) byte &= std::byte{1};
    }
    write_hdf5(dir / "x.h5", {c.dataset}, {data});
    EXPECT_EQ(detail::Hdf5Reader(dir / "x.h5", "x").layout().kind, c.kind);
    for (const std::size_t hold : {std::size_t{0}, kDefaultHoldBytes}) {
      SCOPED_TRACE(hold);
      const auto source =
          open_hdf5({dir / "x.h5"}, {.fields = {{"image", "/x"}}, .hold_bytes = hold});
      ASSERT_EQ(source->size(), 53);
      ASSERT_THAT(source->fields(), ElementsAre(Field{"image", dtype, {9, 14}}));
      for (std::int64_t record = 52; record >= 0; --record) {
        ASSERT_EQ(read_whole(*source, 0, record),
                  hdf5_row(data, record, num_bytes({9, 14}, size_bytes(dtype))));
      }
      expect_boxes_agree(*source, 100, 18);
    }
  }
}

TEST(Hdf5Source, ReadsFieldsOfSeveralFiles) {
  const TempDir dir;
  const Bytes images = hdf5_noise(30, 2), labels = hdf5_noise(40, 3);
  const std::vector<WrittenDataset> first{{"train/images", DType::u8, {3, 6}},
                                          {"train/labels", DType::i64, {3}, {2}, 4}};
  const std::vector<WrittenDataset> second{{"train/images", DType::u8, {2, 6}, {1, 2}},
                                           {"train/labels", DType::i64, {2}}};
  write_hdf5(dir / "a.h5", first, {first_of(images, 18), first_of(labels, 24)});
  write_hdf5(dir / "b.h5", second,
             {Bytes(images.begin() + 18, images.end()), Bytes(labels.begin() + 24, labels.end())});
  const auto source =
      open_hdf5({dir / "a.h5", dir / "b.h5"},
                {.fields = {{"image", "/train/images"}, {"label", "train/labels"}}});
  ASSERT_EQ(source->size(), 5);
  for (std::int64_t record = 0; record < 5; ++record) {
    EXPECT_EQ(read_whole(*source, 0, record), hdf5_row(images, record, 6));
    EXPECT_EQ(read_whole(*source, 1, record), hdf5_row(labels, record, 8));
  }
  expect_boxes_agree(*source, 50, 19);
}

TEST(Hdf5Source, TakesAllDatasetsOfTheRoot) {
  const TempDir dir;
  write_hdf5(dir / "x.h5",
             {{"y", DType::u8, {2}}, {"group/z", DType::u8, {7}}, {"a", DType::u16, {2, 1}}},
             {bytes({1, 2}), Bytes(7), bytes({3, 0, 4, 0})});
  const auto source = open_hdf5({dir / "x.h5"});
  EXPECT_THAT(source->fields(),
              ElementsAre(Field{"a", DType::u16, {1}}, Field{"y", DType::u8, {}}));
}

// Chunks never written read as zeros, and nothing is read at the wrong place.
TEST(Hdf5Source, ReadsWhatWasNeverWritten) {
  const TempDir dir;
  for (const Shape& chunk : {Shape{}, Shape{4, 3}}) {
    const Bytes data = hdf5_noise(12, 4);
    write_hdf5(dir / "x.h5",
               {{.name = "x", .dtype = DType::u8, .shape = {10, 3}, .chunk = chunk, .rows = 4},
                {.name = "y", .dtype = DType::u8, .shape = {10, 3}, .chunk = chunk, .rows = 0}},
               {data, {}});
    const auto source = open_hdf5({dir / "x.h5"});
    for (std::int64_t record = 0; record < 10; ++record) {
      EXPECT_EQ(read_whole(*source, 0, record), record < 4 ? hdf5_row(data, record, 3) : Bytes(3));
      EXPECT_EQ(read_whole(*source, 1, record), Bytes(3));
    }
  }
}

// More chunks than are asked for their place one by one; a file that does not begin with HDF5.
TEST(Hdf5Source, ReadsManyChunksAndBehindAUserBlock) {
  const TempDir dir;
  const Bytes data = hdf5_noise(15000, 5);
  write_hdf5(dir / "x.h5", {{"x", DType::u8, {5000, 3}, {1, 3}}}, {data});
  EXPECT_EQ(detail::Hdf5Reader(dir / "x.h5", "x").layout().kind, detail::Hdf5Layout::Kind::library);
  write_hdf5(dir / "u.h5", {{"x", DType::u8, {5000, 3}}, {"y", DType::u8, {5000, 3}, {50, 3}}},
             {data, data}, 512);
  const auto many = open_hdf5({dir / "x.h5"}), after = open_hdf5({dir / "u.h5"});
  for (std::int64_t record = 0; record < 5000; record += 7) {
    ASSERT_EQ(read_whole(*many, 0, record), hdf5_row(data, record, 3));
    ASSERT_EQ(read_whole(*after, 0, record), hdf5_row(data, record, 3));
    ASSERT_EQ(read_whole(*after, 1, record), hdf5_row(data, record, 3));
  }
}

TEST(Hdf5Source, IsReadByManyThreads) {
  const TempDir dir;
  const Bytes data = hdf5_noise(20000, 6);
  write_hdf5(dir / "x.h5",
             {{"a", DType::u8, {400, 50}, {16, 50}, 1}, {"b", DType::u8, {400, 50}, {16, 20}}},
             {data, data});
  for (const std::size_t hold : {std::size_t{0}, kDefaultHoldBytes}) {
    const auto source = open_hdf5({dir / "x.h5"}, {.hold_bytes = hold});
    std::atomic<int> wrong{0};
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        for (int i = 0; i < 300; ++i) {
          const auto record = static_cast<std::int64_t>(random() % 400);
          if (read_whole(*source, random() % 2, record) != hdf5_row(data, record, 50)) ++wrong;
        }
      });
    }
    threads.clear();
    EXPECT_EQ(wrong, 0);
  }
}

// A virtual dataset may name a pipe, whose opening would wait for ever.
TEST(Hdf5Source, RejectsDataThatIsInOtherFiles) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  {
    const detail::Hdf5Lock lock;
    const detail::H5File file(
        H5Fcreate((dir / "v.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), "create");
    const detail::H5Space space = detail::hdf5_space({10});
    const detail::H5Properties made(H5Pcreate(H5P_DATASET_CREATE), "list");
    detail::check_hdf5(
        H5Pset_virtual(made.get(), space.get(), (dir / "pipe").c_str(), "x", space.get()), "set");
    const detail::H5Dataset dataset(H5Dcreate2(file.get(), "x", H5T_IEEE_F32LE, space.get(),
                                               H5P_DEFAULT, made.get(), H5P_DEFAULT),
                                    "x");
  }
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] {
                           const auto source = open_hdf5({dir / "v.h5"}, {.fields = {{"f", "x"}}});
                           read_values<float>(*source, 0, 0);
                         }),
              HasSubstr("dataset \"x\": its elements are in other files"));
}

TEST(Hdf5Source, RejectsWhatIsNoArrayOfRecords) {
  const TempDir dir;
  write_hdf5(dir / "x.h5",
             {{"x", DType::u8, {4}}, {"y", DType::u8, {5}}, {"scalar", DType::u8, {}}},
             {Bytes(4), Bytes(5), Bytes(1)});
  {
    const detail::Hdf5Lock lock;
    const detail::H5File file(H5Fopen((dir / "x.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    const detail::H5Type text(H5Tcopy(H5T_C_S1), "type");
    H5Tset_size(text.get(), 5);
    const detail::H5Space space = detail::hdf5_space({3});
    const detail::H5Dataset made(H5Dcreate2(file.get(), "text", text.get(), space.get(),
                                            H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                                 "create");
  }
  const auto refused = [&](ErrorCode code, std::vector<Hdf5Field> fields) {
    return message_of(code, [&] { open_hdf5({dir / "x.h5"}, {.fields = fields}); });
  };
  EXPECT_THAT(refused(ErrorCode::not_found, {{"f", "/z"}}),
              AllOf(HasSubstr((dir / "x.h5").string()),
                    HasSubstr("there is no dataset \"/z\"; its root has \"scalar\", \"text\", "
                              "\"x\", \"y\"")));
  EXPECT_THAT(refused(ErrorCode::not_found, {{"f", "none/x"}}), HasSubstr("its root has"));
  EXPECT_THAT(refused(ErrorCode::not_found, {{"f", ""}}), HasSubstr("its root has"));
  EXPECT_THAT(refused(ErrorCode::corrupt, {{"f", "/"}}), HasSubstr("HDF5: not a dataset"));
  EXPECT_THAT(refused(ErrorCode::invalid_argument, {{"f", "x"}, {"g", "y"}}),
              HasSubstr("dataset \"y\" has 5 records, needed is 4 as \"x\" has"));
  EXPECT_THAT(refused(ErrorCode::invalid_argument, {{"f", "x"}, {"f", "x"}}),
              HasSubstr("asked for twice"));
  EXPECT_THAT(refused(ErrorCode::unsupported, {{"f", "scalar"}}), HasSubstr("is a scalar"));
  EXPECT_THAT(refused(ErrorCode::unsupported, {{"f", "text"}}),
              HasSubstr("dataset \"text\": its elements are no numbers"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { open_hdf5({}); }),
              HasSubstr("needed is at least one"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { open_hdf5({dir / "none.h5"}); }),
              HasSubstr("No such file"));
  write_file(dir / "no.h5", "no HDF5 at all");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { open_hdf5({dir / "no.h5"}); }),
              HasSubstr("no.h5"));
}

TEST(Hdf5Source, SaysWhereTheFileWasCut) {
  const TempDir dir;
  const Bytes data = hdf5_noise(10000, 7);
  for (const Shape& chunk : {Shape{}, Shape{100, 10}}) {
    write_hdf5(dir / "x.h5", {{"x", DType::u8, {1000, 10}, chunk}}, {data});
    const detail::Hdf5Layout layout = detail::Hdf5Reader(dir / "x.h5", "x").layout();
    const std::uint64_t begin = chunk.empty() ? layout.offset : layout.chunk_offsets[0];
    for (const std::size_t hold : {std::size_t{0}, kDefaultHoldBytes}) {
      write_hdf5(dir / "x.h5", {{"x", DType::u8, {1000, 10}, chunk}}, {data});
      const auto source = open_hdf5({dir / "x.h5"}, {.hold_bytes = hold});
      std::filesystem::resize_file(dir / "x.h5", begin + 55);
      EXPECT_EQ(read_whole(*source, 0, 4), hdf5_row(data, 4, 10));
      EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 5); }),
                  AllOf(HasSubstr("record 5 at offset"), HasSubstr("cut short")));
    }
    // Opened when it is cut already.
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { open_hdf5({dir / "x.h5"}); }),
                HasSubstr("x.h5"));
  }
}

TEST(Hdf5Source, ReportsCompressedDataThatIsDamaged) {
  const TempDir dir;
  const Bytes data = hdf5_noise(10000, 8);
  write_hdf5(dir / "x.h5", {{"x", DType::u8, {1000, 10}, {100, 10}, 6}}, {data});
  const auto source = open_hdf5({dir / "x.h5"});
  std::filesystem::resize_file(dir / "x.h5", 3000);
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] {
                           for (std::int64_t i = 0; i < 1000; ++i) read_whole(*source, 0, i);
                         }),
              HasSubstr("x.h5: dataset \"x\""));
}

}  // namespace
}  // namespace shardwise
