#include "shardwise/shard/torus/detail/torus_assignment.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/torus/detail/torus.h"

namespace shardwise {
namespace {

using AxisSet = std::uint32_t;  // bit p: physical axis p
static_assert(kMaxRank <= 32);

bool contains(AxisSet set, std::size_t axis) { return (set >> axis & 1) != 0; }

/// Calls found(set, size / product) for every set of axes whose product divides `size`, in lexical
/// order. Axes of size 1 are in no set. The product of all axes is the most sets that there can be.
template <class Found>
void for_each_divisor(const Shape& axes, std::int64_t size, const Found& found,
                      std::size_t axis = 0, AxisSet taken = 0) {
  while (axis < axes.size() && (axes[axis] == 1 || size % axes[axis] != 0)) ++axis;
  if (axis == axes.size() || size == 1) return found(taken, size);
  for_each_divisor(axes, size / axes[axis], found, axis + 1, taken | AxisSet{1} << axis);
  for_each_divisor(axes, size, found, axis + 1, taken);
}

/// The largest set of axes whose product is `size`, the first if there are several; empty if no set
/// has this product.
AxisSet whole_axes(const Shape& free, std::int64_t size) {
  AxisSet best = 0;
  for_each_divisor(free, size, [&best](AxisSet taken, std::int64_t left) {
    if (left == 1 && std::popcount(taken) > std::popcount(best)) best = taken;
  });
  return best;
}

/// One way to cut the torus for a logical axis, with the criteria that compare ways.
struct Cut {
  std::int64_t whole_product = 1;
  int whole_axes = 0;
  Dims factors;

  bool better_than(const Cut& other) const {
    if (whole_product != other.whole_product) return whole_product > other.whole_product;
    if (whole_axes != other.whole_axes) return whole_axes > other.whole_axes;
    return std::lexicographical_compare(other.factors.begin(), other.factors.end(), factors.begin(),
                                        factors.end());
  }
};

/// The best cut for a logical axis of this size that takes the axes in `whole` entirely and `left`
/// times as much of the others. Requires that such a cut exists.
///
/// Each prime of `left` goes to shared axes as often as they can take it; among them, as among the
/// others, to the first axis that can. The greatest common divisor does so for all primes at once.
/// How much the shared axes take follows from `left`, so it is no criterion between cuts that are
/// otherwise equally good.
Cut cut_with(AxisSet whole, std::int64_t left, const Shape& physical, const Dims& used) {
  Cut cut{.whole_axes = std::popcount(whole), .factors = Dims::filled(physical.size(), 1)};
  for (std::size_t p = 0; p < physical.size(); ++p) {
    if (contains(whole, p)) cut.whole_product *= cut.factors[p] = physical[p];
  }
  for (const bool shared : {true, false}) {
    for (std::size_t p = 0; p < physical.size(); ++p) {
      if (contains(whole, p) || (used[p] > 1) != shared) continue;
      cut.factors[p] = std::gcd(left, physical[p] / used[p]);
      left /= cut.factors[p];
    }
  }
  assert(left == 1);
  return cut;
}

/// `used`: how much of each physical axis is taken.
///
/// A cut that happens to take a further axis entirely is not counted as such here; but the set with
/// that axis is tried too, and wins.
Dims best_cut(const Shape& physical, const Dims& used, std::int64_t size) {
  Shape untouched = physical;
  for (std::size_t p = 0; p < physical.size(); ++p) {
    if (used[p] > 1) untouched[p] = 1;
  }
  std::optional<Cut> best;
  for_each_divisor(untouched, size, [&](AxisSet whole, std::int64_t left) {
    if (best && size / left < best->whole_product) return;
    Cut cut = cut_with(whole, left, physical, used);
    if (!best || cut.better_than(*best)) best = std::move(cut);
  });
  return best->factors;
}

TorusAssignment assign_splitting(const Shape& physical, const Shape& logical) {
  TorusAssignment result{{physical.size(), Dims::filled(logical.size(), 1)}};
  Dims used = Dims::filled(physical.size(), 1);
  for (std::size_t l = logical.size(); l-- > 0;) {
    if (logical[l] == 1) continue;
    const Dims factors = best_cut(physical, used, logical[l]);
    for (std::size_t p = 0; p < physical.size(); ++p) {
      result.factors[p][l] = factors[p];
      used[p] *= factors[p];
    }
  }
  return result;
}

[[noreturn]] void fail_whole(const Shape& physical, const Shape& logical, std::size_t axis,
                             const Shape& free) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("torus assignment: axis {} of logical mesh {} has size {}, which is no product "
                  "of whole axes of torus {} that are left ({}); needed is one, or leave to "
                  "split physical axes",
                  axis, to_string(logical), logical[axis], to_string(physical), to_string(free)));
}

