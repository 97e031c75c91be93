#include "shardwise/shard/torus/detail/torus_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "testing/devices_of.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Factors = std::vector<Dims>;

std::vector<Axis> unnamed_axes(const Shape& sizes) {
  std::vector<Axis> axes;
  for (const std::int64_t size : sizes) axes.push_back({"", size});
  return axes;
}

TEST(TorusAssignment, TakesWholeAxes) {
  const struct {
    Shape torus, mesh;
    Factors factors;
  } cases[] = {
      {{4, 4, 8}, {16, 8}, {{4, 1}, {4, 1}, {1, 8}}},
      {{2, 2, 1}, {1, 1, 4}, {{1, 1, 2}, {1, 1, 2}, {1, 1, 1}}},
      {{2, 2, 4}, {1, 4, 4}, {{1, 1, 2}, {1, 1, 2}, {1, 4, 1}}},
      {{4, 4, 4}, {1, 16, 4}, {{1, 1, 4}, {1, 4, 1}, {1, 4, 1}}},
      {{4, 4, 8}, {1, 8, 16}, {{1, 1, 4}, {1, 1, 4}, {1, 8, 1}}},
      {{4, 8, 8}, {1, 32, 8}, {{1, 4, 1}, {1, 1, 8}, {1, 8, 1}}},
      {{8, 8, 1}, {8, 8}, {{1, 8}, {8, 1}, {1, 1}}},
      {{6}, {6, 1}, {{6, 1}}},
      {{1, 1}, {1}, {{1}, {1}}},
      {{1, 1}, {}, {{}, {}}},
      {{}, {1}, {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(to_string(c.torus) + " as " + to_string(c.mesh));
    EXPECT_EQ(assign_torus(c.torus, c.mesh).factors, c.factors);
    EXPECT_EQ(assign_torus(c.torus, c.mesh, PhysicalAxes::splittable).factors, c.factors);
  }
}

TEST(TorusAssignment, CutsAxesWhereWholeOnesDoNotDo) {
  const struct {
    Shape torus, mesh;
    Factors factors;
  } cases[] = {
      {{4, 4, 4}, {2, 1, 32}, {{1, 1, 4}, {1, 1, 4}, {2, 1, 2}}},
      {{4, 4, 4}, {8, 8, 1}, {{1, 4, 1}, {2, 2, 1}, {4, 1, 1}}},
      {{4, 4, 8}, {2, 2, 8, 4}, {{1, 1, 1, 4}, {2, 2, 1, 1}, {1, 1, 8, 1}}},
      {{4, 4, 8}, {2, 4, 1, 16}, {{1, 1, 1, 4}, {1, 1, 1, 4}, {2, 4, 1, 1}}},
      {{8, 8, 1}, {2, 1, 32, 1}, {{1, 1, 8, 1}, {2, 1, 4, 1}, {1, 1, 1, 1}}},
      // Sizes with two different primes, which libraries have taken for one.
      {{5, 4}, {2, 10}, {{1, 5}, {2, 2}}},
      {{14, 15}, {10, 21}, {{2, 7}, {5, 3}}},
      {{22, 26}, {13, 44}, {{1, 22}, {13, 2}}},
      // A second cut goes to an axis that is cut already rather than to an untouched one.
      {{4, 4, 4}, {4, 2, 8}, {{1, 1, 4}, {1, 2, 2}, {4, 1, 1}}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(to_string(c.torus) + " as " + to_string(c.mesh));
    EXPECT_EQ(assign_torus(c.torus, c.mesh, PhysicalAxes::splittable).factors, c.factors);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { assign_torus(c.torus, c.mesh); }),
                AllOf(HasSubstr(to_string(c.torus)), HasSubstr(to_string(c.mesh))));
  }
}

/// Calls `found` with every list of divisors of `free` whose product is `size`.
void enumerate(const Dims& free, std::int64_t size, Dims chosen,
               const std::function<void(const Dims&)>& found) {
  const std::size_t axis = chosen.size();
  if (axis == free.size()) {
    if (size == 1) found(chosen);
    return;
  }
  chosen.push_back(1);
  for (std::int64_t part = 1; part <= free[axis]; ++part) {
    if (free[axis] % part != 0 || size % part != 0) continue;
    chosen[axis] = part;
    enumerate(free, size / part, chosen, found);
  }
}

/// Merit of a way to cut the torus: a larger one is preferred.
auto merit(const Dims& cut, const Shape& torus, const Dims& used) {
  std::int64_t whole = 1, count = 0, shared = 1;
  for (std::size_t p = 0; p < torus.size(); ++p) {
    if (cut[p] == torus[p] && cut[p] > 1) whole *= cut[p], ++count;
    if (used[p] > 1) shared *= cut[p];
  }
  return std::tuple(whole, count, shared, std::vector(cut.begin(), cut.end()));
}

/// The rules of the header, taken literally. `whole` leaves the torus's axes in one piece.
std::optional<Factors> by_enumeration(const Shape& torus, const Shape& mesh, bool whole) {
  Factors factors(torus.size(), Dims::filled(mesh.size(), 1));
  Dims used = Dims::filled(torus.size(), 1);
  for (std::size_t l = mesh.size(); l-- > 0;) {
    Dims free = torus;
    for (std::size_t p = 0; p < torus.size(); ++p) free[p] /= used[p];
    std::optional<Dims> best;
    enumerate(free, mesh[l], {}, [&](const Dims& cut) {
      int axes = 0, best_axes = 0;
      for (std::size_t p = 0; p < torus.size(); ++p) {
        if (whole && cut[p] > 1 && cut[p] != torus[p]) return;
        axes += cut[p] > 1;
        best_axes += best && (*best)[p] > 1;
      }
      // The first of equally large sets counts: that with larger factors in front.
      const bool better = !best || (whole ? std::pair(axes, merit(cut, torus, used)) >
                                                std::pair(best_axes, merit(*best, torus, used))
                                          : merit(cut, torus, used) > merit(*best, torus, used));
      if (better) best = cut;
    });
    if (!best) return std::nullopt;
    for (std::size_t p = 0; p < torus.size(); ++p) {
      factors[p][l] = (*best)[p];
      used[p] *= (*best)[p];
    }
  }
  return factors;
}

TEST(TorusAssignment, IsTheBestOfAll) {
  std::mt19937 random(5);
  const std::int64_t sizes[] = {1, 2, 2, 3, 4, 4, 5, 6, 8, 9, 10, 12, 16, 18, 20, 30, 49, 77};
  int split = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    Shape torus;
    for (std::size_t p = random() % 5; p > 0; --p) {
      const std::int64_t size = sizes[random() % 18];
      if (num_elements(torus) * size <= 1000) torus.push_back(size);
    }
    // The primes of all axes, dealt out to the axes of the mesh.
    Shape mesh = Shape::filled(1 + random() % 4, 1);
    for (std::int64_t size : torus) {
      for (std::int64_t prime = 2; size > 1; ++prime) {
        for (; size % prime == 0; size /= prime) mesh[random() % mesh.size()] *= prime;
      }
    }
    SCOPED_TRACE(to_string(torus) + " as " + to_string(mesh));
    std::optional<Factors> expected = by_enumeration(torus, mesh, true);
    if (expected) {
      EXPECT_EQ(assign_torus(torus, mesh).factors, *expected);
    } else {
      EXPECT_THROW(assign_torus(torus, mesh), Error);
      expected = by_enumeration(torus, mesh, false);
      ++refused;
    }
    const TorusAssignment found = assign_torus(torus, mesh, PhysicalAxes::splittable);
    ASSERT_TRUE(expected);
    EXPECT_EQ(found.factors, *expected);

    const Mesh logical = logical_mesh(Mesh(unnamed_axes(torus)), unnamed_axes(mesh), found);
    std::vector<DeviceId> ids = devices_of(logical);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, devices_of(Mesh::line(num_elements(torus))));
    ++split;
  }
  EXPECT_GT(refused, 300);
  EXPECT_GT(split - refused, 300);
}

