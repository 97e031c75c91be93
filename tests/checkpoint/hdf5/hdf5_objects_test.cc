// Object headers, held against those that the library makes of the same datasets.
#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "shardwise/checkpoint/detail/hdf5/address_driver.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using Bytes = std::vector<std::byte>;

/// The messages of an object header in one chunk: type and flags, then the body; NIL left out.
using Messages = std::vector<std::pair<int, Bytes>>;

template <class T>
T number(std::span<const std::byte> bytes, std::uint64_t at) {
  T value{};
  std::memcpy(&value, bytes.subspan(at, sizeof value).data(), sizeof value);
  return value;
}

Messages messages_of(std::span<const std::byte> file, std::uint64_t address) {
  const int flags = number<std::uint8_t>(file, address + 5);
  EXPECT_EQ(flags & ~3, 0) << "no times, no attribute limits";
  const std::uint64_t size_bytes = std::uint64_t{1} << (flags & 3);
  std::uint64_t size = 0;
  std::memcpy(&size, file.data() + address + 6, size_bytes);
  const std::uint64_t begin = address + 6 + size_bytes, end = begin + size;
  EXPECT_EQ(number<std::uint32_t>(file, end), hdf5_checksum(file.subspan(address, end - address)));
  Messages messages;
  for (std::uint64_t at = begin; at + 4 <= end;) {
    const auto bytes = number<std::uint16_t>(file, at + 1);
    const auto body = file.subspan(at + 4, bytes);
    const int type = number<std::uint8_t>(file, at), mark = number<std::uint8_t>(file, at + 3);
    if (type != 0) messages.push_back({type << 8 | mark, Bytes(body.begin(), body.end())});
    at += 4 + bytes;
  }
  return messages;
}

constexpr std::uint64_t kData = 4096;  // where data would be
constexpr std::uint64_t kEnd = 1 << 20;

/// A file as it would be: the driver's parts around the hole.
Bytes whole_file(const AddressDriver& driver, std::uint64_t hole) {
  Bytes bytes(driver.front().begin(), driver.front().end());
  bytes.resize(std::max<std::size_t>(bytes.size(), hole));
  bytes.insert(bytes.end(), driver.tail().begin(), driver.tail().end());
  return bytes;
}

Shape shape_of(std::size_t rank) {
  Shape shape;
  for (std::size_t d = 0; d < rank; ++d) shape.push_back(static_cast<std::int64_t>(d % 3) + 1);
  return shape;
}

TEST(Hdf5Objects, ContiguousDatasetsAreTheLibrarys) {
  const Hdf5Lock lock;
  for (const DType dtype : all_dtypes()) {
    for (std::size_t rank = 0; rank <= kMaxRank; ++rank) {
      SCOPED_TRACE(testing::Message() << name(dtype) << " of rank " << rank);
      const Shape shape = shape_of(rank);
      const H5Type type = hdf5_type(dtype);
      AddressDriver driver(kData, kEnd);
      H5File file = driver.create_file();
      const H5Properties creation = hdf5_timeless(H5P_DATASET_CREATE);
      check_hdf5(H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY), "early");
      check_hdf5(H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER), "never");
      driver.next_address(kData + 64);
      H5Dataset dataset(H5Dcreate2(file.get(), "d", type.get(), hdf5_space(shape).get(),
                                   H5P_DEFAULT, creation.get(), H5P_DEFAULT),
                        "create");
      const std::uint64_t address = hdf5_address(dataset);
      dataset.close("close");
      driver.finish(std::move(file));

      Hdf5Bytes out(8);
      Hdf5Datasets datasets(out);
      const std::uint64_t ours = datasets.add_contiguous(hdf5_type_message(type), shape, kData + 64,
                                                         num_bytes(shape, size_bytes(dtype)));
      Messages expected = messages_of(whole_file(driver, kEnd), address);
      Messages found = messages_of(out.bytes(), ours - 8);
      if (dtype == DType::boolean || dtype >= DType::c64) {
        // H5Tencode writes enumerations and compounds in their first form, which is longer.
        ASSERT_EQ(found.size(), expected.size());
        found[1] = expected[1];
      }
      EXPECT_TRUE(found == expected);
    }
  }
}

