#include "serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/shard/error.h"
#include "training.h"

namespace gpt {

namespace sw = shardwise;

namespace {

[[noreturn]] void refuse(const std::string& found_and_needed) {
  throw sw::Error(sw::ErrorCode::invalid_argument, "generate: " + found_and_needed);
}

using sw::as_size;

std::string label_of(const char* name, std::size_t layer) {
  return fmt::format("{}{}", name, layer);
}

/// Keys and values of earlier positions by layer: [batch, heads, places, width / heads].
struct Cache {
  std::vector<sw::Tensor> keys, values;
};

/// The sizes of a batch of texts that are continued together.
struct BatchSizes {
  std::int64_t texts, length, places;  ///< length: of the longest; places: of the cache
};

BatchSizes checked(const Sizes& sizes, std::int64_t texts, std::int64_t length,
                   const GenerateOptions& options) {
  if (texts < 1) refuse("found no text, needed at least one");
  if (options.tokens < 1) refuse(fmt::format("found {} tokens, needed at least 1", options.tokens));
  if (length + options.tokens > sizes.context) {
    refuse(fmt::format("found a text of {} bytes and {} more, needed at most the context of {}",
                       length, options.tokens, sizes.context));
  }
  if (!std::isfinite(options.temperature) || options.temperature < 0) {
    refuse(fmt::format("found temperature {}, needed 0 or more", options.temperature));
  }
  if (options.top_k < 0 || options.top_k > sizes.vocabulary) {
    refuse(fmt::format("found top_k {}, needed 0 to {}", options.top_k, sizes.vocabulary));
  }
  if (options.seed >> 32 != 0) {
    refuse(fmt::format("found seed {}, needed one below 2^32", options.seed));
  }
  if (options.stop && (*options.stop < 0 || *options.stop >= sizes.vocabulary)) {
    refuse(fmt::format("found stop token {}, needed 0 to {}", *options.stop, sizes.vocabulary - 1));
  }
  return {texts, length, length + options.tokens - 1};  // the last token is not read
}

/// Records the programs. Texts end at place `length` of the cache, so each has its own begin.
class Steps {
 public:
  Steps(sw::Tracer& tracer, const sw::Mesh& mesh, const Plan& plan, const Sizes& sizes,
        const Recipe& recipe, Weights weights)
      : tracer_(tracer),
        mesh_(mesh),
        plan_(plan),
        sizes_(sizes),
        blocks_(tracer, sizes, recipe, std::move(weights)) {}

  /// The next token of each of `tokens`, [texts, length], which begin at `begins`; fills the cache.
  sw::Tensor prefill(const BatchSizes& batch, const sw::Tensor& tokens, const sw::Tensor& begins,
                     const sw::Tensor& key, const GenerateOptions& options, Cache& cache) {
    const sw::Shape square{batch.texts, batch.length, batch.length};
    const sw::Tensor place = sw::iota(tokens, {sw::DType::i32, {batch.length}}, 0);
    const sw::Tensor query = sw::broadcast(place, square, {1}),
                     other = sw::broadcast(place, square, {2});
    const sw::Tensor seen =
        sw::logical_and(query >= other, other >= sw::broadcast(begins, square, {0}));
    const sw::Shape rows{batch.texts, batch.length};
    const sw::Tensor position =
        sw::max(sw::broadcast(place, rows, {1}) - sw::broadcast(begins, rows, {0}), 0);
    sw::Tensor h = embedded(tokens, position);
    for (std::int64_t i = 0; i < sizes_.layers; ++i) {
      const auto store = [&](const sw::Tensor& k_or_v, std::vector<sw::Tensor>& stored) {
        const sw::Tensor by_head = sw::transpose(k_or_v, {0, 2, 1, 3});
        stored.push_back(marked(
            sw::pad(by_head, {0, 0, 0, 0}, {0, 0, batch.places - batch.length, 0}), plan_.cache()));
        return by_head;
      };
      h = layer(h, i, [&](const sw::Tensor& q, const sw::Tensor& k, const sw::Tensor& v) {
        const sw::Tensor keys = store(k, cache.keys);
        return attend(q, keys, store(v, cache.values), seen);
      });
    }
    const std::int64_t end = batch.length;
    return chosen(sw::slice(h, {0, end - 1, 0}, {batch.texts, end, sizes_.width}), key, options);
  }

