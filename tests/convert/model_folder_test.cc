#include "shardwise/convert/detail/write/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "convert/memory_model.h"
#include "shardwise/convert/model.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A folder as transformers saves it.
void write_folder(const TempDir& dir, const std::string& config) {
  write_file(dir / "config.json", config);
  write_file(dir / "generation_config.json", "{}");
  write_file(dir / "tokenizer.json", std::string(100'000, ' '));
  write_file(dir / "model.safetensors", "weights");
  write_file(dir / "pytorch_model.bin", "weights");
  write_file(dir / "modeling_own.py", "code");
  write_file(dir / "README.md", "text");
}

/// Two tensors that are the same, and one that is not.
Model tied_model(std::uint64_t output_seed) {
  return Model({whole_tensor("lm_head.weight", DType::f32, {50, 4}, output_seed),
                whole_tensor("model.embed_tokens.weight", DType::f32, {50, 4}, 1),
                whole_tensor("model.norm.weight", DType::f32, {4}, 2)});
}

TEST(ModelFolder, ConfigsAndTokenizersAreCopiedAndNothingElse) {
  const TempDir from, dir;
  write_folder(from, R"({"model_type": "llama"})");
  const Model model = tied_model(1);
  const ExportOptions options{.config_from = from.path()};
  const ExportStats stats = export_model(model, dir / "m", options);
  EXPECT_THAT(
      posix_file_system()->list(dir / "m"),
      ElementsAre("config.json", "generation_config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(text_of(dir / "m/config.json"), R"({"model_type": "llama"})");
  EXPECT_EQ(text_of(dir / "m/tokenizer.json"), std::string(100'000, ' '));
  EXPECT_THAT(stats.files, ElementsAre(dir / "m/model.safetensors"));
  EXPECT_EQ(ModelReader(dir / "m").metadata(), R"({"format":"pt"})");
  expect_same(model, ModelReader(dir / "m"));

  // A folder with a config gives way to one with a config alone.
  ExportOptions again{.existing = Existing::replace};
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { export_model(model, dir / "m", again); }),
              HasSubstr("holds \"config.json\", too"));
  again.config_from = dir / "m";
  export_model(model, dir / "m", again);
  EXPECT_EQ(text_of(dir / "m/config.json"), R"({"model_type": "llama"})");
}

TEST(ModelFolder, TheConfigNamesTheDtypeThatMostBytesHave) {
  const TempDir from, dir;
  const auto exported = [&](const std::string& config, DType few, DType many) {
    write_folder(from, config);
    const Model model({whole_tensor("few", few, {3}, 1), whole_tensor("many", many, {100}, 2)});
    export_model(model, dir / "m", {.config_from = from.path(), .existing = Existing::replace});
    return text_of(dir / "m/config.json");
  };
  const std::string before = R"({ "dtype" : "float32", "a": ["dtype", {"dtype": "float32"}],
 "text_config": {"torch_dtype": "torch.float16", "vision_config": {"dtype":"float64"}, "n": 1},
 "quantization_config": {"dtype": "float32", "x_config": {"dtype": "float32"}}, "other": {"dtype": "float32"},
 "name\"": "\"dtype", "torch_dtype": null, "audio_config": {"dtype": "auto", "dtype": "uint8"}})";
  const std::string after = R"({ "dtype" : "bfloat16", "a": ["dtype", {"dtype": "float32"}],
 "text_config": {"torch_dtype": "torch.bfloat16", "vision_config": {"dtype":"bfloat16"}, "n": 1},
 "quantization_config": {"dtype": "float32", "x_config": {"dtype": "float32"}}, "other": {"dtype": "float32"},
 "name\"": "\"dtype", "torch_dtype": null, "audio_config": {"dtype": "auto", "dtype": "uint8"}})";
  EXPECT_EQ(exported(before, DType::f32, DType::bf16), after);
  EXPECT_EQ(exported(R"({"dtype": "bfloat16"})", DType::bf16, DType::f32),
            R"({"dtype": "float32"})");
  EXPECT_EQ(exported(R"({"dtype": "float32"})", DType::f16, DType::i64), R"({"dtype": "float16"})");
  EXPECT_EQ(exported(R"({"dtype": "float32"})", DType::u8, DType::f8_e4m3fn),
            R"({"dtype": "float32"})");
}

TEST(ModelFolder, TiedWeightsAreLeftOutIfTheConfigSaysSoAndTheyAreEqual) {
  const struct {
    const char* config;
    std::uint64_t seed;  // 1: the output layer is the embedding
    std::size_t tensors;
  } cases[] = {
      {R"({"tie_word_embeddings": true})", 1, 2},
      {R"({"text_config": {"tie_word_embeddings": true}})", 1, 2},
      {R"({"tie_word_embeddings": true})", 7, 3},
      {R"({"tie_word_embeddings": false})", 1, 3},
      {R"({"other": {"tie_word_embeddings": true}, "list": [{"tie_word_embeddings": true}]})", 1,
       3},
      {R"({})", 1, 3}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.config);
    const TempDir from, dir;
    write_folder(from, c.config);
    export_model(tied_model(c.seed), dir / "m", {.config_from = from.path()});
    EXPECT_EQ(ModelReader(dir / "m").tensors().size(), c.tensors);
  }
}

TEST(ModelFolder, WhatDoesNotFitLeavesNothing) {
  const TempDir from, dir;
  const Model model = tied_model(1);
  const auto refused = [&](ErrorCode code, const char* target, ExportOptions options = {}) {
    options.config_from = from.path();
    return message_of(code, [&] { export_model(model, dir / target, options); });
  };
  EXPECT_THAT(refused(ErrorCode::not_found, "m"), HasSubstr("it has no config.json"));
  for (const char* config : {"", "[]", "{\"a\": ", "1"}) {
    write_file(from / "config.json", config);
    EXPECT_THAT(refused(ErrorCode::corrupt, "m"), HasSubstr("config.json: "));
  }
  write_file(from / "config.json", "{}");
  EXPECT_THAT(refused(ErrorCode::invalid_argument, "m.safetensors"),
              HasSubstr("needs a folder of safetensors"));
  EXPECT_THAT(refused(ErrorCode::invalid_argument, "m", {.format = "npz"}),
              HasSubstr("needs a folder of safetensors"));
  EXPECT_THAT(posix_file_system()->list(dir.path()), ElementsAre());
}

}  // namespace
}  // namespace shardwise
