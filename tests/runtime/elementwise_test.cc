#include "shardwise/runtime/kernels/detail/elementwise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "elementwise_values.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/simd_targets.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;
using Operand = ElementwiseKernel::Operand;

/// Memory and how a shape's elements are found in it.
struct Strided {
  Elements memory;
  std::int64_t first = 0;  // element
  Dims strides;

  Operand operand() const {
    return {memory.bytes.data() + as_size(first) * size_bytes(memory.dtype), strides};
  }
};

/// The elements of the shape in row-major order.
Elements dense(const Strided& in, const Shape& shape) {
  const std::size_t bytes = size_bytes(in.memory.dtype);
  Elements out{in.memory.dtype, std::vector<std::byte>(as_size(num_elements(shape)) * bytes)};
  for (std::size_t i = 0; i < out.count(); ++i) {
    auto rest = static_cast<std::int64_t>(i);
    std::int64_t at = in.first;
    for (std::size_t dim = shape.size(); dim-- > 0; rest /= shape[dim]) {
      at += rest % shape[dim] * in.strides[dim];
    }
    std::memcpy(out.bytes.data() + i * bytes, in.memory.bytes.data() + as_size(at) * bytes, bytes);
  }
  return out;
}

/// Row-major, repeated along some dims, a part of a larger tensor, transposed, or backwards.
Strided random_strided(DType dtype, const Shape& shape, std::mt19937& random) {
  Strided in;
  Shape extents = shape;
  const auto kind = random() % 6;
  std::vector<std::size_t> order(shape.size());
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    order[dim] = dim;
    if ((kind == 1 && random() % 2 == 0) || kind == 2) extents[dim] = 1;
    if (kind == 3) extents[dim] += static_cast<std::int64_t>(random() % 3);
  }
  if (kind == 4) std::shuffle(order.begin(), order.end(), random);
  in.strides = Dims::filled(shape.size(), 0);
  std::int64_t stride = 1;
  for (std::size_t place = shape.size(); place-- > 0;) {
    const std::size_t dim = order[place];
    in.strides[dim] = extents[dim] == 1 && shape[dim] > 1 ? 0 : stride;
    stride *= extents[dim];
  }
  if (kind == 5 && !shape.empty()) {
    const std::size_t dim = random() % shape.size();
    in.first = (shape[dim] - 1) * in.strides[dim];
    in.strides[dim] *= -1;
  }
  in.memory = random_elements(dtype, as_size(stride), random);
  return in;
}

Shape random_shape(std::mt19937& random) {
  static constexpr std::int64_t kExtents[] = {1, 1, 2, 3, 5, 8, 17, 32, 100, 600, 1100, 5000};
  Shape shape;
  std::int64_t count = 1;
  for (std::size_t rank = random() % 5; shape.size() < rank;) {
    const std::int64_t extent = kExtents[random() % std::size(kExtents)];
    shape.push_back(count * extent > 20000 ? 1 : extent);
    count *= shape[shape.size() - 1];
  }
  return shape;
}

/// A kernel and its parts.
struct Chain {
  std::vector<ElementwiseInput> inputs;
  std::vector<ElementwiseInstruction> instructions;
  std::vector<std::int32_t> outputs;

  DType dtype(std::int32_t operand) const {
    const std::size_t i = as_size(operand);
    return i < inputs.size() ? inputs[i].dtype : instructions[i - inputs.size()].dtype;
  }
  std::int32_t operands() const {
    return static_cast<std::int32_t>(inputs.size() + instructions.size());
  }
  ElementwiseKernel kernel() const { return {inputs, instructions, outputs}; }
};

template <class Array>
auto any_of_array(const Array& array, std::mt19937& random) {
  return array[random() % std::size(array)];
}

