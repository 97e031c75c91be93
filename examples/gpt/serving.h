#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model.h"
#include "plan.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tracer.h"

namespace gpt {

/// Bytes of a text, each below Sizes::vocabulary.
using Text = std::vector<std::int32_t>;

struct GenerateOptions {
  std::int64_t tokens = 100;              ///< most that a text is continued by
  double temperature = 0;                 ///< 0: always the most likely token
  std::int64_t top_k = 0;                 ///< only among the k most likely; 0: among all
  std::uint64_t seed = 1;                 ///< of the random numbers, below 2^32
  std::optional<std::int32_t> stop = {};  ///< a text ends before this token
};

/// The two programs that continue texts, compiled and not run.
struct ServingPlans {
  std::shared_ptr<const shardwise::Executable> prefill;  ///< reads the texts, gives a token of each
  std::shared_ptr<const shardwise::Executable> decode;   ///< gives one more token of each

  /// Keys and values on the device that has the most.
  std::size_t cache_bytes() const;
  /// The larger peak of the two, on the device that needs the most.
  std::size_t peak_bytes() const;
  /// Bytes that one device sends for one more token of each text.
  std::size_t wire_bytes() const;
};

/// A GPT that continues a batch of texts. Weights are cut as the plan says, and keys and values of
/// earlier positions are kept in a cache, which is cut over batch and heads and written in place.
/// The texts may differ in length: they end at the same place in the cache, and places before a
/// text are masked. Call restore() first, unless it only plans. Keeps a reference to the devices.
/// Thread-compatible.
class Serving {
 public:
  /// Throws invalid_argument as check() and Plan::spread(), and for stages or cut positions.
  Serving(shardwise::Devices& devices, const shardwise::Mesh& mesh, const Plan& plan,
          const Sizes& sizes, const Recipe& recipe = {});

  /// Restores the weights of a Training. Throws invalid_argument naming the difference if the
  /// checkpoint's user_json is not this model's, and as CheckpointReader.
  void restore(const shardwise::CheckpointReader& reader);

  /// Called after each step with the next token of each text; absent if the text has ended.
  using OnStep = std::function<void(const std::vector<std::optional<std::int32_t>>& tokens)>;

  /// The continuations. Random numbers depend on the seed, the number of the text and the number of
  /// its token alone. Throws invalid_argument if there is no text, a text is empty, has an unknown
  /// token or no room for `tokens` more in the context, and for impossible options.
  std::vector<Text> generate(std::span<const Text> texts, const GenerateOptions& options = {},
                             const OnStep& on_step = {});

  /// Plans for `texts` texts, the longest of `length` tokens. Weights need no values. Throws as
  /// generate().
  ServingPlans plan(std::int64_t texts, std::int64_t length, const GenerateOptions& options = {});

 private:
  using Arrays = std::map<std::string, shardwise::ShardedArray>;

  /// Runs a step on the weights and `arrays`, by label, whose next tokens and cache it replaces.
  void run(const shardwise::Executable& step, Arrays& arrays);

  shardwise::Devices& devices_;
  shardwise::Mesh mesh_;
  Plan plan_;
  Sizes sizes_;
  Recipe recipe_;
  shardwise::Tracer tracer_;  ///< of the plans: its tensors have no values
  Arrays weights_;
};

}  // namespace gpt
