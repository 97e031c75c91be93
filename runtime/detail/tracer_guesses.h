#pragma once

#include <string_view>

namespace shardwise::first_guesses {

/// Other names for members of a Tracer and for functions; each comment has the code to write.
class OfTracer {
 public:
  void scalar(const auto&...) = delete;       // tensor<float>({}, {0.1}, "rate")
  void constant(const auto&...) = delete;     // tensor<float>({}, {0.1}, "rate")
  void parameter(const auto&...) = delete;    // tensor(shape, values, "w", MemoryKind::parameter)
  void input(const auto&...) = delete;        // tensor(shape, values, "x", MemoryKind::loader)
  void from_vector(const auto&...) = delete;  // tensor(shape, values, "x")
  void randn(const auto&...) = delete;        // normal(tracer, {DType::f32, {4, 3}}, 1, seed, "w")
  void zeros(const auto&...) = delete;        // full(tracer, {DType::f32, {4, 3}}, 0, "b")
  void ones(const auto&...) = delete;         // full(tracer, {DType::f32, {4, 3}}, 1, "b")
  void step() = delete;                       // mark_step()
  void run() = delete;                        // mark_step()
  void sync() = delete;                       // mark_step()
  void wait() = delete;                       // mark_step()
  void execute() = delete;                    // mark_step()
  void dump() const = delete;                 // dump(*tracer.last())
  void explain(std::string_view) const = delete;  // last()->explain("w1")
};

}  // namespace shardwise::first_guesses
