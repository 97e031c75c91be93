#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/runtime/kernels/detail/elementwise.h"
#include "shardwise/runtime/kernels/detail/tile_functions.h"

namespace shardwise::detail {

struct alignas(kBlockBytes) Block {
  std::array<std::byte, kBlockBytes> bytes;
};

/// One call of a tile function. Sources are places: first the inputs, then the constants, then the
/// targets. Targets are the places that steps write: first the outputs, then the scratch tiles.
struct ElementwiseStep {
  TileFunction function;  ///< null: shardwise::convert
  DType from, to;         ///< of that
  std::array<std::size_t, 3> sources;
  std::size_t target;
};

/// When outputs are written. Directly: by the step that computes them, which also uses them as a
/// scratch tile. At the end: after all inputs of the tile are read.
enum class Writing { directly, at_end };

struct ElementwisePlan {
  std::vector<ElementwiseStep> steps;
  std::size_t scratch_tiles = 0;

  /// An output that is written before an input is read for the last time: the two must not have one
  /// address.
  struct Clash {
    std::size_t output, input;
  };
  std::vector<Clash> clashes;
};

/// The compiled form of an ElementwiseKernel.
struct ElementwiseProgram {
  std::vector<std::size_t> input_bytes, output_bytes;  ///< of an element
  std::vector<Block> constants;
  std::size_t widest_bytes = 1;  ///< of an element, over all places
  ElementwisePlan plan;          ///< written directly
  ElementwisePlan at_end;        ///< if outputs of `plan` clash with inputs
};

/// Requires a checked kernel.
ElementwiseProgram compile_elementwise(std::span<const ElementwiseInput> inputs,
                                       std::span<const ElementwiseInstruction> instructions,
                                       std::span<const std::int32_t> outputs);

}  // namespace shardwise::detail