  /// The token after `tokens`, [texts], whose keys and values go to `place` of the cache.
  sw::Tensor decode(const BatchSizes& batch, const sw::Tensor& tokens, const sw::Tensor& begins,
                    const sw::Tensor& place, const sw::Tensor& key, const GenerateOptions& options,
                    Cache& cache) {
    const sw::Shape row{batch.texts, 1, batch.places};
    const sw::Tensor other =
        sw::broadcast(sw::iota(tokens, {sw::DType::i32, {batch.places}}, 0), row, {2});
    const sw::Tensor seen = sw::logical_and(sw::broadcast(place, row, {}) >= other,
                                            other >= sw::broadcast(begins, row, {0}));
    const sw::Shape column{batch.texts, 1};
    const sw::Tensor zero = sw::full_like(place, 0);
    sw::Tensor h = embedded(sw::reshape(tokens, column), sw::reshape(place - begins, column));
    for (std::int64_t i = 0; i < sizes_.layers; ++i) {
      const auto store = [&](const sw::Tensor& k_or_v, sw::Tensor& stored) {
        stored = sw::dynamic_update_slice(stored, sw::transpose(k_or_v, {0, 2, 1, 3}),
                                          {zero, zero, place, zero});
        return stored;
      };
      h = layer(h, i, [&](const sw::Tensor& q, const sw::Tensor& k, const sw::Tensor& v) {
        const sw::Tensor keys = store(k, cache.keys[as_size(i)]);
        return attend(q, keys, store(v, cache.values[as_size(i)]), seen);
      });
    }
    return chosen(h, key, options);
  }

 private:
  sw::Tensor marked(sw::Tensor tensor, const sw::PartitionSpec& spec) const {
    sw::mark_sharding(tensor, mesh_, spec);
    return tensor;
  }

  sw::Tensor embedded(const sw::Tensor& tokens, const sw::Tensor& positions) {
    return sw::take(blocks_.weight("embed"), tokens, 0) +
           sw::take(blocks_.weight("pos"), positions, 0);
  }

  sw::Tensor layer(const sw::Tensor& h, std::int64_t number, const Blocks::Attention& attention) {
    const auto in_layer = tracer_.scope(fmt::format("layer{}", number));
    return blocks_
        .layer(h, blocks_.layer_weights(number), attention,
               [](const sw::Tensor& x, double) { return x; })
        .h;
  }

  /// q [batch, queries, heads, width]; keys and values [batch, heads, places, width]; seen [batch,
  /// queries, places].
  static sw::Tensor attend(const sw::Tensor& q, const sw::Tensor& keys, const sw::Tensor& values,
                           const sw::Tensor& seen) {
    const sw::Tensor scores =
        sw::einsum("bqhw,bhkw->bhqk", q, keys) * (1 / std::sqrt(static_cast<double>(q.shape()[3])));
    const sw::Shape s = seen.shape();
    const sw::Tensor masked = sw::where(sw::reshape(seen, {s[0], 1, s[1], s[2]}), scores, -1e30);
    return sw::einsum("bhqk,bhkw->bqhw", sw::softmax(masked), values);
  }

  /// A token for each h [texts, 1, width]: the most likely one, or one drawn by its probability
  /// (the largest of the logits after Gumbel's noise was added).
  sw::Tensor chosen(const sw::Tensor& h, const sw::Tensor& key, const GenerateOptions& options) {
    const sw::Shape shape{h.shape()[0], sizes_.vocabulary};
    sw::Tensor logits = sw::reshape(blocks_.logits(h), shape);
    const auto in_head = tracer_.scope("head");
    if (options.temperature > 0) {
      const sw::Tensor bits = sw::convert(sw::random_bits(key, shape), sw::DType::f64);
      const sw::Tensor noise = -sw::log(-sw::log((bits + 0.5) * 0x1p-32));
      const sw::Tensor drawn =
          logits * (1 / options.temperature) + sw::convert(noise, sw::DType::f32);
      if (options.top_k > 0) {
        const sw::Tensor least = sw::reduce_min(sw::top_k(logits, 1, options.top_k).values, {1});
        logits = sw::where(logits >= sw::spread(least, shape, {1}), drawn, -1e30);
      } else {
        logits = drawn;
      }
    }
    return marked(sw::argmax(logits, 1), {plan_.batch()[0]});
  }