TEST(TorusAssignment, NeedsNoTimeForLargeTori) {
  const std::int64_t huge = std::int64_t{1} << 20;
  const Shape torus{huge, huge, huge};
  EXPECT_EQ(assign_torus(torus, {huge / 2, huge * 4, huge / 2}, PhysicalAxes::splittable).factors,
            (Factors{{1, 2, huge / 2}, {1, huge, 1}, {huge / 2, 2, 1}}));
  const std::int64_t prime = (std::int64_t{1} << 31) - 1;
  EXPECT_EQ(assign_torus({prime, 2, prime}, {2 * prime, prime}).factors,
            (Factors{{1, prime}, {2, 1}, {prime, 1}}));
  const Shape twos = Shape::filled(16, 2);
  EXPECT_EQ(assign_torus(twos, twos).factors[0][15], 2);
  EXPECT_EQ(assign_torus(Shape::filled(15, 16), Shape::filled(15, 16)).factors[14][0], 16);
  EXPECT_EQ(assign_torus(Shape::filled(15, 16), {std::int64_t{1} << 30, std::int64_t{1} << 30},
                         PhysicalAxes::splittable)
                .factors[7],
            (Dims{4, 4}));
}

TEST(TorusAssignment, RefusesWhatDoesNotFit) {
  const struct {
    Shape torus, mesh;
    const char* message;
  } cases[] = {
      {{4, 4}, {8}, "[8] has 8 devices and torus [4, 4] has 16"},
      {{4, 4}, {4, 4, 2}, "[4, 4, 2] has 32 devices"},
      {{4, 0}, {0}, "at least 1"},
      {{4}, {-4, -1}, "mesh [-4, -1] on torus [4]; needed are sizes of at least 1"},
      {{4, 4, 4}, {2, 32}, "axis 1 of logical mesh [2, 32] has size 32"},
      {{4, 4, 4}, {8, 2, 4}, "that are left ([1, 4, 4])"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { assign_torus(c.torus, c.mesh); }),
                HasSubstr(c.message));
  }
}

