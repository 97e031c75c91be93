#include "shardwise/runtime/kernels/detail/einsum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/kernel_shards.h"
#include "shardwise/runtime/kernels/detail/contraction.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

using Extents = std::map<char, std::int64_t>;

Shape shape_of(const std::string& letters, const Extents& extents) {
  Shape shape;
  for (const char letter : letters) shape.push_back(extents.at(letter));
  return shape;
}

/// The part of an index of all letters that an operand's letters are.
Index index_of(const std::string& letters, const std::string& all, const Index& at) {
  Index index;
  for (const char letter : letters) index.push_back(at[all.find(letter)]);
  return index;
}

std::string letters_of(const Equation& equation) {
  std::string all = equation.result;
  for (const char letter : equation.lhs + equation.rhs) {
    if (all.find(letter) == std::string::npos) all += letter;
  }
  return all;
}

Numbers expected(const Equation& equation, const Extents& extents, const Numbers& lhs,
                 const Numbers& rhs) {
  const std::string all = letters_of(equation);
  Numbers result = zeros(shape_of(equation.result, extents));
  for_each_index(Box::whole(shape_of(all, extents)), [&](const Index& at) {
    result[index_of(equation.result, all, at)] +=
        lhs[index_of(equation.lhs, all, at)] * rhs[index_of(equation.rhs, all, at)];
  });
  return result;
}

/// The tensor as if its element 0 were at the box's begin.
TestShard placed_shard(DType dtype, const Numbers& numbers, RandomShardings& random) {
  TestShard shard(dtype, placed(numbers.shape, random));
  for (std::size_t i = 0; i < numbers.values.size(); ++i) {
    put_number(dtype, shard.target().data, i, numbers.values[i]);
  }
  return shard;
}

void check(const Equation& equation, const Extents& extents, DType dtype, RandomShardings& random) {
  SCOPED_TRACE(equation.to_string() + " " + std::string(name(dtype)) + " " +
               to_string(shape_of(letters_of(equation), extents)));
  const Numbers lhs = random_numbers(shape_of(equation.lhs, extents), -3, 3, random);
  const Numbers rhs = random_numbers(shape_of(equation.rhs, extents), -3, 3, random);
  const Numbers result = expected(equation, extents, lhs, rhs);
  TestShard out(dtype, placed(result.shape, random));
  einsum(equation, placed_shard(dtype, lhs, random), placed_shard(dtype, rhs, random),
         out.target());
  TestShard right(dtype, out.box());
  for (std::size_t i = 0; i < result.values.size(); ++i) {
    put_number(dtype, right.target().data, i, result.values[i]);
  }
  ASSERT_EQ(out, right);
}

/// Up to five letters, each of any kind, shuffled in each operand.
Equation random_equation(RandomShardings& random) {
  Equation equation;
  const std::int64_t letters = random.draw(0, 5);
  for (std::int64_t i = 0; i < letters; ++i) {
    const char letter = static_cast<char>('a' + i);
    const std::int64_t absent = random.draw(0, 3);
    if (absent != 0) equation.lhs += letter;
    if (absent != 1) equation.rhs += letter;
    if (absent != 2) equation.result += letter;
  }
  for (std::string* operand : {&equation.lhs, &equation.rhs, &equation.result}) {
    std::shuffle(operand->begin(), operand->end(), random.engine());
  }
  return equation;
}

DType random_number_type(RandomShardings& random) {
  for (;;) {
    const DType dtype = random_dtype(random);
    if (dtype != DType::boolean) return dtype;
  }
}

TEST(Einsum, RandomEquationsOfEveryTypeEqualTheLoopsOverAllLetters) {
  RandomShardings random(1);
  for (int round = 0; round < 3000; ++round) {
    const Equation equation = random_equation(random);
    const std::int64_t most = random.draw(1, 6);
    const std::int64_t least = random.draw(0, 9) == 0 ? 0 : 1;
    Extents extents;
    for (const char letter : letters_of(equation)) extents[letter] = random.draw(least, most);
    check(equation, extents, random_number_type(random), random);
    if (HasFatalFailure()) return;
  }
}

