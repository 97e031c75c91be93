#include "shardwise/convert/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Tensors in memory.
class Memory final : public BoxReader {
 public:
  template <class T>
  Memory& add(const std::string& name, DType dtype, const Shape& shape,
              const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    infos_.push_back({.name = name, .dtype = dtype, .shape = shape});
    bytes_.push_back(std::move(bytes));
    return *this;
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const TensorInfo& info = infos_[tensor];
    copy_box(box, size_bytes(info.dtype), {bytes_[tensor].data(), Box::whole(info.shape)},
             {out.data(), box});
  }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<std::byte>> bytes_;
};

TensorDiff diff_of(DType dtype, const std::vector<float>& a, const std::vector<float>& b,
                   const DiffOptions& options = {}) {
  const Shape shape{static_cast<std::int64_t>(a.size())};
  const DiffReport report =
      diff(Memory().add("x", dtype, shape, a), Memory().add("x", dtype, shape, b), options);
  return report.tensors.at(0);
}

TEST(Diff, SaysWhereAndHowFar) {
  const Memory a = Memory().add<float>("x", DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const Memory b = Memory().add<float>("x", DType::f32, {2, 3}, {1, 2, 3, 4, 4, 8});
  const DiffReport report = diff(a, b);
  ASSERT_EQ(report.tensors.size(), 1u);
  const TensorDiff& x = report.tensors[0];
  EXPECT_TRUE(x.compared);
  EXPECT_FALSE(x.equal());
  EXPECT_EQ(x.elements, 6);
  EXPECT_EQ(x.differing, 2);
  EXPECT_EQ(x.max_abs, 2);
  EXPECT_EQ(x.max_rel, 0.25);
  EXPECT_EQ(x.max_ulp, std::uint64_t{1} << 22);  // half of the floats from 4 to 8
  EXPECT_EQ(x.at, (Index{1, 1}));
  EXPECT_EQ(x.first_value, "5");
  EXPECT_EQ(x.second_value, "4");
  EXPECT_TRUE(diff(a, a).equal());
}

TEST(Diff, BitsAreComparedUnlessThereIsATolerance) {
  const float nan = std::numeric_limits<float>::quiet_NaN(),
              infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(diff_of(DType::f32, {0.0f}, {-0.0f}).differing, 1);
  EXPECT_EQ(diff_of(DType::f32, {0.0f}, {-0.0f}, {.atol = 1e-30}).differing, 0);
  EXPECT_EQ(diff_of(DType::f32, {nan}, {nan}).differing, 0);
  EXPECT_EQ(diff_of(DType::f32, {nan}, {-nan}).differing, 1);
  EXPECT_EQ(diff_of(DType::f32, {nan}, {-nan}, {.rtol = 1}).differing, 0);
  const TensorDiff one = diff_of(DType::f32, {nan, 1}, {1, 1}, {.atol = 10});
  EXPECT_EQ(one.differing, 1);
  EXPECT_EQ(one.first_nan, 1);
  EXPECT_EQ(one.second_nan, 0);
  EXPECT_EQ(one.max_abs, 0) << "NaN is counted, not measured";
  EXPECT_EQ(one.first_value, "nan");
  EXPECT_EQ(diff_of(DType::f32, {infinity}, {infinity}, {.atol = 1}).differing, 0);
  EXPECT_EQ(diff_of(DType::f32, {infinity}, {1}, {.atol = 1}).max_abs, infinity);
  const DiffOptions wide{.rtol = 1};
  EXPECT_EQ(diff_of(DType::f32, {1}, {infinity}, wide).differing, 1);
  EXPECT_EQ(diff_of(DType::f32, {infinity}, {1}, wide).differing, 1);
  EXPECT_EQ(diff_of(DType::f32, {infinity}, {-infinity}, wide).differing, 1);
  EXPECT_EQ(diff_of(DType::f32, {-infinity}, {-infinity}, wide).differing, 0);
  const Memory in_f32 = Memory().add<float>("x", DType::f32, {1}, {infinity});
  const Memory in_f64 = Memory().add<double>("x", DType::f64, {1}, {infinity});
  EXPECT_EQ(diff(in_f32, in_f64, {.atol = 1}).tensors[0].differing, 0);
  EXPECT_EQ(diff_of(DType::f32, {1.0f}, {1.01f}, {.rtol = 0.02}).differing, 0);
  EXPECT_EQ(diff_of(DType::f32, {1.0f}, {1.01f}, {.rtol = 0.005}).differing, 1);
}

TEST(Diff, LargeIntegersAreExact) {
  const std::int64_t large = std::int64_t{1} << 60;
  const TensorDiff x = diff(Memory().add<std::int64_t>("x", DType::i64, {1}, {large + 1}),
                            Memory().add<std::int64_t>("x", DType::i64, {1}, {large}))
                           .tensors[0];
  EXPECT_EQ(x.max_abs, 1);
  EXPECT_EQ(x.max_ulp, std::nullopt);
  EXPECT_EQ(x.first_value, "1152921504606846977");
}

TEST(Diff, NamesThatOneSideHasNotGotAndOtherShapesAndDTypes) {
  const Memory a = Memory()
                       .add<float>("a", DType::f32, {1}, {1})
                       .add<float>("s", DType::f32, {2}, {1, 2})
                       .add<float>("t", DType::f32, {2}, {1, 2})
                       .add<float>("u", DType::f32, {2}, {1, 2});
  const Memory b = Memory()
                       .add<double>("t", DType::f64, {2}, {1, 2.5})
                       .add<float>("u", DType::c64, {1}, {1, 2})
                       .add<float>("s", DType::f32, {1, 2}, {1, 2})
                       .add<float>("z", DType::f32, {1}, {1});
  const std::vector<TensorDiff> found = diff(a, b).tensors;
  std::vector<std::string> names;
  for (const TensorDiff& tensor : found) {
    names.push_back(tensor.name);
    EXPECT_FALSE(tensor.equal());
  }
  EXPECT_THAT(names, ElementsAre("a", "s", "t", "u", "z"));
  EXPECT_EQ(found[0].second_dtype, std::nullopt);
  EXPECT_FALSE(found[1].compared);
  EXPECT_TRUE(found[2].compared) << "of other dtypes the numbers are compared";
  EXPECT_EQ(found[2].differing, 1);
  EXPECT_EQ(found[2].max_abs, 0.5);
  EXPECT_EQ(found[2].max_ulp, std::nullopt);
  EXPECT_EQ(found[2].second_value, "2.5");
  EXPECT_FALSE(found[3].compared) << "complex numbers are not compared with others";
  EXPECT_EQ(found[4].first_dtype, std::nullopt);
}

TEST(Diff, ComplexNumbersAreTwoNumbers) {
  const Memory a = Memory().add<float>("x", DType::c64, {2}, {1, 2, 3, -4});
  const Memory b = Memory().add<float>("x", DType::c64, {2}, {1, 2, 3, 4});
  const TensorDiff x = diff(a, b).tensors[0];
  EXPECT_EQ(x.elements, 2);
  EXPECT_EQ(x.differing, 1);
  EXPECT_EQ(x.max_abs, 8);
  EXPECT_EQ(x.at, (Index{1}));
  EXPECT_EQ(x.first_value, "3-4i");
}

// Expected values are those of numpy.isclose(a, b, rtol, atol, equal_nan=True) of numpy 2.4.
TEST(Diff, ComplexNumbersAreCloseAsNumpySaysIt) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  const struct {
    std::vector<float> first, second;
    double rtol, atol;
    bool close;
  } cases[] = {
      {{1, 0}, {1, 1e-6F}, 1e-5, 0, true},
      {{1, 1e-6F}, {1, 0}, 1e-5, 0, true},
      {{1, 0}, {1, 1e-4F}, 1e-5, 0, false},
      {{3, 4}, {3.03F, 4.03F}, 0.01, 0, true},
      {{3, 4}, {3.05F, 4.05F}, 0.01, 0, false},
      {{0, 0}, {3, 4}, 0, 4.5, false},  // each part is within 4.5
      {{0, 0}, {3, 4}, 0, 5.5, true},
      {{kNan, 1}, {2, kNan}, 0.1, 0, true},
      {{kNan, 1}, {2, 1}, 0.1, 0, false},
      {{kInf, 1}, {kInf, 1}, 0.1, 0, true},
      {{kInf, 1}, {kInf, 1.01F}, 0.1, 0, false},
      {{1, 1}, {kInf, 1}, 0.1, 0, false},
      {{kInf, 0}, {-kInf, 0}, 0.1, 0, false},
  };
  for (const auto& one : cases) {
    const Memory a = Memory().add("x", DType::c64, {1}, one.first);
    const Memory b = Memory().add("x", DType::c64, {1}, one.second);
    std::vector<double> wide(one.second.begin(), one.second.end());
    const Memory c = Memory().add("x", DType::c128, {1}, wide);
    const DiffOptions options{.atol = one.atol, .rtol = one.rtol};
    SCOPED_TRACE(testing::PrintToString(one.first) + " " + testing::PrintToString(one.second));
    EXPECT_EQ(diff(a, b, options).tensors[0].differing, one.close ? 0 : 1);
    EXPECT_EQ(diff(a, c, options).tensors[0].differing, one.close ? 0 : 1);
  }
}

