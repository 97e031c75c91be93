#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"
#include "trial.h"

// The text of a graph is read again as the same graph; every random program is, too
// (random_programs_test.cc).

namespace shardwise {
namespace {

using testing::HasSubstr;

NodeRef input(GraphBuilder& graph, const TensorType& type, std::string_view label,
              MemoryKind kind = MemoryKind::array) {
  return {&graph, append_input(graph, type, label, kind)};
}

TEST(GraphText, SaysWhatIsNotAsUsual) {
  GraphBuilder graph;
  const NodeRef w = input(graph, {DType::f32, {4}}, "w", MemoryKind::parameter);
  graph.scopes = {"", "layer0", "loss"};
  graph.scope = 1;
  const auto block = [](const NodeRef& x) {
    return checkpoint_name(neg(checkpoint_name(exp(x), "kept")), "not kept");
  };
  const NodeRef y = checkpoint(block, w, {.save_names = {"kept"}});
  graph.scope = 2;
  const NodeRef loss = reduce_sum(y, {0});
  graph.node(y.id).mark = PartitionSpec{"data"};
  graph.node(loss.id).mark = PartitionSpec{};
  graph.outputs = {loss.id, grad(graph, loss.id, std::vector<NodeId>{w.id})[0]};
  EXPECT_EQ(dump(graph),
            "%0 = input() \"w\" : f32[4] kind=parameter\n"
            "%1 = exp(%0) : f32[4] block=1 saved  # layer0\n"
            "%2 = neg(%1) : f32[4] marked data block=1  # layer0\n"
            "%3 = reduce_sum(%2) dims=[0] : f32[] marked \"\"  # loss\n"
            "%4 = constant() 1 : f32[] backward  # loss\n"
            "%5 = broadcast(%4) : f32[4] backward  # loss\n"
            "%6 = neg(%5) : f32[4] backward  # layer0\n"
            "%7 = mul(%6, %1) : f32[4] backward  # layer0\n"
            "return %3 %7\n");
  EXPECT_EQ(lost_in_text(graph), "");
  EXPECT_EQ(GraphBuilder(parse_graph(dump(graph))).blocks, 1);
}

TEST(GraphText, KeepsEveryBitOfNumbers) {
  using Longs = std::numeric_limits<std::int64_t>;
  GraphBuilder graph;
  const NodeRef x = input(graph, {DType::f64, {2}}, "x");
  for (const double number : {0.0, -0.0, 0.1, 1e300, 5e-324, 16777217.0, 1234567890123456.0,
                              HUGE_VAL, -HUGE_VAL, std::nan(""), -std::nan("")}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      graph.outputs.push_back(constant(x, {dtype, {2}}, number).id);
    }
    pad(x, {1}, {0}, number);
  }
  for (const std::int64_t number : {Longs::min(), Longs::max(), std::int64_t{-1}}) {
    constant(x, {DType::i64, {}}, number);
  }
  constant(x, {DType::u64, {}}, std::numeric_limits<std::uint64_t>::max());
  constant(x, {DType::boolean, {}}, 1);
  const NodeRef ids = input(graph, {DType::i32, {2}}, "ids");
  pad(ids, {1}, {0}, 0);
  pad(ids, {1}, {0}, -7);
  EXPECT_EQ(lost_in_text(graph), "");
  EXPECT_THAT(dump(graph), HasSubstr(" = constant() -0 : f32[2]\n"));
  EXPECT_THAT(dump(graph), HasSubstr(" = constant() 0.1 : bf16[2]\n"));
  EXPECT_THAT(dump(graph), HasSubstr(" = constant() 18446744073709551615 : u64[]\n"));
}

TEST(GraphText, KeepsTheBitsOfNaN) {
  for (const std::uint64_t bits :
       {std::uint64_t{0x7ff8000000000001}, std::uint64_t{0x7ff0000000000001},
        std::uint64_t{0xfff8000000000001}}) {
    const std::string text = fmt::format("nan({:#x})", bits);
    const Graph graph = parse_graph("%0 = constant() " + text + " : f64[]\nreturn %0\n");
    EXPECT_EQ(std::get<NumberAttributes>(graph.nodes[0].attributes).number.bits(), bits);
    EXPECT_EQ(lost_in_text(graph), "");
    EXPECT_THAT(dump(graph), HasSubstr(text));
  }
}

TEST(GraphText, KeepsAnyLabelAndScope) {
  for (const std::string_view name :
       {"", "w", "two words", "\"quoted\"", "back\\slash", "line\nend", " : f32[3]", "# no scope",
        " blanks ", "\\x20", "\x01\x7f\t\r", "Gr\xc3\xb6\xc3\x9f\x65", "\xff\xfe",
        "a\" : f32[9]"}) {
    SCOPED_TRACE(name);
    GraphBuilder graph;
    graph.scopes.emplace_back(name);
    graph.scope = 1;
    const NodeRef x = input(graph, {DType::f32, {2}}, name);
    graph.outputs = {neg(x).id};
    EXPECT_EQ(lost_in_text(graph), "");
  }
}

TEST(GraphText, KeepsWhatManualRegionsSay) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2")});
  Tensor x = counting(tracer, {4, 4}, "x", MemoryKind::parameter);
  const std::string axes[] = {"data", "model"};
  const Tensor mine = enable_manual_sharding(x, {{"data", "model"}, {}});
  const Tensor rows = all_reduce(reduce_sum(mine, {0}), axes, Reduction::sum);
  const Tensor y =
      disable_manual_sharding(mine + broadcast_to(rows, {1, 4}), {{"data", "model"}, {}}, {4, 4});
  x -= grad(reduce_sum(y * y, {0, 1}), x);
  const Graph& graph = tracer.plan()->graph();
  const std::string text = dump(graph);
  EXPECT_THAT(text, HasSubstr(" = enter_manual(%0) \"data+model,-\" dims=[1] : f32[1, 4]"));
  EXPECT_THAT(text, HasSubstr(" \"data+model\" sum : f32[4]"));
  EXPECT_THAT(text, HasSubstr(" dims=[1] sums : f32[4, 4]"));
  EXPECT_EQ(lost_in_text(graph), "");
}

