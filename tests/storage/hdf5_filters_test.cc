#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "shardwise/storage/detail/hdf5.h"
#include "shardwise/storage/detail/hdf5_reader.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr H5Z_filter_t kCounting = 511;  // a number for tests
int decoded_chunks = 0;

std::size_t count(unsigned flags, std::size_t, const unsigned*, std::size_t bytes, std::size_t*,
                  void**) {
  if ((flags & H5Z_FLAG_REVERSE) != 0) ++decoded_chunks;
  return bytes;
}

/// A dataset "w" of u8 in one chunk, written through the filter.
void write_filtered(const std::filesystem::path& path, hsize_t bytes, H5Z_filter_t filter) {
  using namespace detail;
  const Hdf5Lock lock;
  const H5Z_class2_t filters{H5Z_CLASS_T_VERS, filter, 1, 1, "counting", nullptr, nullptr, count};
  check_hdf5(H5Zregister(&filters), "register");
  {
    const H5File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), "create");
    const H5Properties made(H5Pcreate(H5P_DATASET_CREATE), "list");
    check_hdf5(H5Pset_chunk(made.get(), 1, &bytes), "chunk");
    check_hdf5(H5Pset_filter(made.get(), filter, H5Z_FLAG_MANDATORY, 0, nullptr), "filter");
    const H5Space space = hdf5_space({static_cast<std::int64_t>(bytes)});
    const H5Dataset dataset(H5Dcreate2(file.get(), "w", H5T_STD_U8LE, space.get(), H5P_DEFAULT,
                                       made.get(), H5P_DEFAULT),
                            "create");
    std::vector<std::uint8_t> content(bytes);
    for (std::size_t i = 0; i < bytes; ++i) content[i] = static_cast<std::uint8_t>(i * 7);
    check_hdf5(
        H5Dwrite(dataset.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, content.data()),
        "write");
  }
  decoded_chunks = 0;
}

/// Reads the dataset's bytes in parts, and compares them.
template <class Read>
void read_in_parts(std::int64_t bytes, const Read& read) {
  constexpr std::int64_t kPart = std::int64_t{8} << 20;
  std::vector<std::byte> part(kPart);
  for (std::int64_t at = 0; at < bytes; at += kPart) {
    read(Box({at}, {std::min(bytes, at + kPart)}), part.data());
    ASSERT_EQ(std::to_integer<std::uint8_t>(part[5]), static_cast<std::uint8_t>((at + 5) * 7));
  }
}

TEST(Hdf5Filters, ALargeChunkIsDecodedOnce) {
  const TempDir dir;
  for (const std::int64_t mib : {2, 70}) {
    const std::int64_t bytes = mib << 20;
    write_filtered(dir / "w.h5", static_cast<hsize_t>(bytes), kCounting);
    {
      const detail::Hdf5Reader tree(dir / "w.h5");
      read_in_parts(bytes, [&](const Box& box, std::byte* out) { tree.read(0, box, out, "read"); });
      EXPECT_EQ(decoded_chunks, 1) << mib;
    }
    decoded_chunks = 0;
    const detail::Hdf5Reader dataset(dir / "w.h5", "w");
    read_in_parts(bytes, [&](const Box& box, std::byte* out) { dataset.read(box, out); });
    EXPECT_EQ(decoded_chunks, 1) << mib;
  }
}

TEST(Hdf5Filters, OneThatIsNotInstalledIsNamedWithAWayOut) {
  const TempDir dir;
  write_filtered(dir / "w.h5", 16, 32000);
  H5Zunregister(32000);
  const detail::Hdf5Reader tree(dir / "w.h5");
  EXPECT_TRUE(tree.datasets().empty());
  const auto way_out = ::testing::AllOf(HasSubstr("\"w\": its filter lzf (number 32000) is not"),
                                        HasSubstr("HDF5_PLUGIN_PATH"), HasSubstr("GZIP"));
  EXPECT_THAT(tree.left_out(), ElementsAre(way_out));
  EXPECT_THAT(
      message_of(ErrorCode::unsupported, [&] { detail::Hdf5Reader dataset(dir / "w.h5", "w"); }),
      way_out);
}

TEST(Hdf5Filters, ComplexNumbersOfEitherByteOrder) {
  const TempDir dir;
  const std::vector<double> numbers{1.5, -2, 0, 1e30};
  for (const bool is_wide : {false, true}) {
    const hid_t part = is_wide ? H5T_IEEE_F64BE : H5T_IEEE_F32BE;
    {
      using namespace detail;
      const Hdf5Lock lock;
      const H5File file(H5Fcreate((dir / "z.h5").c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
                        "create");
      const H5Type stored(H5Tcreate(H5T_COMPOUND, is_wide ? 16 : 8), "type");
      const H5Type memory(H5Tcreate(H5T_COMPOUND, 16), "type");
      std::size_t at = 0;
      for (const char* name : {"r", "i"}) {
        H5Tinsert(stored.get(), name, at * (is_wide ? 8 : 4), part);
        H5Tinsert(memory.get(), name, at++ * 8, H5T_NATIVE_DOUBLE);
      }
      const H5Space space = hdf5_space({2});
      const H5Dataset dataset(H5Dcreate2(file.get(), "z", stored.get(), space.get(), H5P_DEFAULT,
                                         H5P_DEFAULT, H5P_DEFAULT),
                              "create");
      check_hdf5(
          H5Dwrite(dataset.get(), memory.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()),
          "write");
    }
    const detail::Hdf5Reader dataset(dir / "z.h5", "z");
    EXPECT_EQ(dataset.dataset().dtype, is_wide ? DType::c128 : DType::c64);
    EXPECT_TRUE(dataset.dataset().swapped);
    std::vector<double> read(4);
    std::vector<float> narrow(4);
    auto* const out = is_wide ? reinterpret_cast<std::byte*>(read.data())
                              : reinterpret_cast<std::byte*>(narrow.data());
    dataset.read(Box({0}, {2}), out);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(is_wide ? read[i] : double{narrow[i]},
                is_wide ? numbers[i] : double{static_cast<float>(numbers[i])});
    }
  }
}

}  // namespace
}  // namespace shardwise