TEST(Hdf5Objects, TypesAreWhatTheyWere) {
  const Hdf5Lock lock;
  const Hdf5Types types;
  for (const DType dtype : all_dtypes()) {
    Bytes encoded{std::byte{3}, std::byte{0}};  // what H5Tdecode wants in front of the message
    encoded.insert(encoded.end(), types[dtype].begin(), types[dtype].end());
    const H5Type type(H5Tdecode(encoded.data()), "decode");
    EXPECT_GT(H5Tequal(type.get(), hdf5_type(dtype).get()), 0) << name(dtype);
  }
}

struct Virtual {
  Shape shape;
  std::vector<Box> boxes;
};

/// Its object header by the library, and the mappings in the heap without their checksum.
std::pair<Messages, Bytes> library_virtual(const Virtual& v, float fill) {
  AddressDriver driver(0, 0);
  H5File file = driver.create_file();
  const H5Properties creation = hdf5_timeless(H5P_DATASET_CREATE);
  const H5Space space = hdf5_space(v.shape);
  check_hdf5(H5Pset_fill_value(creation.get(), H5T_IEEE_F32LE, &fill), "fill");
  for (const Box& box : v.boxes) {
    std::array<hsize_t, kMaxRank> begin{}, extents{}, once{};
    once.fill(1);
    for (std::size_t d = 0; d < box.rank(); ++d) {
      begin[d] = static_cast<hsize_t>(box.begin(d));
      extents[d] = static_cast<hsize_t>(box.extent(d));
    }
    check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, once.data(),
                                   extents.data()),
               "select");
    check_hdf5(H5Pset_virtual(creation.get(), space.get(), "a.h5", "/tensors/0/0",
                              hdf5_space(box.shape()).get()),
               "map");
  }
  H5Dataset dataset(H5Dcreate2(file.get(), "d", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT,
                               creation.get(), H5P_DEFAULT),
                    "create");
  const std::uint64_t address = hdf5_address(dataset);
  for (const auto& [name, text] : {std::pair("dtype", "f32"), std::pair("mesh", "")}) {
    const H5Type type(H5Tcopy(H5T_C_S1), "copy");
    check_hdf5(H5Tset_size(type.get(), std::max<std::size_t>(std::strlen(text), 1)), "size");
    check_hdf5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), "padding");
    check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), "character set");
    const H5Attribute attribute(
        H5Acreate2(dataset.get(), name, type.get(), hdf5_space({}).get(), H5P_DEFAULT, H5P_DEFAULT),
        "attribute");
    check_hdf5(H5Awrite(attribute.get(), type.get(), text), "attribute");
  }
  dataset.close("close");
  driver.finish(std::move(file));
  const Bytes bytes = whole_file(driver, 0);
  Messages messages = messages_of(bytes, address);
  Bytes mappings;
  for (auto& [type, body] : messages) {
    if (type >> 8 != 0x08 || v.boxes.empty()) continue;
    const auto heap = number<std::uint64_t>(body, 2);
    const auto size = number<std::uint64_t>(bytes, heap + 16 + 8);
    mappings.assign(bytes.begin() + static_cast<std::ptrdiff_t>(heap + 32),
                    bytes.begin() + static_cast<std::ptrdiff_t>(heap + 32 + size));
    std::fill(body.begin() + 2, body.begin() + 10, std::byte{0});
  }
  return {messages, mappings};
}

