#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/memory/buffer.h"
#include "shardwise/runtime/program/detail/layout.h"
#include "shardwise/runtime/program/detail/move.h"
#include "shardwise/runtime/program/local_function.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct LoopBody;  // detail/loop.h

/// A program for the devices of a mesh: values, and steps that fill them, in a legal order. It
/// knows no memory: Storage binds values to memory, Schedule defines concurrency, run() executes
/// it. Manual mode and traced mode both record programs.
///
/// Values are single-assignment: bound from outside, or filled by one call, or by one move and its
/// fills. All layouts are of the program's mesh.
///
/// Thread-compatible; append, then run as often as wanted.
///
///   Program program(mesh);
///   const auto x = program.add_value({spec, "x"});           // bound from outside
///   const auto y = program.add_value({spec, "y"});
///   program.add_step(Program::Call{"double", {x}, {y}, double_it});
class Program {
 public:
  /// Values are numbered from 0 on.
  using ValueId = std::int64_t;

  struct Value {
    Value(ArraySpec spec, std::string its_label, MemoryKind its_kind = MemoryKind::array)
        : Value(spec.dtype, spec.shape, std::move(spec.sharding), std::move(its_label), its_kind) {}
    Value(DType its_dtype, const Shape& its_shape, Layout its_layout, std::string its_label,
          MemoryKind its_kind)
        : dtype(its_dtype),
          shape(its_shape),
          layout(std::move(its_layout)),
          label(std::move(its_label)),
          kind(its_kind) {}

    DType dtype;
    Shape shape;  ///< of the whole tensor
    Layout layout;
    std::string label;  ///< names its memory, and the value in errors
    MemoryKind kind;

    /// The box at a mesh position.
    Box box(std::int64_t position) const { return layout.box(position, shape); }

    /// As an array. Requires a layout without windows.
    ArraySpec spec() const { return {dtype, shape, layout.sharding()}; }
  };

  /// A function per device, of local shards.
  struct Call {
    std::string name;
    std::vector<ValueId> inputs, outputs;
    LocalFunction function;
  };

  /// A move of data between devices: of one value, or of several together (a bucket). The plans of
  /// a bucket's values have the same phases, groups and targets.
  struct Move {
    struct Part {
      ValueId from, to;
      MovePlan plan;
    };
    std::string name;
    std::vector<Part> parts;
  };

  /// Zeros, at some mesh positions.
  struct Fill {
    std::string name;
    ValueId value;
    std::vector<std::int64_t> positions;
  };

  /// A program of its own, run several times, for all devices together; or one of two programs, run
  /// once, selected by a boolean scalar that each device has.
  struct Loop {
    std::string name;
    std::vector<ValueId> inputs, outputs;  ///< by input and output of the body: see LoopBody
    ValueId memory = -1;                   ///< for the body's values; -1: it needs none
    std::shared_ptr<const LoopBody> body = {};
    ValueId predicate = -1;                          ///< -1: there is one body
    std::shared_ptr<const LoopBody> otherwise = {};  ///< if the scalar is false

    /// The inputs and the scalar; the outputs and the memory.
    std::vector<ValueId> read() const;
    std::vector<ValueId> made() const;
  };

  using Step = std::variant<Call, Move, Fill, Loop>;

  explicit Program(Mesh mesh) : mesh_(std::move(mesh)) {}

  const Mesh& mesh() const { return mesh_; }
  std::span<const Value> values() const { return values_; }
  std::span<const Step> steps() const { return steps_; }
  const Value& value(ValueId id) const { return values_[static_cast<std::size_t>(id)]; }

  /// Throws invalid_argument if the sharding is of another mesh.
  ValueId add_value(Value value);

  /// Throws invalid_argument for a value that the program does not have.
  void add_step(Step step);

 private:
  void check(ValueId id, std::string_view step) const;

  Mesh mesh_;
  std::vector<Value> values_;
  std::vector<Step> steps_;
};

/// The same number for programs of the same values and steps, on the same mesh. The bodies of
/// functions do not count.
std::uint64_t hash(const Program& program);

/// The step's name, for errors and pictures.
const std::string& name(const Program::Step& step);

}  // namespace shardwise