TEST(Diff, RefusesBudgetsAndTolerancesThatAreNone) {
  const Memory a = Memory().add<float>("x", DType::f32, {1}, {1});
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { diff(a, a, {.memory_budget_bytes = 1000}); }),
      HasSubstr("memory_budget_bytes: found 1000, needed 1048576 or more"));
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { diff(a, a, {.rtol = bad}); }),
                HasSubstr("needed 0 or more"));
  }
}

/// Two steps of one root; some elements of "w" differ.
class DiffOfSteps : public testing::Test {
 protected:
  const Shape shape_{300, 1000};

  void save(std::int64_t step, const std::vector<std::byte>& bytes, const std::string& mesh,
            Codec codec) {
    const HostTensor w{
        "w",
        {DType::f32, shape_, Sharding(Mesh::parse(mesh), PartitionSpec::parse("data,-"))},
        std::make_shared<std::vector<std::byte>>(bytes)};
    CheckpointManager(dir_.path()).save(step, {w.source()}, {.codec = codec});
  }

  DiffReport report(std::size_t budget = std::size_t{1} << 20) const {
    const CheckpointReader first(dir_.path() / "step-00000001"),
        second(dir_.path() / "step-00000002");
    return diff(first, second, {.memory_budget_bytes = budget});
  }

