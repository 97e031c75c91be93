#pragma once

namespace shardwise::first_guesses {

/// Operations on a Tensor are functions; each comment names the function.
class OfTensor {
 public:
  void backward(const auto&...) const = delete;   // grad(loss, {w, b})
  void grad(const auto&...) const = delete;       // grad(loss, w)
  void matmul(const auto&...) const = delete;     // matmul(x, w)
  void dot(const auto&...) const = delete;        // matmul(x, w)
  void sum(const auto&...) const = delete;        // sum(x), sum(x, dim)
  void mean(const auto&...) const = delete;       // mean(x), mean(x, dim)
  void reshape(const auto&...) const = delete;    // reshape(x, {4, -1})
  void view(const auto&...) const = delete;       // reshape(x, {4, -1})
  void transpose(const auto&...) const = delete;  // transpose(x), transpose(x, dim, dim)
  void T(const auto&...) const = delete;          // transpose(x)
  void t(const auto&...) const = delete;          // transpose(x)
  void to(const auto&...) const = delete;         // convert(x, DType::f32)
  void detach(const auto&...) const = delete;     // stop_gradient(x)
  void size(const auto&...) const = delete;       // shape()[dim]
  void exp() const = delete;                      // exp(x)
  void log() const = delete;                      // log(x)
  void sqrt() const = delete;                     // sqrt(x)
  void abs() const = delete;                      // abs(x)
  void tanh() const = delete;                     // tanh(x)
  void relu() const = delete;                     // relu(x)
  void sigmoid() const = delete;                  // logistic(x)
  void numel() const = delete;                    // num_elements(x.shape())
  void rank() const = delete;                     // shape().size()
  void ndim() const = delete;                     // shape().size()
  void dim() const = delete;                      // shape().size()
  void cpu() const = delete;                      // to_vector<float>()
  void numpy() const = delete;                    // to_vector<float>()
  void num_elements() const = delete;             // num_elements(x.shape())
  void values() const = delete;                   // to_vector<float>()
  void spec() const = delete;                     // placement()
  void sharding() const = delete;                 // array().sharding()
  void max(const auto&...) const = delete;        // reduce_max(x, dims)
  void min(const auto&...) const = delete;        // reduce_min(x, dims)
  void argmax(const auto&...) const = delete;     // argmax(x, dim)
  void pow(const auto&...) const = delete;        // pow(x, y)
  void astype(const auto&...) const = delete;     // convert(x, DType::f32)
  static void randn(const auto&...) = delete;  // normal(tracer, {DType::f32, {4, 3}}, 1, seed, "w")
  static void zeros(const auto&...) = delete;  // full(tracer, {DType::f32, {4, 3}}, 0, "b")
  static void ones(const auto&...) = delete;   // full(tracer, {DType::f32, {4, 3}}, 1, "b")
  void softmax(const auto&...) const = delete;        // softmax(x, dim)
  void slice(const auto&...) const = delete;          // slice(x, begin, end)
  void mark_sharding(const auto&...) const = delete;  // mark_sharding(x, mesh, {"data", "model"})
  void operator%(const auto&) const = delete;         // rem(x, y)
  void operator&&(const auto&) const = delete;        // logical_and(x, y)
  void operator||(const auto&) const = delete;        // logical_or(x, y)
  explicit operator bool() const = delete;            // has_value(), item()
  void operator!() const = delete;                    // logical_not(x); has_value()
  template <class T = void>
  void to_host() const = delete;  // to_vector<float>()
  template <class B>
  bool operator==(const B&) const = delete;  // eq(x, y), by element
};

}  // namespace shardwise::first_guesses
