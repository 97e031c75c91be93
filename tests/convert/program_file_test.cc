#include "shardwise/convert/program_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "shardwise/convert/model.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/functions.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

/// A literal of each dtype, two of the same bytes among them, and one without elements.
Graph with_literals() {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {3}}, "x", MemoryKind::parameter)};
  for (const DType dtype : all_dtypes()) {
    std::vector<std::byte> bytes(6 * size_bytes(dtype), std::byte{1});
    bytes[0] = std::byte{0};
    graph.outputs.push_back(literal(x, {dtype, {2, 3}}, bytes).id);
  }
  literal(x, {DType::i64, {0, 4}}, {});
  return graph;
}

void write_file_text(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ProgramFile, IsTheTextWithItsLiteralsBesideIt) {
  const TempDir dir;
  const fs::path path = dir.path() / "step.swp";
  const Graph graph = with_literals();
  save_program(graph, path);
  EXPECT_EQ(file_text(path), dump(graph));
  EXPECT_TRUE(same_program(load_program(path), graph));
  const ModelReader literals(path.string() + ".safetensors");
  EXPECT_EQ(literals.format(), "safetensors");
  EXPECT_THAT(dump(graph), HasSubstr("literal() " + literals.tensors()[0].name));
  EXPECT_LT(literals.tensors().size(), graph.nodes.size());  // of the same bytes one
}

TEST(ProgramFile, WithoutLiteralsIsOneFile) {
  const TempDir dir;
  const fs::path path = dir.path() / "step.swp";
  GraphBuilder graph;
  append_input(graph, {DType::f32, {3}}, " = literal() 0123456789abcdef : f32[3]");
  save_program(graph, path);
  EXPECT_TRUE(same_program(load_program(path), graph));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(ProgramFile, ReplacesFilesAndNothingElse) {
  const TempDir dir;
  const fs::path path = dir.path() / "step.swp";
  write_file_text(path, "something else");
  save_program(with_literals(), path);
  save_program(with_literals(), path);
  EXPECT_TRUE(same_program(load_program(path), with_literals()));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 2);
  fs::create_directory(dir.path() / "folder.swp");
  EXPECT_THAT(message_of(ErrorCode::already_exists,
                         [&] { save_program(Graph(), dir.path() / "folder.swp"); }),
              HasSubstr("folder.swp"));
  EXPECT_THAT(message_of(ErrorCode::not_found,
                         [&] { save_program(Graph(), dir.path() / "none" / "step.swp"); }),
              HasSubstr("none"));
}

TEST(ProgramFile, OfStableHloTellsWhatMakesOne) {
  const TempDir dir;
  const fs::path path = dir.path() / "step.mlir";
  for (const std::string text :
       {"module @jit_step {\n}\n", "#loc = loc(unknown)\n\nmodule @jit_step {\n}\n",
        "ML\xefR\x0dStableHLO_v1.0.0", "// made by hand\nfunc.func @main() {\n}\n"}) {
    write_file_text(path, text);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { load_program(path); }),
                testing::AllOf(HasSubstr("step.mlir: read a program: found MLIR"),
                               HasSubstr("shardwise.jax.capture(step, x)")));
  }
}

TEST(ProgramFile, ThatIsDamagedIsRefusedWithItsName) {
  const TempDir dir;
  const fs::path path = dir.path() / "step.swp";
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { load_program(path); }), HasSubstr("step.swp"));
  save_program(with_literals(), path);
  const fs::path literals = path.string() + ".safetensors";
  const std::string whole = file_text(literals);
  std::string other = whole;
  other.back() ^= 1;
  write_file_text(literals, other);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { load_program(path); }),
              testing::AllOf(HasSubstr("step.swp: read a program: line "),
                             HasSubstr("found the literal ")));
  write_file_text(literals, whole.substr(0, whole.size() - 1));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { load_program(path); }),
              HasSubstr("step.swp.safetensors"));
  fs::remove(literals);
  EXPECT_THAT(message_of(ErrorCode::not_found, [&] { load_program(path); }),
              HasSubstr("step.swp.safetensors"));
  write_file_text(path, "%0 = input() \"x\" : f32[3]\nreturn %1\n");
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument, [&] { load_program(path); }),
      path.string() + ": read a program: line 2: found \"%1\", needed a node of a line before");
  fs::resize_file(path, (std::uintmax_t{256} << 20) + 1);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { load_program(path); }),
              HasSubstr("found 268435457 bytes, needed at most 268435456"));
}

TEST(MarkInputs, GoesByTheFirstRuleThatMatchesALabel) {
  Graph graph = parse_graph(
      "%0 = input() \"params/a/kernel\" : f32[8, 4] kind=parameter\n"
      "%1 = input() \"params/a/bias\" : f32[4] kind=parameter\n"
      "%2 = input() \"x\" : f32[16, 8] marked data,-\n"
      "%3 = neg(%0) : f32[8, 4]\n"
      "return %3\n");
  mark_inputs(graph, SpecRules::parse("params/*/kernel=-,model;params/*=-"));
  EXPECT_EQ(graph.node(0).mark, PartitionSpec::parse("-,model"));
  EXPECT_EQ(graph.node(1).mark, PartitionSpec::parse("-"));
  EXPECT_EQ(graph.node(2).mark, PartitionSpec::parse("data,-"));
  EXPECT_EQ(graph.node(3).mark, PartitionSpec::parse("-,model"));  // it replaces the weight
  EXPECT_EQ(message_of(ErrorCode::no_such_name,
                       [&] { mark_inputs(graph, SpecRules::parse("parms/*=-")); }),
            "found no input that \"parms/*\" matches, needed one: the program has "
            "params/a/kernel, params/a/bias, x");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { mark_inputs(graph, SpecRules::parse("x=data")); }),
              HasSubstr("x"));
}

}  // namespace
}  // namespace shardwise