  std::vector<std::byte> bytes_ = test_values(DType::f32, shape_, Values::noise, 1);
  TempDir dir_;
};

TEST_F(DiffOfSteps, EqualChunksAreNotRead) {
  save(1, bytes_, "data=3", Codec::none);
  std::vector<std::byte> other = bytes_;
  other[4 * 150'000] ^= std::byte{1};  // element [150, 0]
  save(2, other, "data=3", Codec::zstd);
  const DiffReport found = report();
  EXPECT_GT(found.skipped_bytes, 0u);
  EXPECT_EQ(found.skipped_bytes + found.compared_bytes, bytes_.size());
  EXPECT_EQ(found.tensors[0].differing, 1);
  EXPECT_EQ(found.tensors[0].max_ulp, 1u);
  EXPECT_EQ(found.tensors[0].at, (Index{150, 0}));
}

TEST_F(DiffOfSteps, EqualStepsAreNotReadAtAll) {
  save(1, bytes_, "data=3", Codec::zstd);
  save(2, bytes_, "data=3", Codec::zstd);
  const DiffReport found = report();
  EXPECT_TRUE(found.equal());
  EXPECT_EQ(found.compared_bytes, 0u);
}

TEST_F(DiffOfSteps, OtherMeshesAreReadSlabBySlab) {
  save(1, bytes_, "data=3", Codec::none);
  std::vector<std::byte> other = bytes_;
  std::mt19937 random(7);
  std::map<std::int64_t, int> changed;
  for (int i = 0; i < 50; ++i) {
    const std::int64_t element = random() % 300'000;
    if (changed[element]++ == 0) other[as_size(element) * 4] ^= std::byte{1};
  }
  save(2, other, "data=7", Codec::none);
  const DiffReport found = report();
  EXPECT_EQ(found.skipped_bytes, 0u);
  EXPECT_EQ(found.compared_bytes, bytes_.size());
  EXPECT_EQ(found.tensors[0].differing, static_cast<std::int64_t>(changed.size()));
  const std::int64_t least = changed.begin()->first;
  EXPECT_EQ(found.tensors[0].at, (Index{least / 1000, least % 1000}));
}

}  // namespace
}  // namespace shardwise