TEST(LogicalMesh, PutsTheLastAxisOnTheNearestNeighbours) {
  const Mesh line = Mesh::line(12);
  const Mesh mesh = logical_mesh(line, {{"a", 4}, {"b", 3}}, {{{4, 3}}});
  EXPECT_EQ(mesh, Mesh({{"a", 4}, {"b", 3}}));
  // Within a logical axis the first physical axis is the slowest.
  const Mesh torus({{"x", 2}, {"y", 4}}, {10, 11, 12, 13, 20, 21, 22, 23});
  EXPECT_THAT(devices_of(logical_mesh(torus, unnamed_axes({2, 4}), {{{1, 2}, {2, 2}}})),
              ElementsAre(10, 11, 20, 21, 12, 13, 22, 23));
}

TEST(LogicalMesh, RefusesFactorsThatAreNotThoseOfTheAxes) {
  const Mesh torus({{"x", 2}, {"y", 4}});
  const struct {
    const char* name;
    Factors factors;
    const char* message;
  } cases[] = {
      {"no physical axes", {}, "0 physical axes; needed are 2"},
      {"a logical axis too few", {{2}, {4}}, "factors [2]; needed are 2 with product 2"},
      {"product of a physical axis", {{2, 1}, {1, 2}}, "physical axis 1 has the factors [1, 2]"},
      {"zero", {{0, 2}, {1, 4}}, "[0, 2]"},
      {"product of a logical axis", {{2, 1}, {2, 2}}, "axis 0 has size 2, but"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             logical_mesh(torus, {{"a", 2}, {"b", 4}}, {c.factors});
                           }),
                HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace shardwise
