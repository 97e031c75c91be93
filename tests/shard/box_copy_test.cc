#include "shardwise/shard/box_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(BoxCopy, AgreesWithElementByElementCopies) {
  RandomShardings random(2);
  const auto draw = [&](std::int64_t low, std::int64_t high) { return random.draw(low, high); };
  for (int round = 0; round < 4000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(draw(0, 4));
    const std::size_t bytes = static_cast<std::size_t>(draw(1, 9));
    Index begin, end, a_begin, a_end, b_begin, b_end;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      begin.push_back(draw(2, 4));
      end.push_back(begin[dim] + draw(0, 3));
      // Often no margin, so that dims join into longer runs.
      a_begin.push_back(begin[dim] - draw(0, 2) / 2);
      a_end.push_back(end[dim] + draw(0, 2) / 2);
      b_begin.push_back(begin[dim] - draw(0, 2) / 2);
      b_end.push_back(end[dim] + draw(0, 2) / 2);
    }
    const Box box(begin, end), a(a_begin, a_end), b(b_begin, b_end);
    std::vector<std::byte> from(num_bytes(a.shape(), bytes)), to(num_bytes(b.shape(), bytes));
    for (std::byte& byte : from) byte = static_cast<std::byte>(draw(1, 255));
    std::vector<std::byte> expected = to;
    for (const Index& at : indices_of(box)) {
      for (std::size_t i = 0; i < bytes; ++i) {
        expected[offset_in(b, at) * bytes + i] = from[offset_in(a, at) * bytes + i];
      }
    }
    copy_box(box, bytes, {from.data(), a}, {to.data(), b});
    ASSERT_EQ(to, expected) << to_string(box) << to_string(a) << to_string(b);

    if (box.empty()) continue;
    std::size_t first = offset_in(a, box.begin()), last = first;
    for (const Index& at : indices_of(box)) last = std::max(last, offset_in(a, at));
    const bool contiguous = last - first + 1 == static_cast<std::size_t>(box.num_elements());
    EXPECT_EQ(find_contiguous(box, bytes, {from.data(), a}),
              contiguous ? from.data() + first * bytes : nullptr)
        << to_string(box) << to_string(a);
  }
}

TEST(BoxCopy, JoinsWhatIsContiguousInBoth) {
  const struct {
    const char* name;
    Box box, a, b;
    std::int64_t run_elements, runs;
  } cases[] = {
      {"all", Box::whole({4, 5, 6}), Box::whole({4, 5, 6}), Box::whole({4, 5, 6}), 120, 1},
      {"rows of the same width", Box({1, 0}, {3, 6}), Box::whole({4, 6}), Box({1, 0}, {3, 6}), 12,
       1},
      {"rows of another width", Box({1, 0}, {3, 4}), Box::whole({4, 6}), Box({1, 0}, {3, 4}), 4, 2},
      {"middle dim cut", Box({0, 1, 0}, {4, 3, 6}), Box::whole({4, 5, 6}), Box::whole({4, 5, 6}),
       12, 4},
      {"outer loops join", Box({0, 0, 0}, {4, 5, 2}), Box::whole({4, 5, 6}), Box::whole({4, 5, 3}),
       2, 20},
      {"one column", Box({0, 2}, {4, 3}), Box::whole({4, 6}), Box({0, 2}, {4, 3}), 1, 4},
      {"column of columns", Box({0, 2}, {4, 3}), Box({0, 2}, {4, 3}), Box({0, 2}, {4, 3}), 4, 1},
      {"scalar", Box(), Box(), Box(), 1, 1},
      {"empty", Box({1}, {1}), Box::whole({2}), Box::whole({2}), 0, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const RunWalk walk = walk_runs(c.box, c.a, c.b);
    EXPECT_EQ(walk.run_elements, c.run_elements);
    std::int64_t runs = 0;
    for_each_run(walk, [&](std::int64_t, std::int64_t, std::int64_t count) {
      ++runs;
      EXPECT_EQ(count, c.run_elements);
    });
    EXPECT_EQ(runs, c.runs);
  }
  // A dim of one index is no loop.
  EXPECT_EQ(
      walk_runs(Box({2, 3, 0}, {3, 4, 2}), Box::whole({5, 7, 3}), Box::whole({5, 7, 3})).extents,
      Dims{});
  // Loops that step evenly are one loop.
  EXPECT_EQ(walk_runs(cases[4].box, cases[4].a, cases[4].b).extents, Dims{20});
}

TEST(BoxCopy, TakesTheGreatestRank) {
  const Shape shape = Shape::filled(kMaxRank, 2);
  const Box box(Index::filled(kMaxRank, 0), shape);
  const Box view(Index::filled(kMaxRank, 0), Index::filled(kMaxRank, 3));
  // Each dim has a margin in the view, so no two of them join.
  const RunWalk walk = walk_runs(box, view, box);
  EXPECT_EQ(walk.run_elements, 2);
  EXPECT_EQ(walk.extents, Dims::filled(kMaxRank - 1, 2));
}

TEST(BoxCopy, RefusesABoxOutsideAView) {
  const Box box({1, 1}, {3, 3});
  std::vector<std::byte> memory(16);
  for (const bool inside_a : {true, false}) {
    const Box a = inside_a ? Box::whole({4, 4}) : Box::whole({2, 4});
    const Box b = inside_a ? Box::whole({4, 2}) : Box::whole({4, 4});
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             copy_box(box, 1, {memory.data(), a}, {memory.data(), b});
                           }),
                AllOf(HasSubstr("[1:3, 1:3]"), HasSubstr(to_string(a)), HasSubstr(to_string(b))));
  }
}

}  // namespace
}  // namespace shardwise
