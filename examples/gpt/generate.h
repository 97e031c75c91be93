#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model.h"
#include "serving.h"

namespace gpt {

/// The options of the program that continues texts.
struct GenerateCommand {
  std::vector<std::string> texts;
  GenerateOptions options;
  std::string mesh, plan;
  std::filesystem::path checkpoints;
  std::size_t memory_bytes = 0;  ///< of a device, for the largest batch that fits; 0: not asked for
  bool json = false;
};

/// The byte that ends a text: one character, or the number of a byte. Throws invalid_argument.
std::int32_t stop_byte(const std::string& text);

/// Continues the texts from the newest checkpoint. Prints each text as it grows, the second after
/// the first has ended; or JSON. Throws not_found if there is no checkpoint, and as Serving.
void generate(const GenerateCommand& command, const Sizes& sizes, const Recipe& recipe);

/// Prints the memory and the traffic of continuing `texts` texts of `length` bytes. Nothing runs.
void plan_serving(const GenerateCommand& command, const Sizes& sizes, const Recipe& recipe);

}  // namespace gpt