// Large enough for each way of carrying a product out: one matrix product, loops of them, sums of
// them, copies of what cannot be read or written in place.
TEST(Einsum, EquationsOfModelsEqualTheLoopsOverAllLetters) {
  RandomShardings random(2);
  const char* const equations[] = {
      "btd,df->btf",     "btf,df->btd", "btd,btf->df", "bthd,bshd->bhts", "bhts,bshd->bthd",
      "bhts,bthd->bshd", "td,d->t",     "t,td->d",     "t,d->td",         "td,td->td",
      "td,td->t",        "d,d->",       ",td->td",     "td,->dt",         "dtb,sdb->tsb",
      "dtb,sdb->bst",    "tbd,dbf->tf", "abc,cbd->ad", "abc,cbd->da",     "abc,bdc->dac",
      "tkg,skg->gts",    "btd,bd->tb",  "bd,b->db",    "bdtk,ktf->fbd",   "mkn,k->mn",
  };
  for (const char* text : equations) {
    const Equation equation = Equation::parse(text);
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::i32, DType::u8}) {
      for (int round = 0; round < 2; ++round) {
        Extents extents;
        const bool large = letters_of(equation).size() <= 4;
        for (const char letter : letters_of(equation)) {
          extents[letter] = random.draw(large ? 8 : 4, large ? 24 : 12);
        }
        check(equation, extents, dtype, random);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// As on a mesh: each device multiplies its parts, and parts of one element are added up.
TEST(Einsum, PartsOfAnyCutOfTheLettersAddUpToTheWhole) {
  RandomShardings random(3);
  for (int round = 0; round < 300; ++round) {
    const Equation equation = random_equation(random);
    const std::string all = letters_of(equation);
    Extents extents;
    for (const char letter : all) extents[letter] = random.draw(1, 7);
    const Numbers lhs = random_numbers(shape_of(equation.lhs, extents), -3, 3, random);
    const Numbers rhs = random_numbers(shape_of(equation.rhs, extents), -3, 3, random);
    Numbers sum = zeros(shape_of(equation.result, extents));
    const DType dtype = round % 2 == 0 ? DType::f32 : DType::i64;
    for (const Box& part : random_tiling(Box::whole(shape_of(all, extents)), 6, random)) {
      const auto cut = [&](const std::string& letters) {
        return Box(index_of(letters, all, part.begin()), index_of(letters, all, part.end()));
      };
      // An empty part is of no element; its letters in the result need not be empty.
      if (part.empty()) continue;
      TestShard out(dtype, cut(equation.result));
      einsum(equation, TestShard(dtype, cut(equation.lhs), lhs),
             TestShard(dtype, cut(equation.rhs), rhs), out.target());
      std::size_t element = 0;
      for_each_index(out.box(), [&](const Index& at) { sum[at] += out[element++]; });
    }
    ASSERT_EQ(sum.values, expected(equation, extents, lhs, rhs).values) << equation.to_string();
  }
}

TEST(Einsum, AnEmptySumIsZero) {
  RandomShardings random(4);
  for (const DType dtype : {DType::f32, DType::f16, DType::i8}) {
    check(Equation::parse("ab,bc->ac"), {{'a', 3}, {'b', 0}, {'c', 2}}, dtype, random);
    check(Equation::parse("a,a->"), {{'a', 0}}, dtype, random);
  }
}

TEST(Einsum, HalvesAreRoundedOnce) {
  // 2048 + 1 is not an f16, so rounding at every step would stay at 2048.
  RandomShardings random(5);
  const TestShard x(DType::f16, Box({0}, {4}), {{4}, {2048, 1, 1, 1}});
  const TestShard y(DType::f16, Box({0}, {4}), {{4}, {1, 1, 1, 1}});
  TestShard out(DType::f16, Box());
  einsum(Equation::parse("a,a->"), x, y, out.target());
  EXPECT_EQ(out[0], 2052);  // 2051 is a tie
}

TEST(Einsum, BooleanIsNotSupported) {
  const TestShard x(DType::boolean, Box({0}, {2}));
  TestShard out(DType::boolean, Box());
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] { einsum(Equation::parse("a,a->"), x, x, out.target()); }),
              HasSubstr("a,a->: the dtype is bool"));
}

