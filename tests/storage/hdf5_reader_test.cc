#include "shardwise/storage/detail/hdf5_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "shardwise/storage/detail/hdf5.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 4 x 6 numbers from 0 on, of a type that the file has.
void write_numbers(const std::filesystem::path& path, hid_t type, const std::vector<hsize_t>& chunk,
                   bool compressed) {
  const Hdf5Lock lock;
  const H5File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), "create");
  const H5Properties made(H5Pcreate(H5P_DATASET_CREATE), "list");
  if (!chunk.empty()) check_hdf5(H5Pset_chunk(made.get(), 2, chunk.data()), "chunk");
  if (compressed) check_hdf5(H5Pset_deflate(made.get(), 1), "deflate");
  const H5Space space = hdf5_space({4, 6});
  const H5Dataset dataset(
      H5Dcreate2(file.get(), "n", type, space.get(), H5P_DEFAULT, made.get(), H5P_DEFAULT),
      "create");
  std::array<std::int32_t, 24> numbers;
  for (std::size_t i = 0; i < 24; ++i) numbers[i] = static_cast<std::int32_t>(i);
  check_hdf5(
      H5Dwrite(dataset.get(), H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()),
      "write");
}

std::vector<std::int32_t> read_numbers(const Hdf5Reader& dataset, const Box& box) {
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(box.num_elements()));
  dataset.read(box, reinterpret_cast<std::byte*>(numbers.data()));
  return numbers;
}

TEST(Hdf5Reader, TellsWhereItsElementsLie) {
  const TempDir dir;
  write_numbers(dir / "x.h5", H5T_STD_I32LE, {}, false);
  const Hdf5Reader plain(dir / "x.h5", "n");
  EXPECT_EQ(plain.dataset().shape, (Shape{4, 6}));
  EXPECT_EQ(plain.dataset().dtype, DType::i32);
  EXPECT_FALSE(plain.dataset().swapped);
  ASSERT_EQ(plain.layout().kind, Hdf5Layout::Kind::contiguous);
  std::ifstream file(dir / "x.h5", std::ios::binary);
  std::array<char, 96> stored;
  file.seekg(static_cast<std::streamoff>(plain.layout().offset));
  file.read(stored.data(), stored.size());
  const std::vector<std::int32_t> all = read_numbers(plain, Box({0, 0}, {4, 6}));
  EXPECT_EQ(std::memcmp(all.data(), stored.data(), stored.size()), 0);
  EXPECT_EQ(all[23], 23);

  write_numbers(dir / "c.h5", H5T_STD_I32BE, {3, 4}, false);
  const Hdf5Reader chunks(dir / "c.h5", "n");
  EXPECT_TRUE(chunks.dataset().swapped);
  ASSERT_EQ(chunks.layout().kind, Hdf5Layout::Kind::chunks);
  EXPECT_EQ(chunks.layout().chunk, (Shape{3, 4}));
  ASSERT_EQ(chunks.layout().chunk_offsets.size(), 4u);
  std::ifstream second(dir / "c.h5", std::ios::binary);
  second.seekg(static_cast<std::streamoff>(chunks.layout().chunk_offsets[3] + 3));
  EXPECT_EQ(second.get(), 22);  // element [3, 4], its last byte
}

TEST(Hdf5Reader, ReadsBoxesOfEveryLayout) {
  const TempDir dir;
  for (const hid_t type : {H5T_STD_I32LE, H5T_STD_I32BE}) {
    for (const bool compressed : {false, true}) {
      write_numbers(dir / "x.h5", type, {3, 4}, compressed);
      Hdf5Reader first(dir / "x.h5", "/n");
      const Hdf5Reader dataset = std::move(first);
      EXPECT_EQ(dataset.layout().kind,
                compressed ? Hdf5Layout::Kind::library : Hdf5Layout::Kind::chunks);
      EXPECT_THAT(read_numbers(dataset, Box({2, 3}, {4, 6})), ElementsAre(15, 16, 17, 21, 22, 23));
      EXPECT_THAT(read_numbers(dataset, Box({2, 3}, {2, 6})), ElementsAre());
    }
  }
}

TEST(Hdf5Reader, ListsTheRootAndNamesWhatIsMissing) {
  const TempDir dir;
  write_numbers(dir / "x.h5", H5T_STD_I32LE, {}, false);
  EXPECT_THAT(hdf5_dataset_names(dir / "x.h5"), ElementsAre("n"));
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { Hdf5Reader(dir / "x.h5", "m"); }),
              HasSubstr("there is no dataset \"m\"; its root has \"n\""));
  write_file(dir / "no.h5", "text");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { hdf5_dataset_names(dir / "no.h5"); }),
              HasSubstr("no.h5"));
}

}  // namespace
}  // namespace shardwise::detail
