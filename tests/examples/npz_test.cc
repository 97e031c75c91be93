#include "npz.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"
#include "testing/test_data.h"

namespace gpt {
namespace {

using namespace shardwise;

template <class T>
std::vector<T> values(const NpzArray& array) {
  std::vector<T> out(array.bytes.size() / sizeof(T));
  std::memcpy(out.data(), array.bytes.data(), array.bytes.size());
  return out;
}

template <class T>
std::string little_endian(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string npy(const std::string& header, const std::string& data) {
  return "\x93NUMPY\x01" + std::string(1, '\0') +
         little_endian(static_cast<std::uint16_t>(header.size())) + header + data;
}

/// An archive of one entry. What it says of the entry may be wrong.
struct Zip {
  std::string name = "x.npy", content;
  std::uint16_t method = 0;
  std::uint32_t offset = 0, checksum_change = 0;

  std::string bytes() const {
    const auto half = [](std::size_t value) {
      return little_endian(static_cast<std::uint16_t>(value));
    };
    const auto word = [](std::size_t value) {
      return little_endian(static_cast<std::uint32_t>(value));
    };
    const std::size_t checksum =
        crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
    const std::string shared = half(method) + word(0) + word(checksum ^ checksum_change) +
                               word(content.size()) + word(content.size()) + half(name.size());
    const std::string local = "PK\x03\x04" + half(20) + half(0) + shared + half(0) + name + content;
    const std::string entry = "PK\x01\x02" + half(20) + half(20) + half(0) + shared + half(0) +
                              half(0) + half(0) + half(0) + word(0) + word(offset) + name;
    return local + entry + "PK\x05\x06" + half(0) + half(0) + half(1) + half(1) +
           word(entry.size()) + word(local.size()) + half(0);
  }
};

class Npz : public testing::Test {
 protected:
  std::map<std::string, NpzArray> read(const std::string& bytes) {
    write_file(dir_ / "x.npz", bytes);
    return read_npz(dir_ / "x.npz");
  }

  /// The message without the file's name.
  std::string refusal(ErrorCode code, const std::string& bytes) {
    const std::string message = message_of(code, [&] { read(bytes); });
    const std::string before = "read " + (dir_ / "x.npz").string() + ": ";
    EXPECT_TRUE(message.starts_with(before)) << message;
    return message.substr(before.size());
  }

  TempDir dir_;
};

const std::string kHeader = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n";
const std::string kData = little_endian(1.5f) + little_endian(-2.0f);

TEST_F(Npz, ReadsWhatNumpyWrites) {
  const auto arrays = read_npz(test_data("npz/savez.npz"));
  ASSERT_EQ(arrays.size(), 5u);
  EXPECT_EQ(arrays.at("f4").shape, (Shape{2, 3}));
  EXPECT_EQ(values<float>(arrays.at("f4")), (std::vector<float>{0, 0.25f, 0.5f, 0.75f, 1, 1.25f}));
  EXPECT_EQ(arrays.at("f8").dtype, DType::f64);
  EXPECT_EQ(values<double>(arrays.at("f8")), (std::vector<double>{-1.5, 1e300}));
  EXPECT_EQ(arrays.at("i4").shape, Shape());
  EXPECT_EQ(values<std::int32_t>(arrays.at("i4")), std::vector<std::int32_t>{-7});
  EXPECT_EQ(arrays.at("i8").shape, (Shape{2, 3, 4}));
  EXPECT_EQ(values<std::int64_t>(arrays.at("i8")).back(), 23 * (std::int64_t{1} << 33));
  EXPECT_EQ(arrays.at("empty").shape, (Shape{0, 5}));
}

TEST_F(Npz, RefusesWhatItDoesNotRead) {
  const Zip good{.content = npy(kHeader, kData)};
  EXPECT_EQ(values<float>(read(good.bytes()).at("x")), (std::vector<float>{1.5f, -2}));
  const auto changed = [&](const std::string& header) {
    return Zip{.content = npy(header, kData)}.bytes();
  };
  Zip bad = good;
  bad.method = 8;
  EXPECT_EQ(refusal(ErrorCode::unsupported, bad.bytes()),
            "\"x.npy\" is compressed or over 4 GiB, needed numpy.savez");
  const std::string needed = ", needed f4, f8, i4 or i8 in C order";
  const std::string big_endian = "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }";
  EXPECT_EQ(refusal(ErrorCode::unsupported, changed(big_endian)),
            "\"x\" has header " + big_endian + needed);
  const std::string fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (2,), }";
  EXPECT_EQ(refusal(ErrorCode::unsupported, changed(fortran)),
            "\"x\" has header " + fortran + needed);
}

TEST_F(Npz, RefusesWhatContradictsItself) {
  const Zip good{.content = npy(kHeader, kData)};
  Zip bad = good;
  bad.checksum_change = 1;
  EXPECT_EQ(refusal(ErrorCode::corrupt, bad.bytes()), "\"x.npy\" has another checksum");
  bad = good;
  bad.offset = 1 << 20;
  refusal(ErrorCode::corrupt, bad.bytes());
  bad = good;
  bad.content = npy(kHeader, kData + "x");
  EXPECT_EQ(refusal(ErrorCode::corrupt, bad.bytes()), "\"x\" has 9 bytes, needed those of [2]");
  bad.content = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2,), }", kData);
  EXPECT_EQ(refusal(ErrorCode::corrupt, bad.bytes()), "\"x\" has a bad shape");
  bad.content = npy("{'descr': '<f4', 'shape': (2,), }", kData);
  refusal(ErrorCode::corrupt, bad.bytes());
  bad.content = "not an array";
  EXPECT_EQ(refusal(ErrorCode::corrupt, bad.bytes()), "\"x\" is not an array of numpy's");
  bad.content = "\x93NUMPY\x01" + std::string(1, '\0') + "\xff\xff{";
  refusal(ErrorCode::corrupt, bad.bytes());
  EXPECT_EQ(refusal(ErrorCode::corrupt, "text"), "found no end of a zip archive");
  EXPECT_EQ(message_of(ErrorCode::not_found, [&] { read_npz(dir_ / "none.npz"); }),
            "read " + (dir_ / "none.npz").string() + ": no such file");
}

/// Damage is an Error, or does not matter; under a sanitizer nothing else either.
TEST_F(Npz, SurvivesEveryByteThatIsDamagedOrMissing) {
  const std::filesystem::path path = dir_ / "x.npz";
  std::filesystem::copy_file(test_data("npz/savez.npz"), path);
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(path));
  ASSERT_GT(size, 1000);
  const auto try_to_read = [&] {
    try {
      read_npz(path);
    } catch (const Error&) {
    }
  };
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::streamoff at, int byte) {
    file.seekp(at);
    file.put(static_cast<char>(byte)).flush();
  };
  for (std::streamoff at = 0; at < size; ++at) {
    file.seekg(at);
    const int byte = file.get();
    for (const int damaged : {byte ^ (1 << (at % 8)), 0xff}) {
      put(at, damaged);
      try_to_read();
    }
    put(at, byte);
  }
  EXPECT_EQ(read_npz(path).size(), 5u);
  for (std::streamoff rest = size - 1; rest > 0; rest -= 7) {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(rest));
    try_to_read();
  }
}

}  // namespace
}  // namespace gpt
