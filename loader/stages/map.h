#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/loader/order/sample_random.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Makes the new fields of one record from fields of the source, in the orders of `map`'s fields
/// and MapOptions::inputs. Called on several of the loader's threads at once. Its exceptions reach
/// the caller of read(). It must draw random numbers only from `random`, so that batches are the
/// same on every mesh.
using MapFunction =
    std::function<void(const Sample& sample, SampleRandom& random,
                       std::span<const FieldValue> inputs, std::span<FieldBuffer> outputs)>;

struct MapOptions {
  /// Names the function in fingerprints and error messages, and the stream of its random numbers:
  /// change it if the function's results change. Must not be empty.
  std::string name;

  /// Fields of the source that the function reads. Empty: all.
  std::vector<std::string> inputs = {};

  /// Fields of the source that the result also has: before the new ones, unchanged and read by
  /// boxes.
  std::vector<std::string> keep = {};
};

/// Records with fields that a function computes. One read() of the result is one read() of the
/// source and at most one call of the function: no call if only kept fields are requested. The
/// function makes all of a record; parts for read_box and devices are cut out. length() of a new
/// ragged field calls the function, so it costs as much as read().
///
/// Throws invalid_argument if source or function are null, the name is empty, there is no new
/// field, or a name repeats; no_such_name for an unknown input or kept field.
///
///   const auto sums = map(source, {{"sum", DType::u8, {}}},
///                         [](const Sample&, SampleRandom&, auto in, auto out) {
///                           out[0].data[0] = in[0].data[0];
///                         },
///                         {.name = "first byte", .inputs = {"image"}, .keep = {"label"}});
std::shared_ptr<const Source> map(std::shared_ptr<const Source> source, std::vector<Field> fields,
                                  MapFunction function, const MapOptions& options);

}  // namespace shardwise