detail::ContractionPlan plan_of(const char* text, const Extents& extents) {
  const Equation equation = Equation::parse(text);
  const auto box = [&](const std::string& letters) {
    return Box::whole(shape_of(letters, extents));
  };
  return detail::plan_gemm(detail::contraction_loops(equation, box(equation.lhs), box(equation.rhs),
                                                     box(equation.result)));
}

TEST(EinsumPlan, EquationsOfModelsPackNothingAndJoinTheirLetters) {
  const Extents extents{{'b', 2}, {'t', 128}, {'s', 96}, {'h', 4}, {'d', 32}, {'f', 512}};
  struct Case {
    const char* equation;
    std::int64_t m, n, k;
    std::size_t loops;  // around the matrix product, after joining
  };
  const Case cases[] = {
      {"btd,df->btf", 256, 512, 32, 0},    {"btf,df->btd", 256, 32, 512, 0},
      {"btd,btf->df", 32, 512, 256, 0},    {"bthd,bshd->bhts", 128, 96, 32, 2},
      {"bhts,bshd->bthd", 128, 32, 96, 2}, {"bhts,bthd->bshd", 96, 32, 128, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.equation);
    const detail::ContractionPlan plan = plan_of(c.equation, extents);
    EXPECT_TRUE(plan.is_gemm);
    EXPECT_THAT(plan.packed, ::testing::Each(false));
    EXPECT_EQ(plan.m.extent, c.m);
    EXPECT_EQ(plan.n.extent, c.n);
    EXPECT_EQ(plan.k.extent, c.k);
    EXPECT_EQ(plan.outer.size(), c.loops);
    EXPECT_EQ(plan.sums.size(), 0u);
  }
}

TEST(EinsumPlan, PacksWhatNoMatrixProductReadsOrWrites) {
  // The batch letter is innermost everywhere, or the letters that are summed over have another
  // order.
  const Extents extents{{'a', 64}, {'b', 64}, {'c', 64}, {'d', 64}};
  for (const char* equation : {"acb,cdb->adb", "abc,cbd->ad"}) {
    const detail::ContractionPlan plan = plan_of(equation, extents);
    EXPECT_TRUE(plan.is_gemm) << equation;
    EXPECT_GE(plan.m.extent * plan.n.extent * plan.k.extent, 64 * 64 * 64) << equation;
  }
}

TEST(Equation, ReadsWhatItWrites) {
  for (const char* text : {"btd,df->btf", "a,a->", ",->", "a,->a", ",aZ->Za"}) {
    EXPECT_EQ(Equation::parse(text).to_string(), text);
  }
  EXPECT_EQ(Equation::parse("ab,bc->ca"), (Equation{"ab", "bc", "ca"}));
}

TEST(Equation, RefusesOthers) {
  struct Case {
    const char* text;
    const char* problem;
  };
  const Case cases[] = {
      {"", "it is not two operands and a result"},
      {"ab->ab", "it is not two operands and a result"},
      {"ab,bc", "it is not two operands and a result"},
      {"a->b,c", "it is not two operands and a result"},
      {"a,b,c->abc", "',' is not a letter"},
      {"a b,b->a", "' ' is not a letter"},
      {"ab,bc->a->c", "'-' is not a letter"},
      {"aa,b->ab", "'a' comes twice in \"aa\""},
      {"a,bb->ab", "'b' comes twice in \"bb\""},
      {"a,b->aba", "'a' comes twice in \"aba\""},
      {"ab,bc->acd", "'d' is in the result alone"},
      {"abx,bc->ac", "'x' is in one operand alone"},
      {"ab,bcx->ac", "'x' is in one operand alone"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Equation::parse(c.text); }),
                HasSubstr("equation \"" + std::string(c.text) + "\": " + c.problem))
        << c.text;
  }
}

}  // namespace
}  // namespace shardwise
