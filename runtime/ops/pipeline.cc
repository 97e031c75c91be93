#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/ops/detail/batch.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

// The shifted buffer of GSPMD (section 3.3): all stages are one dim, and a scan moves it by one.

namespace shardwise::detail {
namespace {

constexpr std::string_view kOperation = "pipeline";

using Nodes = std::vector<NodeRef>;

Nodes with(Nodes all, const Nodes& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// The tensors in the innermost open body.
CarryAndSlices<NodeRef> in_open_body(CarryAndSlices<NodeRef> given) {
  const Nodes all = with(given.carry.tensors, given.slices.tensors);
  GraphBuilder& open = innermost(*all.front().graph);
  for (Leaves<NodeRef>* const leaves : {&given.carry, &given.slices}) {
    for (NodeRef& leaf : leaves->tensors) leaf = {&open, inside(open, leaf)};
  }
  return given;
}

/// The extent of dim 0, which all have.
std::int64_t common_extent(std::string_view operation, const Nodes& operands,
                           const Leaves<NodeRef>& leaves, std::string_view what) {
  const std::int64_t unknown = -1;
  std::int64_t extent = unknown;
  for (std::size_t i = 0; i < leaves.tensors.size(); ++i) {
    const TensorType& type = leaves.tensors[i].type();
    if (type.shape.empty() || (extent != unknown && type.shape[0] != extent)) {
      refuse(operands.front(), operation, std::span<const NodeRef>(operands),
             fmt::format("found {}{} of {}, needed {}", what, leaves.paths[i], to_string(type),
                         extent == unknown ? "a dim to go along"
                                           : fmt::format("{} along dim 0, as {}{} has", extent,
                                                         what, leaves.paths[0])));
    }
    extent = type.shape[0];
  }
  return extent;
}

Leaves<TensorType> slices_of(const Leaves<NodeRef>& leaves, std::int64_t rows) {
  Leaves<TensorType> types{{}, leaves.paths};
  for (const NodeRef& leaf : leaves.tensors) {
    TensorType type = leaf.type();
    type.shape = rows == 0 ? slice_shape(type.shape) : type.shape;
    if (rows != 0) type.shape[0] = rows;
    types.tensors.push_back(std::move(type));
  }
  return types;
}

/// Elements [begin, end) of one dim.
NodeRef part(const NodeRef& x, std::size_t dim, std::int64_t begin, std::int64_t end) {
  Dims first = Dims::filled(x.type().shape.size(), 0), last = x.type().shape;
  first[dim] = begin;
  last[dim] = end;
  return slice(x, first, last);
}

NodeRef padded(const NodeRef& x, std::size_t dim, std::int64_t low, std::int64_t high) {
  Dims before = Dims::filled(x.type().shape.size(), 0), later = before;
  before[dim] = low;
  later[dim] = high;
  return pad(x, before, later);
}

/// x, with its first dim as two.
NodeRef split_rows(const NodeRef& x, std::int64_t major, std::int64_t minor) {
  return reshape(x, stacked_shape(major, stacked_shape(minor, slice_shape(x.type().shape))));
}

/// x, with its first two dims as one.
NodeRef merge_rows(const NodeRef& x) {
  const Shape& shape = x.type().shape;
  return reshape(x, stacked_shape(shape[0] * shape[1], slice_shape(slice_shape(shape))));
}

class Pipeline {
 public:
  Pipeline(const FlatBody<NodeRef>& block, const CarryAndSlices<NodeRef>& given,
           const PipelineOptions& options)
      : given_(given),
        operands_(with(given.carry.tensors, given.slices.tensors)),
        stages_(options.stages),
        micro_batches_(options.micro_batches) {
    check(options);
    block_.emplace(kOperation, *operands_.front().graph, block,
                   CarryAndSlices<TensorType>{slices_of(given.carry, rows_ / micro_batches_),
                                              slices_of(given.slices, 0)});
    check_results();
  }

  CarryAndSlices<NodeRef> run() const {
    const PartitionSpec::Entry cut = cut_of_dim_0(given_.slices.tensors);
    const std::vector<Nodes> layers = layers_of_stages();
    CarryAndSlices<NodeRef> scanned{{{}, given_.carry.paths}, {{}, given_.carry.paths}};
    for (const NodeRef& x : given_.carry.tensors) {
      const NodeRef micro = by_micro_batch(x);
      const NodeRef bubble = stop_gradient(part(micro, 0, 0, 1));
      scanned.carry.tensors.push_back(everywhere(bubble));
      scanned.slices.tensors.push_back(fed(micro, bubble));
    }
    const FlatBody<NodeRef> trip = [&](const Nodes& carry, const Nodes& fed) {
      Nodes buffer;
      for (std::size_t i = 0; i < carry.size(); ++i) {
        buffer.push_back(padded(part(carry[i], 0, 0, stages_ - 1), 0, 1, 0) + fed[i]);
      }
      for (const Nodes& layer : layers) {
        buffer = block_->append_all(buffer, layer, cut).carry.tensors;
      }
      return CarryAndSlices<NodeRef>{{buffer, given_.carry.paths}, {buffer, given_.carry.paths}};
    };
    CarryAndSlices<NodeRef> made;
    for (const NodeRef& all : record_scan(trip, scanned, {}).slices.tensors) {
      made.carry.tensors.push_back(last_stage(all));
    }
    return made;
  }

 private:
  [[noreturn]] void fail(const std::string& found_and_needed) const {
    refuse(operands_.front(), kOperation, std::span<const NodeRef>(operands_), found_and_needed);
  }

  void check(const PipelineOptions& options) {
    if (options.schedule != "gpipe") {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: found schedule \"{}\", needed \"gpipe\", the only one so far",
                              kOperation, options.schedule));
    }
    if (given_.slices.tensors.empty()) fail("found no params, needed a tensor with the layers'");
    layers_ = common_extent(kOperation, operands_, given_.slices, "params");
    rows_ = common_extent(kOperation, operands_, given_.carry, "x");
    if (stages_ < 1 || layers_ % stages_ != 0) {
      fail(fmt::format("found {} stages for {} layers, needed a number that divides them", stages_,
                       layers_));
    }
    if (micro_batches_ < 1 || rows_ % micro_batches_ != 0) {
      fail(fmt::format("found {} micro-batches of a batch of {}, needed a number that divides it",
                       micro_batches_, rows_));
    }
    if (micro_batches_ < stages_) {
      fail(fmt::format("found {} micro-batches for {} stages, needed as many or more",
                       micro_batches_, stages_));
    }
  }

