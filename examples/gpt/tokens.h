#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "given.h"

namespace gpt {

/// What a step learns from: [batch, context] each, i32.
struct TokenBatch {
  std::vector<std::int32_t> tokens, targets;
};

/// Batches of a file: of a .safetensors the tensors x0, y0, x1, y1, .. in turn; of any other its
/// bytes, in windows that depend on the step alone, so that a resumed run goes on as if it had not
/// stopped.
class Tokens {
 public:
  /// Throws as read_all(), and invalid_argument if the file does not fit the sizes.
  Tokens(const std::filesystem::path& path, std::int64_t batch, std::int64_t context);

  TokenBatch at(std::int64_t step) const;

 private:
  std::int64_t batch_, context_;
  std::string text_;
  std::vector<std::pair<Given, Given>> batches_;
};

}  // namespace gpt