/// An instruction on operands that are there, where the op drawn fits them.
std::optional<ElementwiseInstruction> random_instruction(const Chain& chain, std::mt19937& random) {
  const auto draw = [&] { return static_cast<std::int32_t>(random()) % chain.operands(); };
  const std::int32_t a = std::abs(draw()), b = std::abs(draw()), c = std::abs(draw());
  const DType of = chain.dtype(a);
  switch (random() % 6) {
    case 0:
      return ElementwiseInstruction{Op::convert, any_of_array(compute_dtypes(), random), {a}};
    case 1:
      return ElementwiseInstruction{Op::constant, any_of_array(compute_dtypes(), random), {}, 1.3};
    case 2:
      if (chain.dtype(c) != DType::boolean || chain.dtype(b) != of) return std::nullopt;
      return ElementwiseInstruction{Op::select, of, {c, a, b}};
    case 3: {
      const Op op = random() % 8 == 0 ? Op::identity : any_of_array(kUnaryOps, random);
      if (!ElementwiseKernel::supports(op, of)) return std::nullopt;
      return ElementwiseInstruction{op, result_of(op, of), {a}};
    }
    default: {
      const Op op = any_of_array(kBinaryOps, random);
      if (chain.dtype(b) != of || !ElementwiseKernel::supports(op, of)) return std::nullopt;
      return ElementwiseInstruction{op, result_of(op, of), {a, b}};
    }
  }
}

Chain random_chain(std::mt19937& random) {
  static constexpr DType kDTypes[] = {DType::f32, DType::f32,  DType::bf16, DType::f16,
                                      DType::f64, DType::i32,  DType::u8,   DType::boolean,
                                      DType::f32, DType::bf16, DType::i64,  DType::i16};
  Chain chain;
  const std::size_t inputs = random() % 4, instructions = 1 + random() % 14;
  while (chain.inputs.size() < inputs) chain.inputs.push_back({any_of_array(kDTypes, random)});
  if (inputs == 0) chain.instructions.push_back({Op::constant, DType::f32, {}, -0.7});
  while (chain.instructions.size() < instructions) {
    if (auto next = random_instruction(chain, random)) chain.instructions.push_back(*next);
  }
  for (std::size_t i = 1 + random() % 3; i > 0; --i) {
    const auto recent = static_cast<std::int32_t>(random() % 4);
    chain.outputs.push_back(std::max(0, chain.operands() - 1 - recent));
  }
  return chain;
}

/// All operands of a chain, each computed by a kernel of its own.
std::vector<Elements> one_by_one(const Chain& chain, std::vector<Elements> operands,
                                 std::size_t count) {
  for (const ElementwiseInstruction& instruction : chain.instructions) {
    std::vector<const Elements*> sources;
    for (const std::int32_t operand : instruction.operands) {
      sources.push_back(&operands[as_size(operand)]);
    }
    operands.push_back(run_one(instruction, sources, count));
  }
  return operands;
}

std::string describe(const Chain& chain) {
  std::string text;
  for (const ElementwiseInput& input : chain.inputs) text += std::string(name(input.dtype)) + " ";
  for (const ElementwiseInstruction& instruction : chain.instructions) {
    text += "| " + std::string(name(instruction.op)) + ":" + std::string(name(instruction.dtype));
    for (const std::int32_t operand : instruction.operands) text += " " + std::to_string(operand);
  }
  text += " ->";
  for (const std::int32_t output : chain.outputs) text += " " + std::to_string(output);
  return text;
}

void expect_same(const Elements& found, const Elements& expected) {
  ASSERT_EQ(found.bytes.size(), expected.bytes.size());
  for (std::size_t i = 0; i < found.count(); ++i) {
    ASSERT_TRUE(same_element(found, expected, i))
        << "element " << i << ": " << std::hex << bits_at(found, i) << ", not "
        << bits_at(expected, i);
  }
}

