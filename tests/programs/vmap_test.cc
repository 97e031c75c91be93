#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// vmap() gives the values of a loop over the slices.

namespace shardwise {
namespace {

using Function = std::function<Tensor(const Tensor&, const Tensor&)>;

class Vmap : public testing::Test {
 protected:
  Tensor stack(const std::vector<Tensor>& parts) {
    std::vector<Tensor> rows;
    for (const Tensor& part : parts) {
      Shape shape{1};
      for (const std::int64_t extent : part.shape()) shape.push_back(extent);
      rows.push_back(reshape(part, shape));
    }
    return concatenate(rows, 0);
  }

  Devices devices_{2};
  Tracer tracer_{devices_, {.mesh = Mesh::parse("d=2")}};
  Tensor x_ = counting(tracer_, {5, 3, 4}, "x"), y_ = 7.0 - counting(tracer_, {5, 3, 4}, "y");
  Tensor shared_ = counting(tracer_, {3, 4}, "shared"), table_ = counting(tracer_, {9, 3}, "table");
};

TEST_F(Vmap, GivesWhatALoopOverTheSlicesGives) {
  const auto ids = [](const Tensor& x, double count) {
    return convert(rem(reduce_sum(x, {1}), count), DType::i32);
  };
  struct Case {
    const char* name;
    Function of;  // of a slice of x and one of y
  };
  const std::vector<Case> cases{
      {"elementwise",
       [&](const auto& a, const auto& b) { return where(gt(a, b), a * 2.0, shared_ - b); }},
      {"shared", [&](const auto&, const auto&) { return shared_ + 1.0; }},
      {"broadcast", [](const auto& a, const auto& b) { return a + reduce_max(b, {0}) * 2.0; }},
      {"layout",
       [](const auto& a, const auto& b) {
         return reverse(pad(slice(transpose(a), {1, 0}, {4, 3}, {2, 1}), {1, 0}, {0, 2}, 5), {1}) +
                sum(reshape(b, {12}));
       }},
      {"concatenate",
       [&](const auto& a, const auto& b) {
         return concatenate({a, shared_, b}, 1);
       }},
      {"product", [](const auto& a, const auto& b) { return einsum("ij,kj->ik", a, b); }},
      {"product with a shared one",
       [&](const auto& a, const auto& b) {
         return einsum("ij,kj->ik", shared_, a) + einsum("ij,kj->ik", b, shared_);
       }},
      {"rows of a shared table",
       [&](const auto& a, const auto&) { return take(table_, ids(a, 9), 0); }},
      {"columns of a shared table",
       [&](const auto& a, const auto&) { return take(table_, ids(a, 3), 1); }},
      {"shared rows", [&](const auto& a, const auto&) { return take(a, ids(shared_, 4), 1); }},
      {"own elements",
       [](const auto& a, const auto& b) {
         return take_along(b, convert(rem(a, 3), DType::i32), 0);
       }},
      {"orders",
       [](const auto& a, const auto& b) {
         return convert(argsort(rem(a * b, 5), 1), DType::f32) + cumsum(b, 0);
       }},
      {"first places",
       [](const auto& a, const auto&) { return convert(argmax(rem(a, 5), 1), DType::f32); }},
      {"a scan",
       [&](const auto& a, const auto& b) {
         const auto [last, all] = scan(
             [&](const Tensor& h, const std::pair<Tensor, Tensor>& row) {
               const Tensor next = rem(h * 2.0 + row.first - row.second, 11);
               return std::pair(next, std::pair(next, row.second));
             },
             shared_[0], std::pair(a, shared_));
         return all.first + all.second + last + b;
       }},
      {"a vmap",
       [](const auto& a, const auto& b) {
         return vmap([](const Tensor& r, const Tensor& s) { return r * sum(s); }, a, b);
       }},
  };
  for (const Case& c : cases) {
    const auto loss = [](const Tensor& made) {
      return sum(made * rem(full_like(made, 1) * 3.0 + iota(made, made.type(), 0), 7));
    };
    Tensor x = x_ * 1.0, y = y_ * 1.0;
    mark_sharding(x, {"d", {}, {}});
    const Tensor found = vmap(c.of, x, y);
    std::vector<Tensor> parts;
    for (std::int64_t i = 0; i < 5; ++i) parts.push_back(c.of(x[i], y[i]));
    const Tensor expected = stack(parts);
    const std::vector<Tensor> gradients = grad(loss(found), {x, y, shared_});
    const std::vector<Tensor> expected_gradients = grad(loss(expected), {x, y, shared_});
    tracer_.mark_step();
    EXPECT_EQ(found.shape(), expected.shape()) << c.name;
    EXPECT_EQ(floats(found), floats(expected)) << c.name;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_EQ(floats(gradients[i]), floats(expected_gradients[i])) << c.name << ' ' << i;
    }
  }
}

TEST_F(Vmap, CutsMarksInItAsItsSlices) {
  Tensor x = x_;
  mark_sharding(x, {"d", {}, {}});
  const Tensor y = vmap(
      [](const Tensor& row) {
        Tensor doubled = row + row;
        mark_sharding(doubled, {{}, {}});
        return doubled;
      },
      x);
  tracer_.mark_step();
  EXPECT_EQ(y.placement()->sharding.spec(), (PartitionSpec{"d", {}, {}}));
}

TEST_F(Vmap, RefusesOperationsOfOneSliceAndExtentsThatDiffer) {
  const auto in_net = tracer_.scope("net");
  EXPECT_EQ(
      message_of(
          ErrorCode::unsupported,
          [&] {
            vmap([](const Tensor& row) { return random_bits(convert(sum(row), DType::u64), {2}); },
                 x_);
          }),
      "vmap in \"net\": found random_bits, needed an operation that works on all slices at once");
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument,
                 [&] { vmap([](const Tensor& a, const Tensor&) { return a; }, x_, shared_); }),
      "vmap(%3 f32[5, 3, 4], %6 f32[3, 4]) in \"net\": found xs[1] of f32[3, 4], needed 5 "
      "along dim 0, as xs[0] has");
}

}  // namespace
}  // namespace shardwise