// Both are found by the hash of their bytes, whatever their order and whatever else is there.
TEST(GraphText, TakesLiteralsByTheirHash) {
  GraphBuilder graph;
  const NodeRef x = input(graph, {DType::f32, {3}}, "x");
  const std::vector<float> odd{1, 3, 5}, even{2, 4, 6};
  const auto bytes = [](const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  };
  literal(x, x.type(), bytes(odd));
  literal(x, x.type(), bytes(even));
  const std::string text = dump(graph);
  const std::vector<LiteralAttributes> all{LiteralAttributes(bytes(even)), LiteralAttributes(),
                                           LiteralAttributes(bytes(odd))};
  EXPECT_TRUE(same_program(parse_graph(text, all), graph));
  // The hash is part of files: it must not change.
  EXPECT_THAT(text, HasSubstr("%1 = literal() 71ee002338c921ec : f32[3]\n"));
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { parse_graph(text); }),
            "read a program: line 2: found the literal 71ee002338c921ec, needed one of the 0 that "
            "are given");
}

TEST(GraphText, MayHaveBlanksAndComments) {
  const Graph graph = parse_graph(R"(
      # Two layers.
      %0 = input() "x" : f32[4,  2]  marked data,-
      %1 = tanh( %0 ) : f32[4, 2]   # first

      return  %1  %0
      # That is all.
  )");
  EXPECT_EQ(dump(graph),
            "%0 = input() \"x\" : f32[4, 2] marked data,-\n"
            "%1 = tanh(%0) : f32[4, 2]  # first\n"
            "return %1 %0\n");
}

struct BadText {
  std::string_view line;  ///< the third
  std::string_view message;
};