// Fusing changes no bits, wherever operands are.
TEST(ElementwiseKernel, GivesWhatItsInstructionsGiveOneByOne) {
  std::mt19937 random(5);
  for (int round = 0; round < 1500; ++round) {
    const Chain chain = random_chain(random);
    const Shape shape = random_shape(random);
    SCOPED_TRACE(testing::Message()
                 << "round " << round << ": " << describe(chain) << ", " << to_string(shape));
    std::vector<Strided> inputs;
    std::vector<Operand> operands;
    std::vector<Elements> dense_inputs;
    for (const ElementwiseInput& input : chain.inputs) {
      inputs.push_back(random_strided(input.dtype, shape, random));
      dense_inputs.push_back(dense(inputs.back(), shape));
    }
    for (const Strided& input : inputs) operands.push_back(input.operand());
    const std::size_t count = as_size(num_elements(shape));
    const auto expected = one_by_one(chain, dense_inputs, count);
    std::vector<Elements> found;
    std::vector<std::byte*> to;
    for (const std::int32_t output : chain.outputs) {
      const DType dtype = chain.dtype(output);
      found.push_back({dtype, std::vector<std::byte>(count * size_bytes(dtype) + 64)});
    }
    for (Elements& output : found) to.push_back(output.bytes.data());
    chain.kernel().run(shape, operands, to);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::size_t end = count * size_bytes(found[i].dtype);
      for (std::size_t b = end; b < found[i].bytes.size(); ++b) {
        ASSERT_EQ(found[i].bytes[b], std::byte{0}) << "beyond the output";
      }
      found[i].bytes.resize(end);
      ASSERT_NO_FATAL_FAILURE(expect_same(found[i], expected[as_size(chain.outputs[i])]));
    }
  }
}

TEST(ElementwiseKernel, WritesOverItsInputs) {
  std::mt19937 random(6);
  for (int round = 0; round < 1500; ++round) {
    const Chain chain = random_chain(random);
    const std::size_t count = 1 + random() % 5000;
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << describe(chain));
    std::vector<Elements> inputs;
    for (const ElementwiseInput& input : chain.inputs) {
      inputs.push_back(random_elements(input.dtype, count, random));
    }
    const auto expected = one_by_one(chain, inputs, count);
    // Each output goes to an input of its width that no other output has, or else elsewhere.
    std::vector<Elements> elsewhere(chain.outputs.size());
    std::vector<std::byte*> to;
    std::vector<Operand> operands;
    for (const Elements& input : inputs) operands.push_back({input.bytes.data(), {1}});
    for (std::size_t i = 0; i < chain.outputs.size(); ++i) {
      const DType dtype = chain.dtype(chain.outputs[i]);
      elsewhere[i] = {dtype, std::vector<std::byte>(count * size_bytes(dtype))};
      std::byte* place = elsewhere[i].bytes.data();
      for (Elements& input : inputs) {
        const bool taken = std::find(to.begin(), to.end(), input.bytes.data()) != to.end();
        if (!taken && size_bytes(input.dtype) == size_bytes(dtype)) place = input.bytes.data();
      }
      to.push_back(place);
    }
    chain.kernel().run({static_cast<std::int64_t>(count)}, operands, to);
    for (std::size_t i = 0; i < to.size(); ++i) {
      std::memcpy(elsewhere[i].bytes.data(), to[i], elsewhere[i].bytes.size());
      ASSERT_NO_FATAL_FAILURE(expect_same(elsewhere[i], expected[as_size(chain.outputs[i])]));
    }
  }
}

TEST(ElementwiseKernel, SwapsTwoArraysInPlace) {
  std::vector<float> x(3000, 1), y(3000, 2);
  const ElementwiseKernel swap({{DType::f32}, {DType::f32}}, {}, {1, 0});
  std::byte* const to[] = {reinterpret_cast<std::byte*>(x.data()),
                           reinterpret_cast<std::byte*>(y.data())};
  const Operand operands[] = {{to[0], {1}}, {to[1], {1}}};
  swap.run({3000}, operands, to);
  EXPECT_EQ(x, std::vector<float>(3000, 2));
  EXPECT_EQ(y, std::vector<float>(3000, 1));
}