  void check_results() const {
    const Leaves<TensorType>& made = block_->results().carry;
    const Leaves<TensorType> needed = slices_of(given_.carry, rows_ / micro_batches_);
    if (made.paths != needed.paths) {
      fail(fmt::format("found a block that gives {} tensors, needed {} as it gets",
                       made.paths.size(), needed.paths.size()));
    }
    for (std::size_t i = 0; i < needed.tensors.size(); ++i) {
      if (made.tensors[i] == needed.tensors[i]) continue;
      fail(fmt::format("found a block that gives x{} as {}, needed {} as it gets it",
                       needed.paths[i], to_string(made.tensors[i]), to_string(needed.tensors[i])));
    }
  }

  /// For each layer of a stage the params of all stages.
  std::vector<Nodes> layers_of_stages() const {
    const std::int64_t each = layers_ / stages_;
    std::vector<Nodes> layers(as_size(each));
    for (const NodeRef& param : given_.slices.tensors) {
      const NodeRef by_stage = split_rows(param, stages_, each);
      for (std::int64_t i = 0; i < each; ++i) {
        layers[as_size(i)].push_back(merge_rows(part(by_stage, 1, i, i + 1)));
      }
    }
    return layers;
  }

  /// [micro-batches, rows, ..]: a micro-batch has a row of every `micro_batches`, so that a cut of
  /// the batch is one of each micro-batch.
  NodeRef by_micro_batch(const NodeRef& x) const {
    return transpose(split_rows(x, rows_ / micro_batches_, micro_batches_), 0, 1);
  }

  /// For all stages. Bubbles run on the first micro-batch: on numbers of the data, since a block
  /// may have no finite gradient at zeros, and 0 times that is NaN.
  NodeRef everywhere(const NodeRef& bubble) const {
    const Shape rows = slice_shape(bubble.type().shape);
    return broadcast(bubble, stacked_shape(stages_, rows), all_dims(rows.size() + 1));
  }

  /// [trips, stages, rows, ..]: a micro-batch a trip for stage 0, zeros for the others.
  NodeRef fed(const NodeRef& micro, const NodeRef& bubble) const {
    Nodes trips{micro};
    trips.resize(as_size(stages_), bubble);
    const NodeRef all = concatenate(trips, 0);
    return padded(split_rows(all, all.type().shape[0], 1), 1, 0, stages_ - 1);
  }

  /// The results of the last stage, without those of its bubbles.
  NodeRef last_stage(const NodeRef& all) const {
    const Shape& shape = all.type().shape;
    Dims begin = Dims::filled(shape.size(), 0);
    begin[0] = begin[1] = stages_ - 1;
    const NodeRef own = slice(all, begin, shape);
    return merge_rows(transpose(merge_rows(own), 0, 1));
  }

  const CarryAndSlices<NodeRef>& given_;
  Nodes operands_;
  std::int64_t stages_, micro_batches_, layers_ = 0, rows_ = 0;
  std::optional<BatchedBody> block_;
};

}  // namespace

CarryAndSlices<NodeRef> record_pipeline(const FlatBody<NodeRef>& block,
                                        const CarryAndSlices<NodeRef>& given,
                                        const PipelineOptions& options) {
  const CarryAndSlices<NodeRef> open = in_open_body(given);
  return Pipeline(block, open, options).run();
}

CarryAndSlices<NodeRef> record_vmap(const FlatBody<NodeRef>& function,
                                    const CarryAndSlices<NodeRef>& given) {
  const CarryAndSlices<NodeRef> open = in_open_body(given);
  const Nodes& xs = open.slices.tensors;
  common_extent("vmap", xs, open.slices, "xs");
  const BatchedBody body("vmap", *xs.front().graph, function, {{}, slices_of(open.slices, 0)});
  return body.append_all({}, xs, cut_of_dim_0(xs));
}

}  // namespace shardwise::detail
