#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The files of a Hugging Face folder, other than weights, that an export copies next to its model.
struct ModelFolder {
  std::vector<std::string> files;  ///< generation config and the tokenizer's, by name
  std::string config;              ///< text of config.json
  bool ties_embeddings = false;    ///< the config says that the output layer is the embedding
};

inline constexpr std::string_view kConfigName = "config.json";

/// Throws not_found if the folder has no config.json, corrupt if that is no JSON object.
ModelFolder look_at_model_folder(FileSystem& file_system, const std::filesystem::path& folder);

/// True if a file of that name is copied from such a folder.
bool is_config_name(std::string_view name);

/// The value of tie_word_embeddings in a config.json or its text_config. Throws corrupt.
bool parse_ties_embeddings(std::string_view json);

/// A config.json whose `dtype` and `torch_dtype`, its own and those of its nested configs, name the
/// float dtype of 16 bits or more that most bytes of the tensors have. All other bytes stay; if no
/// tensor has such a dtype, all bytes stay. Requires a text that parse_ties_embeddings() accepts.
std::string with_dtype_of(std::string config, std::span<const TensorInfo> tensors);

}  // namespace shardwise::detail