// The place of a cut, and so the rest after whole vectors and tiles, changes no bits.
TEST(ElementwiseKernel, GivesEachElementTheSameBitsHoweverTheArrayIsCut) {
  on_each_target([] {
    std::mt19937 random(7);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
      std::vector<ElementwiseInstruction> instructions;
      std::vector<std::int32_t> outputs;
      for (const Op op : kUnaryOps) {
        if (!ElementwiseKernel::supports(op, dtype)) continue;
        instructions.push_back({op, result_of(op, dtype), {0}});
        outputs.push_back(static_cast<std::int32_t>(1 + instructions.size()));
      }
      for (const Op op : kBinaryOps) {
        if (!ElementwiseKernel::supports(op, dtype)) continue;
        instructions.push_back({op, result_of(op, dtype), {0, 1}});
        outputs.push_back(static_cast<std::int32_t>(1 + instructions.size()));
      }
      const ElementwiseKernel kernel({{dtype}, {dtype}}, instructions, outputs);
      constexpr std::size_t kCount = 3000;
      const Elements a = random_elements(dtype, kCount, random);
      const Elements b = random_elements(dtype, kCount, random);
      const auto run = [&](std::size_t begin, std::size_t end) {
        std::vector<Elements> out;
        std::vector<std::byte*> to;
        for (const ElementwiseInstruction& instruction : instructions) {
          out.push_back({instruction.dtype,
                         std::vector<std::byte>((end - begin) * size_bytes(instruction.dtype))});
        }
        for (Elements& elements : out) to.push_back(elements.bytes.data());
        const std::size_t first = begin * size_bytes(dtype);
        const Operand operands[] = {{a.bytes.data() + first, {1}}, {b.bytes.data() + first, {1}}};
        kernel.run({static_cast<std::int64_t>(end - begin)}, operands, to);
        return out;
      };
      const auto whole = run(0, kCount);
      for (std::size_t cut = 0; cut < 60; ++cut) {
        const std::size_t begin = random() % kCount;
        const std::size_t end =
            begin + 1 + random() % std::min(kCount - begin, 1 + cut * kCount / 60);
        const auto part = run(begin, end);
        for (std::size_t i = 0; i < whole.size(); ++i) {
          const std::size_t bytes = size_bytes(whole[i].dtype);
          ASSERT_TRUE(
              std::equal(part[i].bytes.begin(), part[i].bytes.end(),
                         whole[i].bytes.begin() + static_cast<std::ptrdiff_t>(begin * bytes)))
              << name(instructions[i].op) << " of " << name(dtype) << ", " << begin << " to "
              << end;
        }
      }
    }
  });
}

TEST(ElementwiseKernel, ComputesNothingForAnEmptyShape) {
  const ElementwiseKernel kernel({{DType::f32}}, {{Op::neg, DType::f32, {0}}}, {1});
  const Operand operands[] = {{nullptr, {5, 1}}};
  std::byte* const to[] = {nullptr};
  kernel.run({0, 5}, operands, to);
}

TEST(ElementwiseKernel, RoundsAConstantToItsDType) {
  for (const DType dtype : compute_dtypes()) {
    const ElementwiseKernel kernel({}, {{Op::constant, dtype, {}, -3.3}}, {0});
    const double numbers[] = {-3.3, -3.3, -3.3};
    const Elements expected = elements_of(dtype, numbers);
    Elements found{dtype, std::vector<std::byte>(expected.bytes.size())};
    std::byte* const to[] = {found.bytes.data()};
    kernel.run({3}, {}, to);
    EXPECT_EQ(found.bytes, expected.bytes) << name(dtype);
  }
}