TEST(GraphText, IsRefusedWithTheLineAndWhatWasNeeded) {
  const BadText all[] = {
      {"%3 = neg(%0) : f32[4]", "found \"%3 = neg(%0)\", needed \"%2 =\" and an operation"},
      {"%2 = neg(%2) : f32[4]", "found \"%2)\", needed a node of a line before"},
      {"%2 = neg(%-1) : f32[4]", "found \"-1)\", needed the number of a node"},
      {"%2 = neg(%0 : f32[4]", "found the end of the line, needed \",\""},
      {"%2 = negg(%0) : f32[4]", "found \"negg\", needed neg"},
      {"%2 = some_op(%0) : f32[4]", "found \"some_op\", needed an operation"},
      {"%2 = neg(%0)", "found no type, needed \" : \" and one such as f32[8, 4]"},
      {"%2 = neg(%0) : f33[4]", "f33"},
      {"%2 = neg(%0) : f32[5]", "found the type f32[5], needed f32[4], which the operands give"},
      {"%2 = neg(%0, %1) : f32[4]", "neg(%0 f32[4], %1 f32[2]): found 2 operands, needed 1"},
      {"%2 = add(%0, %1) : f32[4]  # layer", "add(%0 f32[4], %1 f32[2]) in \"layer\": found"},
      {"%2 = neg(%0) dims=[0] : f32[4]", "found \"dims=[0]\", needed no more before the type"},
      {"%2 = cumsum(%0) : f32[4]", "found the end of the line, needed \"dims=[\""},
      {"%2 = cumsum(%0) dims=[0, 0] : f32[4]", "found dims=[0, 0], needed a list of 1"},
      {"%2 = cumsum(%0) dims=[1] : f32[4]", "found dim 1, needed one of the 1 dims"},
      {"%2 = cumsum(%0) dims=[99999999999999999999] : f32[4]", "needed a whole number"},
      {"%2 = cumsum(%0) dims=[0] back : f32[4]", "found \"back\", needed no more"},
      {"%2 = constant() x : f32[4]", "found \"x\", needed a number of f32"},
      {"%2 = constant() 1e999 : f64[4]", "found \"1e999\", needed a number of f64"},
      {"%2 = constant() 0.5 : i32[4]", "found \"0.5\", needed a number of i32"},
      {"%2 = constant() 300 : i8[4]", "found the number 300, needed one that i8 has exactly"},
      {"%2 = constant() nan(0x1) : f64[4]", "needed a number of f64"},
      {"%2 = constant() 1 : f32[9223372036854775807, 4]", "9223372036854775807"},
      {"%2 = constant() 1 : f32[-4]", "-4"},
      {"%2 = constant() 1 : f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "at most 16 numbers"},
      {"%2 = dot_general(%0, %1) \"a,b\" : f32[4, 2]", "equation \"a,b\""},
      {"%2 = dot_general(%0, %1) \"a,b->ab : f32[4, 2]", "found no type"},
      {"%2 = dot_general(%0, %1) \"a,b->ab\" in f33 : f32[4, 2]", "f33"},
      {"%2 = literal() xyz : f32[4]", "needed the hash of a literal, 16 hexadecimal digits"},
      {"%2 = input() : f32[4]", "found the end of the line, needed text in quotes"},
      {"%2 = input(%0) \"y\" : f32[4]", "found operands of an input, needed none"},
      {"%2 = input() \"\\q\" : f32[4]", "needed \\\", \\\\ or \\x and two hexadecimal digits"},
      {"%2 = input() \"y\" : f32[4] kind=weight", "found \"weight\", needed one of array, loader"},
      {"%2 = neg(%0) : f32[4] kind=parameter",
       "found kind=parameter of neg, needed it of an input"},
      {"%2 = neg(%0) : f32[4] marked data,-", "found \"data,-\", needed a mark of 1 dims"},
      {"%2 = neg(%0) : f32[4] backward backward", "needed marked, kind=, backward, block=, saved"},
      {"%2 = neg(%0) : f32[4] block=0", "found \"block=0\", needed a block from 1 on"},
      {"%2 = neg(%0) : f32[4] block=3000000000", "needed a block from 1 on"},
      {"return %2", "found \"%2\", needed a node of a line before"},
      {"return %0\nreturn %0", "found \"return %0\", needed nothing after the line with return"},
  };
  for (const BadText& bad : all) {
    SCOPED_TRACE(bad.line);
    const std::string text = "%0 = input() \"x\" : f32[4]\n%1 = input() \"y\" : f32[2]\n" +
                             std::string(bad.line) + "\nreturn\n";
    try {
      parse_graph(text);
      ADD_FAILURE() << "read";
    } catch (const Error& error) {
      const bool is_last = bad.line.find('\n') != std::string_view::npos;
      EXPECT_THAT(error.what(), testing::StartsWith(is_last ? "read a program: line 4: "
                                                            : "read a program: line 3: "));
      EXPECT_THAT(error.what(), HasSubstr(std::string(bad.message)));
    }
  }
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument, [] { parse_graph("%0 = input() \"x\" : f32[]"); }),
      "read a program: line 2: found the end, needed a line with return");
}

TEST(GraphText, IsRefusedInFewWordsIfItIsLong) {
  const std::string many(100'000, 'x');
  for (const std::string& text : {many, "%0 = input() \"" + many, "%0 = " + many + "() : f32[]",
                                  "%0 = input() \"x\" : f32[]  " + many}) {
    const std::string message = message_of(ErrorCode::invalid_argument, [&] { parse_graph(text); });
    EXPECT_LT(message.size(), 1100U);
  }
}

}  // namespace
}  // namespace shardwise