/// Throws invalid_argument as assign_torus(); returns nothing if splitting may be tried instead.
std::optional<TorusAssignment> assign_whole(const Shape& physical, const Shape& logical,
                                            PhysicalAxes axes) {
  TorusAssignment result{{physical.size(), Dims::filled(logical.size(), 1)}};
  Shape free = physical;
  for (std::size_t l = logical.size(); l-- > 0;) {
    if (logical[l] == 1) continue;
    const AxisSet taken = whole_axes(free, logical[l]);
    if (taken == 0) {
      if (axes == PhysicalAxes::splittable) return std::nullopt;
      fail_whole(physical, logical, l, free);
    }
    for (std::size_t p = 0; p < physical.size(); ++p) {
      if (contains(taken, p)) result.factors[p][l] = std::exchange(free[p], 1);
    }
  }
  return result;
}

[[noreturn]] void fail_products(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "logical mesh: " + what);
}

void check_products(const Mesh& physical, std::span<const Axis> axes,
                    const TorusAssignment& assignment) {
  const std::vector<Dims>& factors = assignment.factors;
  if (factors.size() != physical.rank()) {
    fail_products(fmt::format("the assignment has {} physical axes; needed are {}", factors.size(),
                              physical.rank()));
  }
  std::vector<std::int64_t> products(axes.size(), 1);
  for (std::size_t p = 0; p < factors.size(); ++p) {
    const std::int64_t size = physical.axes()[p].size;
    if (factors[p].size() != axes.size() || num_elements(factors[p]) != size) {
      fail_products(
          fmt::format("physical axis {} has the factors {}; needed are {} with product {}", p,
                      to_string(factors[p]), axes.size(), size));
    }
    for (std::size_t l = 0; l < axes.size(); ++l) products[l] *= factors[p][l];
  }
  for (std::size_t l = 0; l < axes.size(); ++l) {
    if (products[l] == axes[l].size) continue;
    fail_products(fmt::format("axis {} has size {}, but its factors have the product {}", l,
                              axes[l].size, products[l]));
  }
}

}  // namespace

TorusAssignment assign_torus(const Shape& physical, const Shape& logical, PhysicalAxes axes) {
  for (const Shape& shape : {physical, logical}) {
    if (std::all_of(shape.begin(), shape.end(), [](std::int64_t size) { return size >= 1; })) {
      continue;
    }
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("torus assignment: logical mesh {} on torus {}; needed are sizes of at least 1",
                    to_string(logical), to_string(physical)));
  }
  const std::int64_t needed = num_elements(physical), found = num_elements(logical);
  if (needed != found) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("torus assignment: logical mesh {} has {} devices and torus {} has {}; "
                            "needed are equally many",
                            to_string(logical), found, to_string(physical), needed));
  }
  const auto whole = assign_whole(physical, logical, axes);
  return whole ? *whole : assign_splitting(physical, logical);
}

Mesh logical_mesh(const Mesh& physical, std::vector<Axis> axes, const TorusAssignment& assignment) {
  check_products(physical, axes, assignment);
  std::vector<DeviceId> ids;
  for (std::int64_t p = 0; p < physical.size(); ++p) ids.push_back(physical.device_at(p));
  return Mesh(std::move(axes), detail::laid_out(ids, assignment));
}

}  // namespace shardwise
