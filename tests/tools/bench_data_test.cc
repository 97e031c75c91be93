#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bench/data.h"
#include "shardwise/shard/sharding.h"
#include "testing/errors.h"

namespace shardwise::tools {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr DataKind kEveryKind[] = {DataKind::gaussian, DataKind::index, DataKind::zeros};

std::vector<std::byte> values(const BenchData& data, std::int64_t tensor, const Box& box,
                              DType dtype) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(box.num_elements()) * size_bytes(dtype));
  data.fill(tensor, {bytes.data(), box});
  return bytes;
}

template <class T>
std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

TEST(BenchData, IndexIsTheGlobalRowMajorIndexModulo2To20) {
  const Shape shape{1100, 3, 401};
  const Box box({1040, 1, 5}, {1100, 3, 400});
  const auto found = as<float>(values({DataKind::index, DType::f32, shape}, 7, box, DType::f32));
  std::size_t at = 0;
  for (std::int64_t i = 1040; i < 1100; ++i) {
    for (std::int64_t j = 1; j < 3; ++j) {
      for (std::int64_t k = 5; k < 400; ++k) {
        ASSERT_EQ(found[at++], static_cast<float>(((i * 3 + j) * 401 + k) % 1048576));
      }
    }
  }
}

TEST(BenchData, IndexIsTheNearestFloatOrTheLowBits) {
  const Shape shape{70000};
  const Box end({65530}, {65540});
  const auto read = [&](DType dtype) {
    return values({DataKind::index, dtype, shape}, 0, end, dtype);
  };
  EXPECT_EQ(as<std::uint16_t>(read(DType::u16))[9], 3);
  EXPECT_EQ(as<std::int8_t>(read(DType::i8))[0], -6);
  EXPECT_EQ(as<std::int64_t>(read(DType::i64))[9], 65539);
  EXPECT_EQ(as<double>(read(DType::f64))[1], 65531);
  EXPECT_EQ(bf16_to_f32(as<std::uint16_t>(read(DType::bf16))[3]), 65536);
  EXPECT_TRUE(std::isinf(f16_to_f32(as<std::uint16_t>(read(DType::f16))[0])));
}

TEST(BenchData, AnyBoxHoldsWhatTheWholeHolds) {
  const Shape shape{9, 4, 1300};
  const Sharding sharding(Mesh::parse("a=4,b=2"), PartitionSpec::parse("-,b,a"));
  for (const DataKind kind : kEveryKind) {
    for (const DType dtype : all_dtypes()) {
      SCOPED_TRACE(std::string(name(kind)) + " " + std::string(name(dtype)));
      const BenchData data(kind, dtype, shape);
      const auto whole = values(data, 3, Box::whole(shape), dtype);
      for (std::int64_t position = 0; position < 8; ++position) {
        const Box box = sharding.box_at(position, shape);
        std::vector<std::byte> part(static_cast<std::size_t>(box.num_elements()) *
                                    size_bytes(dtype));
        copy_box(box, size_bytes(dtype), {whole.data(), Box::whole(shape)}, {part.data(), box});
        EXPECT_TRUE(values(data, 3, box, dtype) == part);
        EXPECT_THAT(data.difference(3, {part.data(), box}), IsEmpty());
      }
    }
  }
}

TEST(BenchData, GaussianIsNormalWithAScalePerRow) {
  const Shape shape{3, 200'000};
  const BenchData data(DataKind::gaussian, DType::f32, shape);
  const auto all = as<float>(values(data, 0, Box::whole(shape), DType::f32));
  std::vector<double> scales;
  for (std::size_t row = 0; row < 3; ++row) {
    double sum = 0, squares = 0, within = 0;
    for (std::size_t i = 0; i < 200'000; ++i) {
      const double value = all[row * 200'000 + i];
      sum += value;
      squares += value * value;
    }
    const double scale = std::sqrt(squares / 200'000);
    for (std::size_t i = 0; i < 200'000; ++i) {
      within += std::abs(all[row * 200'000 + i]) < scale ? 1 : 0;
    }
    EXPECT_NEAR(sum / 200'000, 0, scale / 100);
    EXPECT_NEAR(within / 200'000, 0.6827, 0.005);
    EXPECT_GT(scale, 0.01);
    EXPECT_LT(scale, 0.1);
    scales.push_back(scale);
  }
  EXPECT_GT(std::abs(scales[0] - scales[1]), 1e-4);
  EXPECT_FALSE(values(data, 1, Box::whole(shape), DType::f32) ==
               values(data, 0, Box::whole(shape), DType::f32));
}

TEST(BenchData, TellsWhichElementDiffers) {
  const Shape shape{10, 5000};
  const Box box({2, 100}, {9, 4999});
  for (const DataKind kind : kEveryKind) {
    const BenchData data(kind, DType::i16, shape);
    auto bytes = values(data, 12, box, DType::i16);
    EXPECT_THAT(data.difference(12, {bytes.data(), box}), IsEmpty());
    bytes[2 * 20'001 + 1] ^= std::byte{1};
    const std::string text = data.difference(12, {bytes.data(), box});
    for (const char* part : {"tensor_00012", "element 20001", "[2:9, 100:4999]"}) {
      EXPECT_THAT(text, HasSubstr(part));
    }
  }
}

TEST(BenchData, KindsHaveNames) {
  for (const DataKind kind : kEveryKind) EXPECT_EQ(parse_data_kind(name(kind)), kind);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { parse_data_kind("ones"); }),
              HasSubstr("gaussian, index or zeros"));
}

}  // namespace
}  // namespace shardwise::tools
