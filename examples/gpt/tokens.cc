#include "tokens.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "shardwise/shard/error.h"

namespace gpt {

using namespace shardwise;

Tokens::Tokens(const std::filesystem::path& path, std::int64_t batch, std::int64_t context)
    : batch_(batch), context_(context) {
  if (path.extension() == ".safetensors") {
    const auto arrays = read_all(path);
    for (std::size_t i = 0; arrays.contains(fmt::format("x{}", i)); ++i) {
      const auto y = arrays.find(fmt::format("y{}", i));
      if (y == arrays.end()) break;
      batches_.emplace_back(arrays.at(fmt::format("x{}", i)), y->second);
      for (const Given* const array : {&batches_.back().first, &batches_.back().second}) {
        if (array->dtype == DType::i32 && array->shape == Shape{batch, context}) continue;
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("read {}: found batch {} of {}{}, needed i32[{}, {}]", path.string(), i,
                        name(array->dtype), to_string(array->shape), batch, context));
      }
    }
    if (batches_.empty()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("read {}: found no tensors x0 and y0", path.string()));
    }
    return;
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(ErrorCode::not_found, fmt::format("read \"{}\": no such file", path.string()));
  }
  text_.assign(std::istreambuf_iterator<char>(file), {});
  if (static_cast<std::int64_t>(text_.size()) <= context) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read {}: found {} bytes, needed more than a context of {}",
                            path.string(), text_.size(), context));
  }
}

TokenBatch Tokens::at(std::int64_t step) const {
  TokenBatch batch;
  if (!batches_.empty()) {
    const auto& [x, y] = batches_[as_size(step) % batches_.size()];
    batch.tokens.resize(as_size(batch_ * context_));
    batch.targets.resize(batch.tokens.size());
    std::memcpy(batch.tokens.data(), x.bytes.data(), x.bytes.size());
    std::memcpy(batch.targets.data(), y.bytes.data(), y.bytes.size());
    return batch;
  }
  std::mt19937_64 random(static_cast<std::uint64_t>(step));
  for (std::int64_t row = 0; row < batch_; ++row) {
    const std::size_t begin = random() % (text_.size() - as_size(context_));
    for (std::size_t i = 0; i < as_size(context_); ++i) {
      batch.tokens.push_back(static_cast<unsigned char>(text_[begin + i]));
      batch.targets.push_back(static_cast<unsigned char>(text_[begin + i + 1]));
    }
  }
  return batch;
}

}  // namespace gpt
