#include "tokens.h"

#include <fmt/format.h>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "given.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/stages/map.h"
#include "shardwise/shard/error.h"

namespace gpt {

namespace sw = shardwise;

namespace {

bool has_batches(const std::filesystem::path& path) { return path.extension() == ".safetensors"; }

std::shared_ptr<const sw::Source> batches(const std::filesystem::path& path, std::int64_t batch,
                                          std::int64_t context) {
  const auto arrays = read_all(path);
  std::vector<std::byte> tokens, targets;
  std::int64_t count = 0;
  for (;; ++count) {
    const auto x = arrays.find(fmt::format("x{}", count)),
               y = arrays.find(fmt::format("y{}", count));
    if (x == arrays.end() || y == arrays.end()) break;
    for (const auto& [array, all] : {std::pair{&x->second, &tokens}, {&y->second, &targets}}) {
      if (array->dtype != sw::DType::i32 || array->shape != sw::Shape{batch, context}) {
        throw sw::Error(
            sw::ErrorCode::invalid_argument,
            fmt::format("read {}: found batch {} of {}{}, needed i32[{}, {}]", path.string(), count,
                        sw::name(array->dtype), sw::to_string(array->shape), batch, context));
      }
      all->insert(all->end(), array->bytes.begin(), array->bytes.end());
    }
  }
  if (count == 0) {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    fmt::format("read {}: found no tensors x0 and y0", path.string()));
  }
  const auto rows = count * batch;
  return sw::zip(
      {sw::memory_source({"tokens", sw::DType::i32, {context}}, rows, std::move(tokens)),
       sw::memory_source({"targets", sw::DType::i32, {context}}, rows, std::move(targets))});
}

std::shared_ptr<const sw::Source> windows(const std::filesystem::path& path, std::int64_t context) {
  const auto source = sw::open_tokens(
      path, {.dtype = sw::DType::u8, .window = context + 1, .stride = 1, .field = "text"});
  const auto widen = [](const sw::Sample&, sw::SampleRandom&, std::span<const sw::FieldValue> in,
                        std::span<sw::FieldBuffer> out) {
    for (std::size_t field = 0; field < 2; ++field) {
      std::byte* to = out[field].data.data();
      for (std::size_t i = field; i < in[0].data.size() - 1 + field; ++i) {
        const auto token = std::to_integer<std::int32_t>(in[0].data[i]);
        std::memcpy(to, &token, sizeof token);
        to += sizeof token;
      }
    }
  };
  return sw::map(source,
                 {{"tokens", sw::DType::i32, {context}}, {"targets", sw::DType::i32, {context}}},
                 widen, {.name = "tokens and targets"});
}

}  // namespace

std::unique_ptr<sw::HostLoader> read_tokens(const std::filesystem::path& path, std::int64_t batch,
                                            std::int64_t context, const sw::LoaderState& state) {
  const auto source = has_batches(path) ? batches(path, batch, context) : windows(path, context);
  const sw::LoaderOptions options{
      .batch_size = batch,
      .epochs = 1'000'000,
      .order = has_batches(path) ? sw::RecordOrder::sequential : sw::RecordOrder::shuffled};
  return std::make_unique<sw::HostLoader>(source, sw::place_all(*source, sw::Mesh::line(1), "-,-"),
                                          options, state);
}

}  // namespace gpt
