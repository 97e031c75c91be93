#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A folder of Hugging Face that a model is exported beside: what of it is no weights.
struct ModelFolder {
  std::vector<std::string> files;  ///< config, generation config and the tokenizer's, by name
  bool ties_embeddings = false;    ///< the config says that the output layer is the embedding
};

/// Throws not_found if the folder has no config.json, corrupt if that is no JSON object.
ModelFolder look_at_model_folder(FileSystem& file_system, const std::filesystem::path& folder);

/// Whether a file of that name is copied from such a folder.
bool is_config_name(std::string_view name);

/// What a config.json says of tie_word_embeddings, itself or in its text_config. Throws corrupt.
bool parse_ties_embeddings(std::string_view json);

}  // namespace shardwise::detail