  sw::Tracer& tracer_;
  sw::Mesh mesh_;
  Plan plan_;
  Sizes sizes_;
  Blocks blocks_;
};

}  // namespace

std::size_t ServingPlans::cache_bytes() const {
  return decode->memory(0).by_kind[static_cast<std::size_t>(sw::MemoryKind::optimizer)];
}

std::size_t ServingPlans::peak_bytes() const {
  return std::max(prefill->memory(0).peak_bytes, decode->memory(0).peak_bytes);
}

std::size_t ServingPlans::wire_bytes() const {
  std::size_t bytes = 0;
  for (const sw::CollectiveTotal& total : decode->collectives()) bytes += total.wire_bytes;
  return bytes;
}

Serving::Serving(sw::Devices& devices, const sw::Mesh& mesh, const Plan& plan, const Sizes& sizes,
                 const Recipe& recipe)
    : devices_(devices),
      mesh_(mesh),
      plan_(plan),
      sizes_(sizes),
      recipe_(plan.spread(recipe)),
      tracer_(devices, {.mesh = mesh}) {
  check(sizes, recipe);
  recipe_.experts.capacity = 0;  // a text that is continued drops nothing
  if (recipe.stages != 0 || recipe.context_blocks != 0) {
    refuse("found a plan with stages or cut positions, needed none, data, fsdp, tensor or 2d");
  }
}

void Serving::restore(const sw::CheckpointReader& reader) {
  check_same_model(reader, sizes_, recipe_, Use::serving);
  std::vector<sw::TensorRequest> requests;
  for (const Weight& weight : gpt::weights(sizes_, recipe_)) {
    const sw::Sharding sharding(mesh_, plan_.weight(weight.name, weight.shape));
    requests.push_back({weight.name, {sw::DType::f32, weight.shape, sharding}});
  }
  std::vector<sw::ShardedArray> arrays = reader.restore(devices_, requests);
  weights_.clear();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    weights_.emplace(requests[i].name, std::move(arrays[i]));
  }
}

std::vector<Text> Serving::generate(std::span<const Text> texts, const GenerateOptions& options,
                                    const OnStep& on_step) {
  std::size_t longest = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) refuse(fmt::format("found text {} empty, needed a byte", i));
    for (const std::int32_t token : texts[i]) {
      if (token >= 0 && token < sizes_.vocabulary) continue;
      refuse(fmt::format("found token {} in text {}, needed 0 to {}", token, i,
                         sizes_.vocabulary - 1));
    }
    longest = std::max(longest, texts[i].size());
  }
  const auto count = static_cast<std::int64_t>(texts.size()),
             length = static_cast<std::int64_t>(longest);
  const ServingPlans plans = plan(count, length, options);
  if (weights_.empty()) refuse("found no weights, needed restore() before");
  std::vector<std::int32_t> padded(texts.size() * longest, 0), begins;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    begins.push_back(static_cast<std::int32_t>(longest - texts[i].size()));
    std::copy(texts[i].begin(), texts[i].end(),
              padded.begin() + static_cast<std::ptrdiff_t>((i + 1) * longest - texts[i].size()));
  }
  Arrays arrays;
  const auto set = [&](const sw::Executable& step, const std::string& label, auto values) {
    const std::vector<sw::GraphInput>& inputs = step.graph().inputs;
    const auto at = std::find_if(inputs.begin(), inputs.end(),
                                 [&](const sw::GraphInput& input) { return input.label == label; });
    if (at == inputs.end()) return;  // the likeliest token needs no random number
    arrays.insert_or_assign(
        label, sw::ShardedArray::from_host(
                   devices_, step.input_spec(static_cast<std::size_t>(at - inputs.begin())), values,
                   label, at->kind));
  };
  const auto key_of = [&](std::int64_t number) {
    return std::vector{(options.seed << 32) + static_cast<std::uint64_t>(number)};
  };
  set(*plans.prefill, "tokens", padded);
  set(*plans.prefill, "begins", begins);
  set(*plans.prefill, "key", key_of(0));
  run(*plans.prefill, arrays);
  std::vector<Text> all(texts.size());
  std::vector<bool> has_ended(texts.size(), false);
  for (std::int64_t number = 0;;) {
    std::vector<std::optional<std::int32_t>> tokens;
    for (const std::int32_t token : arrays.at("tokens").to_vector<std::int32_t>()) {
      const std::size_t i = tokens.size();
      has_ended[i] = has_ended[i] || token == options.stop;
      tokens.push_back(has_ended[i] ? std::nullopt : std::optional(token));
      if (!has_ended[i]) all[i].push_back(token);
    }
    if (on_step) on_step(tokens);
    if (++number == options.tokens || std::count(has_ended.begin(), has_ended.end(), false) == 0) {
      return all;
    }
    set(*plans.decode, "place", std::vector{static_cast<std::int32_t>(length + number - 1)});
    set(*plans.decode, "key", key_of(number));
    run(*plans.decode, arrays);
  }
}

