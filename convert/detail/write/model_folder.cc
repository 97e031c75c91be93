#include "shardwise/convert/detail/write/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/convert/detail/strict_json.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfig = "config.json";
constexpr std::uint64_t kMostConfigBytes = std::uint64_t{16} << 20;

/// What transformers writes beside weights; code (.py) is not among it.
constexpr std::array<std::string_view, 21> kConfigNames{"added_tokens.json",
                                                        "chat_template.jinja",
                                                        "chat_template.json",
                                                        kConfig,
                                                        "feature_extractor_config.json",
                                                        "generation_config.json",
                                                        "image_processor_config.json",
                                                        "merges.txt",
                                                        "preprocessor_config.json",
                                                        "processor_config.json",
                                                        "sentencepiece.bpe.model",
                                                        "special_tokens_map.json",
                                                        "spiece.model",
                                                        "spm.model",
                                                        "tokenizer.json",
                                                        "tokenizer.model",
                                                        "tokenizer_config.json",
                                                        "video_preprocessor_config.json",
                                                        "vocab.bpe",
                                                        "vocab.json",
                                                        "vocab.txt"};

/// Looks for one member, and passes over all others.
class TiedJson final : public StrictJson {
 public:
  bool is_tied() const { return is_tied_; }

  bool number(std::uint64_t) override { return inside(); }
  bool string(std::string&&) override { return inside(); }
  bool other(std::string_view) override { return inside(); }
  bool boolean(bool value) override {
    if (key_ == "tie_word_embeddings" && (depth_ == 1 || (depth_ == 2 && in_text_))) {
      is_tied_ = is_tied_ || value;
    }
    return inside();
  }
  bool start_object() override {
    if (depth_ == 1) in_text_ = key_ == "text_config";
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool key(std::string&& key) override {
    key_ = std::move(key);
    return true;
  }
  bool start_array() override {
    if (depth_ == 1) in_text_ = false;
    return inside() && ++depth_ > 0;
  }
  bool end_array() override { return end_object(); }

 private:
  bool inside() { return depth_ > 0 || refuse("another value"); }
  bool refuse(std::string_view found) override {
    throw Error(ErrorCode::corrupt, fmt::format("found {}, needed is a JSON object", found));
  }
  bool unreadable(const std::string& problem) override {
    throw Error(ErrorCode::corrupt, "it " + problem);
  }

  std::string key_;
  int depth_ = 0;
  bool in_text_ = false, is_tied_ = false;
};

}  // namespace

bool is_config_name(std::string_view name) {
  return std::ranges::find(kConfigNames, name) != kConfigNames.end();
}

bool parse_ties_embeddings(std::string_view json) {
  TiedJson parser;
  parser.parse(json);
  return parser.is_tied();
}

ModelFolder look_at_model_folder(FileSystem& file_system, const fs::path& folder) {
  ModelFolder found;
  for (const std::string& name : file_system.list(folder)) {
    if (is_config_name(name)) found.files.push_back(name);
  }
  if (std::ranges::find(found.files, kConfig) == found.files.end()) {
    throw Error(ErrorCode::not_found,
                fmt::format("read {}: it has no config.json, needed is a folder of Hugging Face",
                            folder.string()));
  }
  const fs::path config = folder / kConfig;
  const std::unique_ptr<File> file = open_linked(file_system, config);
  try {
    if (const std::uint64_t bytes = file->size(); bytes > kMostConfigBytes) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("it has {} bytes, allowed are {}", bytes, kMostConfigBytes));
    }
    found.ties_embeddings = parse_ties_embeddings(text_at(*file, 0, file->size()));
  } catch (const Error& error) {
    throw Error(error, fmt::format("read {}: {}", config.string(), error.what()));
  }
  return found;
}

}  // namespace shardwise::detail