TEST(ElementwiseKernel, RunsOnManyThreadsAtOnce) {
  std::mt19937 random(8);
  const ElementwiseKernel kernel(
      {{DType::f32}, {DType::f32}},
      {{Op::add, DType::f32, {0, 1}}, {Op::exp, DType::f32, {2}}, {Op::mul, DType::f32, {2, 3}}},
      {4});
  const Elements x = random_elements(DType::f32, 20000, random);
  const Elements bias = random_elements(DType::f32, 100, random);
  const Operand operands[] = {{x.bytes.data(), {100, 1}}, {bias.bytes.data(), {0, 1}}};
  std::vector<Elements> out(8, {DType::f32, std::vector<std::byte>(x.bytes.size())});
  Executor(4).parallel_for(8, [&](std::int64_t i) {
    std::byte* const to[] = {out[as_size(i)].bytes.data()};
    kernel.run({200, 100}, operands, to);
  });
  for (const Elements& one : out) EXPECT_TRUE(one.bytes == out[0].bytes);
}

TEST(ElementwiseKernel, SaysWhatIsWrongWithAnInstruction) {
  struct Case {
    ErrorCode code;
    std::vector<ElementwiseInstruction> instructions;
    const char* message;
  };
  const Case cases[] = {
      {ErrorCode::unsupported,
       {{Op::neg, DType::i32, {1}}, {Op::exp, DType::i32, {1}}},
       "instruction 1, exp: it is not defined for i32; needed is a floating type"},
      {ErrorCode::unsupported,
       {{Op::add, DType::boolean, {2, 2}}},
       "instruction 0, add: it is not defined for bool; needed is a number"},
      {ErrorCode::unsupported,
       {{Op::logical_not, DType::f32, {0}}},
       "logical_not: it is not defined for f32; needed is an integer or bool"},
      {ErrorCode::unsupported,
       {{Op::transpose, DType::f32, {0}}},
       "instruction 0, transpose: it is not an elementwise op"},
      {ErrorCode::invalid_argument,
       {{Op::add, DType::f32, {0}}},
       "add: it has 1 operands; needed are 2"},
      {ErrorCode::invalid_argument,
       {{Op::neg, DType::f32, {3}}},
       "neg: operand 3 is not there; before it there are 3"},
      {ErrorCode::invalid_argument, {{Op::neg, DType::f32, {-1}}}, "operand -1 is not there"},
      {ErrorCode::invalid_argument,
       {{Op::add, DType::f32, {1, 0}}},
       "add: operand 1 is i32; needed is f32"},
      {ErrorCode::invalid_argument,
       {{Op::select, DType::f32, {0, 0, 0}}},
       "select: operand 0 is f32; needed is bool"},
      {ErrorCode::invalid_argument,
       {{Op::lt, DType::f32, {0, 0}}},
       "lt: its result is f32; needed is bool"},
      {ErrorCode::invalid_argument,
       {{Op::neg, DType::f16, {0}}},
       "neg: its result is f16; needed is f32"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(message_of(c.code,
                           [&] {
                             ElementwiseKernel({{DType::f32}, {DType::i32}, {DType::boolean}},
                                               c.instructions, {0});
                           }),
                HasSubstr(c.message));
  }
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [] { ElementwiseKernel({{DType::f32}}, {}, {1}); }),
      HasSubstr("output 1 is not there; there are 1 operands"));
}

TEST(ElementwiseKernel, SaysWhichOperandsDoNotFitARun) {
  const ElementwiseKernel kernel({{DType::f32}}, {{Op::neg, DType::f32, {0}}}, {1});
  std::vector<std::byte> memory(16);
  const Operand flat[] = {{memory.data(), {1}}};
  std::byte* const to[] = {memory.data()};
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { kernel.run({4}, {}, to); }),
              HasSubstr("0 inputs and 1 outputs; needed are 1 and 1"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           kernel.run({2, 2}, flat, to);
                         }),
              HasSubstr("strides [1] for the shape [2, 2]"));
}

}  // namespace
}  // namespace shardwise