void Serving::run(const sw::Executable& step, Arrays& arrays) {
  std::vector<std::optional<sw::ShardedArray>> inputs;
  for (const sw::GraphInput& input : step.graph().inputs) {
    const auto weight = weights_.find(input.label);
    if (weight != weights_.end()) {
      inputs.emplace_back(weight->second);
    } else if (input.label == "begins") {
      inputs.emplace_back(arrays.at(input.label));
    } else {
      inputs.emplace_back(std::move(arrays.extract(input.label).mapped()));
    }
  }
  std::vector<sw::ShardedArray> outputs = step.run(devices_, inputs);
  for (std::size_t i = 0; i < as_size(sizes_.layers); ++i) {
    arrays.emplace(label_of("keys", i), std::move(outputs[2 * i]));
    arrays.emplace(label_of("values", i), std::move(outputs[2 * i + 1]));
  }
  arrays.emplace("tokens", std::move(outputs.back()));
}

ServingPlans Serving::plan(std::int64_t texts, std::int64_t length,
                           const GenerateOptions& options) {
  const BatchSizes batch = checked(sizes_, texts, length, options);
  const auto abstract = [&](const sw::TensorType& type, const std::string& label,
                            sw::MemoryKind kind, const sw::PartitionSpec& spec) {
    sw::Tensor tensor = tracer_.abstract_tensor(type, label, kind);
    sw::mark_sharding(tensor, mesh_, spec);
    return tensor;
  };
  const auto rows = [&](const sw::Shape& shape, const char* label) {
    return abstract({sw::DType::i32, shape}, label, sw::MemoryKind::loader, {plan_.batch()[0]});
  };
  const auto scalar = [&](sw::DType dtype, const char* label) {
    return tracer_.abstract_tensor({dtype, {}}, label);
  };
  Weights weights;
  for (const Weight& weight : gpt::weights(sizes_, recipe_)) {
    weights.emplace(weight.name,
                    abstract({sw::DType::f32, weight.shape}, weight.name, sw::MemoryKind::parameter,
                             plan_.weight(weight.name, weight.shape)));
  }
  Steps steps(tracer_, mesh_, plan_, sizes_, recipe_, std::move(weights));
  ServingPlans plans;
  const sw::Tensor begins = rows({texts}, "begins");
  {
    Cache cache;
    const sw::Tensor next = steps.prefill(batch, rows({texts, length}, "tokens"), begins,
                                          scalar(sw::DType::u64, "key"), options, cache);
    plans.prefill = tracer_.plan();
  }
  Cache cache;
  const sw::TensorType type{sw::DType::f32,
                            {texts, sizes_.heads, batch.places, sizes_.width / sizes_.heads}};
  for (std::int64_t i = 0; i < sizes_.layers; ++i) {
    for (const auto& [stored, name] :
         {std::pair(&cache.keys, "keys"), std::pair(&cache.values, "values")}) {
      stored->push_back(
          abstract(type, fmt::format("{}{}", name, i), sw::MemoryKind::optimizer, plan_.cache()));
    }
  }
  sw::Tensor next = rows({texts}, "tokens");
  next = steps.decode(batch, next, begins, scalar(sw::DType::i32, "place"),
                      scalar(sw::DType::u64, "key"), options, cache);
  plans.decode = tracer_.plan();
  return plans;
}

}  // namespace gpt