// Compares the header and the heap's contents for any number of boxes, also more than one
// collection of the heap holds, and for extents beyond 32 bits.
TEST(Hdf5Objects, VirtualDatasetsAreTheLibrarys) {
  constexpr std::int64_t kHuge = 5'000'000'000;
  std::vector<Box> many;
  for (std::int64_t i = 0; i < 300; ++i) many.push_back(Box({i}, {i + 1}));
  const Virtual cases[] = {
      {{6, 5}, {Box({0, 0}, {6, 5})}},
      {{6, 5}, {Box({0, 0}, {3, 5}), Box({3, 0}, {6, 5})}},
      {{300}, many},
      {{kHuge}, {Box({0}, {kHuge - 1}), Box({kHuge - 1}, {kHuge})}},
      {{4, 0, 2}, {}},
  };
  const float fill = -1.5F;
  const Hdf5Attribute attributes[] = {{"dtype", "f32"}, {"mesh", ""}};
  const Hdf5Lock lock;
  const Hdf5Types types;
  Hdf5Bytes out(8);
  Hdf5Datasets datasets(out);
  for (const Virtual& v : cases) {
    SCOPED_TRACE(to_string(v.shape));
    std::vector<Hdf5Mapping> mappings;
    for (const Box& box : v.boxes) mappings.push_back({box, "a.h5", "/tensors/0/0"});
    const auto value = std::as_bytes(std::span(&fill, 1));
    const std::uint64_t ours =
        v.boxes.empty()
            ? datasets.add_empty(types[DType::f32], v.shape, value, attributes)
            : datasets.add_virtual(types[DType::f32], v.shape, value, mappings, attributes);
    auto [expected, expected_mappings] = library_virtual(v, fill);
    Messages found = messages_of(out.bytes(), ours - 8);
    for (auto& [type, body] : found) {
      if (type >> 8 != 0x08 || v.boxes.empty()) continue;
      const std::uint64_t heap = number<std::uint64_t>(body, 2) - 8;
      const auto wanted = number<std::uint32_t>(body, 10);
      std::uint64_t at = heap + 16;
      for (std::uint32_t i = 1; i < wanted; ++i) {
        ASSERT_EQ(number<std::uint16_t>(out.bytes(), at), i);
        at += 16 + (number<std::uint64_t>(out.bytes(), at + 8) + 7) / 8 * 8;
      }
      ASSERT_EQ(number<std::uint16_t>(out.bytes(), at), wanted);
      const auto held = out.bytes().subspan(at + 16, number<std::uint64_t>(out.bytes(), at + 8));
      EXPECT_TRUE(
          std::equal(held.begin(), held.end(), expected_mappings.begin(), expected_mappings.end()));
      std::fill(body.begin() + 2, body.begin() + 10, std::byte{0});
      body[10] = std::byte{1};
    }
    EXPECT_TRUE(found == expected);
  }
}

// 1,000 small mappings share collections of the heap; the library reads each of them.
TEST(Hdf5Objects, TheLibraryReadsManyVirtualDatasets) {
  const TempDir dir;
  std::vector<std::byte> four(4 * sizeof(float));
  for (int i = 0; i < 4; ++i) reinterpret_cast<float*>(four.data())[i] = static_cast<float>(i);
  const Hdf5Lock lock;
  write_raw(dir / "a.h5", DType::f32, {4}, four);
  AddressDriver driver(0, 0);
  driver.finish(driver.create_file());
  const Hdf5Types types;
  Hdf5Bytes out(driver.end());
  Hdf5Datasets datasets(out);
  std::vector<std::string> paths;
  for (int i = 0; i < 1000; ++i) paths.push_back("/g/" + std::to_string(i));
  std::vector<Hdf5Link> links;
  const float fill = 7;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const Hdf5Mapping mapping{Box({i}, {i + 4}), "a.h5", "/data"};
    links.push_back({paths[static_cast<std::size_t>(i)],
                     datasets.add_virtual(types[DType::f32], {i + 5},
                                          std::as_bytes(std::span(&fill, 1)), {&mapping, 1}, {})});
  }
  driver.append(out, add_hdf5_groups(out, links));
  write_file(dir / "index.h5", {driver.tail().begin(), driver.tail().end()});
  for (std::size_t i = 0; i < 1000; i += 37) {
    const RawDataset raw = read_raw(dir / "index.h5", paths[i]);
    ASSERT_EQ(raw.data.size(), (i + 5) * sizeof(float));
    const auto* values = reinterpret_cast<const float*>(raw.data.data());
    for (std::size_t k = 0; k < i + 5; ++k) {
      EXPECT_EQ(values[k], k >= i && k < i + 4 ? static_cast<float>(k - i) : fill);
    }
  }
}

}  // namespace
}  // namespace shardwise::detail
