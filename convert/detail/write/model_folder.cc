#include "shardwise/convert/detail/write/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/json_reader.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostConfigBytes = std::uint64_t{16} << 20;

/// Files that transformers writes next to weights, without code (.py).
constexpr std::array<std::string_view, 21> kConfigNames{"added_tokens.json",
                                                        "chat_template.jinja",
                                                        "chat_template.json",
                                                        kConfigName,
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

/// Looks for one member and skips all others.
class TiedJson final : public JsonReader {
 public:
  bool is_tied() const { return is_tied_; }

  bool number(std::uint64_t) override { return inside(); }
  bool string(std::string_view) override { return inside(); }
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
  bool end_object(std::size_t) override {
    --depth_;
    return true;
  }
  bool key(std::string_view key) override {
    key_ = key;
    return true;
  }
  bool start_array() override {
    if (depth_ == 1) in_text_ = false;
    return inside() && ++depth_ > 0;
  }
  bool end_array(std::size_t) override { return end_object(0); }

 private:
  bool inside() { return depth_ > 0 || refuse("another value"); }
  bool refuse(std::string_view found) override {
    throw Error(ErrorCode::corrupt, fmt::format("found {}, needed is a JSON object", found));
  }
  bool unreadable(const JsonProblem& problem) override {
    throw Error(ErrorCode::corrupt, "it " + problem.to_string());
  }

  std::string key_;
  int depth_ = 0;
  bool in_text_ = false, is_tied_ = false;
};

constexpr std::string_view kTorch = "torch.";

/// torch's names of the dtypes that a config may have; both lists have the same order.
constexpr std::array<DType, 4> kFloats{DType::f16, DType::bf16, DType::f32, DType::f64};
constexpr std::array<std::string_view, 4> kFloatNames{"float16", "bfloat16", "float32", "float64"};

/// Empty if no tensor has such a dtype.
std::string_view most_used_float(std::span<const TensorInfo> tensors) {
  std::array<std::uint64_t, kFloats.size()> bytes{};
  for (const TensorInfo& tensor : tensors) {
    const auto found = std::ranges::find(kFloats, tensor.dtype);
    if (found == kFloats.end()) continue;
    bytes[static_cast<std::size_t>(found - kFloats.begin())] +=
        num_bytes(tensor.shape, size_bytes(tensor.dtype));
  }
  const auto most = std::ranges::max_element(bytes);
  return *most == 0 ? std::string_view()
                    : kFloatNames[static_cast<std::size_t>(most - bytes.begin())];
}

bool names_float(std::string_view text) {
  if (text.starts_with(kTorch)) text.remove_prefix(kTorch.size());
  return std::ranges::find(kFloatNames, text) != kFloatNames.end();
}

bool is_nested_config(std::string_view key) {
  return key.ends_with("_config") && key != "quantization_config";
}

/// A place in a text.
struct Part {
  std::size_t begin = 0, size = 0;
};

/// The places where a JSON object names the dtype of a model, without quotes, in ascending order.
std::vector<Part> dtypes_in(std::string_view json) {
  std::vector<Part> found;
  std::vector<bool> is_config;  // per enclosing object or list; the outermost is a config
  std::string_view key, text;
  bool is_value = false;  // the next text follows a colon
  for (std::size_t at = 0; at < json.size(); ++at) {
    switch (json[at]) {
      case '"': {
        const std::size_t begin = at + 1;
        for (++at; json[at] != '"'; ++at) at += json[at] == '\\' ? 1 : 0;
        text = json.substr(begin, at - begin);
        const bool is_dtype = is_value && is_config.back() &&
                              (key == "dtype" || key == "torch_dtype") && names_float(text);
        if (is_dtype) found.push_back({begin, text.size()});
        break;
      }
      case ':':
        key = text;
        is_value = true;
        break;
      case '{':
        is_config.push_back(is_config.empty() ||
                            (is_config.back() && is_value && is_nested_config(key)));
        is_value = false;
        break;
      case '[':
        is_config.push_back(false);
        break;
      case '}':
      case ']':
        is_config.pop_back();
        is_value = false;
        break;
      case ',':
        is_value = false;
        break;
      default:
        break;
    }
  }
  return found;
}

}  // namespace

bool is_config_name(std::string_view name) {
  return std::ranges::find(kConfigNames, name) != kConfigNames.end();
}

bool parse_ties_embeddings(std::string_view json) {
  TiedJson parser;
  parser.parse(json);
  return parser.is_tied();
}

std::string with_dtype_of(std::string config, std::span<const TensorInfo> tensors) {
  const std::string_view dtype = most_used_float(tensors);
  if (dtype.empty()) return config;
  const std::vector<Part> parts = dtypes_in(config);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const bool has_prefix = std::string_view(config).substr(part->begin).starts_with(kTorch);
    const std::size_t prefix = has_prefix ? kTorch.size() : 0;
    config.replace(part->begin + prefix, part->size - prefix, dtype);
  }
  return config;
}

ModelFolder look_at_model_folder(FileSystem& file_system, const fs::path& folder) {
  ModelFolder found;
  bool has_config = false;
  for (const std::string& name : file_system.list(folder)) {
    if (name == kConfigName) has_config = true;
    if (name != kConfigName && is_config_name(name)) found.files.push_back(name);
  }
  if (!has_config) {
    throw Error(ErrorCode::not_found,
                fmt::format("read {}: it has no config.json, needed is a folder of Hugging Face",
                            folder.string()));
  }
  const fs::path config = folder / kConfigName;
  const std::unique_ptr<File> file = open_linked(file_system, config);
  try {
    if (const std::uint64_t bytes = file->size(); bytes > kMostConfigBytes) {
      throw Error(ErrorCode::corrupt,
                  fmt::format("it has {} bytes, allowed are {}", bytes, kMostConfigBytes));
    }
    found.config = text_at(*file, 0, file->size());
    found.ties_embeddings = parse_ties_embeddings(found.config);
  } catch (const Error& error) {
    throw Error(error, fmt::format("read {}: {}", config.string(), error.what()));
  }
  return found;
}

}  // namespace shardwise::detail
