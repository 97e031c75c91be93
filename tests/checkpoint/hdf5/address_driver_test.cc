#include "shardwise/checkpoint/detail/hdf5/address_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "testing/errors.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

H5Dataset make_early(const H5File& file, const char* path, const Shape& shape) {
  const H5Properties creation = hdf5_timeless(H5P_DATASET_CREATE);
  check_hdf5(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), path);
  check_hdf5(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), path);
  const H5Space space = hdf5_space(shape);
  return H5Dataset(H5Dcreate2(file.get(), path, H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                              creation.get(), H5P_DEFAULT),
                   path);
}

// Many datasets over the same bytes: the metadata is far larger than the front.
TEST(AddressDriver, DescribesDataThatIsAlreadyThere) {
  const TempDir dir;
  constexpr std::uint64_t kEnd = 3 * kFrontBytes;
  std::vector<std::byte> bytes(kEnd);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 / 3);
  AddressDriver driver(kFrontBytes, kEnd);
  {
    const Hdf5Lock lock;
    H5File file = driver.create_file();
    for (int i = 0; i < 200; ++i) {
      driver.next_address(kFrontBytes + static_cast<std::uint64_t>(i) * 8);
      const H5Dataset made = make_early(file, ("/d" + std::to_string(i)).c_str(), {100});
      driver.check();
    }
    driver.finish(std::move(file));
  }
  ASSERT_EQ(driver.front().size(), kFrontBytes);
  std::copy(driver.front().begin(), driver.front().end(), bytes.begin());
  bytes.insert(bytes.end(), driver.tail().begin(), driver.tail().end());
  write_file(dir / "f.h5", bytes);

  const Hdf5Lock lock;
  for (std::size_t i = 0; i < 200; ++i) {
    const RawDataset found = read_raw(dir / "f.h5", "/d" + std::to_string(i));
    ASSERT_EQ(found.data.size(), 100u);
    EXPECT_TRUE(
        std::equal(found.data.begin(), found.data.end(), bytes.data() + kFrontBytes + i * 8));
  }
}

TEST(AddressDriver, SaysWhereDataWithoutAPlaceIsWanted) {
  const Hdf5Lock lock;
  AddressDriver driver(kFrontBytes, 2 * kFrontBytes);
  const H5File file = driver.create_file();
  EXPECT_THROW(make_early(file, "/d", {100}), Error);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { driver.check(); }), HasSubstr("has no address"));
}

TEST(AddressDriver, SaysWhereAPlaceIsNotUsed) {
  const Hdf5Lock lock;
  AddressDriver driver(kFrontBytes, 2 * kFrontBytes);
  const H5File file = driver.create_file();
  driver.next_address(5000);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { driver.check(); }), HasSubstr("address 5000"));
}

// The file is the library's again once it is closed: it adds to it without touching the data.
TEST(AddressDriver, OrdinaryHdf5EditsTheFileAfterwards) {
  const TempDir dir;
  std::vector<std::byte> bytes(2 * kFrontBytes, std::byte{9});
  AddressDriver driver(kFrontBytes, bytes.size());
  const Hdf5Lock lock;
  {
    H5File file = driver.create_file();
    driver.next_address(kFrontBytes);
    const H5Dataset made = make_early(file, "/d", {4096});
    driver.check();
    driver.finish(std::move(file));
  }
  std::copy(driver.front().begin(), driver.front().end(), bytes.begin());
  bytes.insert(bytes.end(), driver.tail().begin(), driver.tail().end());
  write_file(dir / "f.h5", bytes);
  {
    const H5File file(H5Fopen((dir / "f.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), "open");
    for (int i = 0; i < 50; ++i) {
      const H5Dataset made = make_early(file, ("/new" + std::to_string(i)).c_str(), {300});
    }
  }
  EXPECT_EQ(read_raw(dir / "f.h5", "/d").data, std::vector<std::byte>(4096, std::byte{9}));
  EXPECT_EQ(read_raw(dir / "f.h5", "/new49").shape, Shape{300});
}

}  // namespace
}  // namespace shardwise::detail
