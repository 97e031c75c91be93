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

using namespace shardwise;

namespace {

bool has_batches(const std::filesystem::path& path) { return path.extension() == ".safetensors"; }

std::shared_ptr<const Source> batches(const std::filesystem::path& path, std::int64_t batch,
                                      std::int64_t context) {
  const auto arrays = read_all(path);
  std::vector<std::byte> tokens, targets;
  std::int64_t count = 0;
  for (;; ++count) {
    const auto x = arrays.find(fmt::format("x{}", count)),
               y = arrays.find(fmt::format("y{}", count));
    if (x == arrays.end() || y == arrays.end()) break;
    for (const auto& [array, all] : {std::pair{&x->second, &tokens}, {&y->second, &targets}}) {
      if (array->dtype != DType::i32 || array->shape != Shape{batch, context}) {
        throw Error(
            ErrorCode::invalid_argument,
            fmt::format("read {}: found batch {} of {}{}, needed i32[{}, {}]", path.string(), count,
                        name(array->dtype), to_string(array->shape), batch, context));
      }
      all->insert(all->end(), array->bytes.begin(), array->bytes.end());
    }
  }
  if (count == 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read {}: found no tensors x0 and y0", path.string()));
  }
  const auto rows = count * batch;
  return zip({memory_source({"tokens", DType::i32, {context}}, rows, std::move(tokens)),
              memory_source({"targets", DType::i32, {context}}, rows, std::move(targets))});
}

std::shared_ptr<const Source> windows(const std::filesystem::path& path, std::int64_t context) {
  const auto source =
      open_tokens(path, {.dtype = DType::u8, .window = context + 1, .stride = 1, .field = "text"});
  const auto widen = [](const Sample&, SampleRandom&, std::span<const FieldValue> in,
                        std::span<FieldBuffer> out) {
    for (std::size_t field = 0; field < 2; ++field) {
      std::byte* to = out[field].data.data();
      for (std::size_t i = field; i < in[0].data.size() - 1 + field; ++i) {
        const auto token = std::to_integer<std::int32_t>(in[0].data[i]);
        std::memcpy(to, &token, sizeof token);
        to += sizeof token;
      }
    }
  };
  return map(source, {{"tokens", DType::i32, {context}}, {"targets", DType::i32, {context}}}, widen,
             {.name = "tokens and targets"});
}

}  // namespace

std::unique_ptr<HostLoader> read_tokens(const std::filesystem::path& path, std::int64_t batch,
                                        std::int64_t context, const LoaderState& state) {
  const auto source = has_batches(path) ? batches(path, batch, context) : windows(path, context);
  const LoaderOptions options{
      .batch_size = batch,
      .epochs = 1'000'000,
      .order = has_batches(path) ? RecordOrder::sequential : RecordOrder::shuffled};
  return std::make_unique<HostLoader>(source, place_all(*source, Mesh::line(1), "-,-"), options,
                                      state);
}

}  // namespace gpt
