#include <cassert>
#include <cstring>

#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

TensorType wanted_type(const TypeCall& call) {
  need_operands(call, 0);
  return call.wanted;
}

TensorType iota_type(const TypeCall& call) {
  need_operands(call, 0);
  need_dim(call.get<DimAttributes>().dim, call.wanted.shape.size());
  need_numbers(call.wanted.dtype);
  return call.wanted;
}

TensorType random_type(const TypeCall& call) {
  need_operands(call, 1);
  if (!(call.operands[0] == TensorType{DType::u64, {}})) {
    refuse("found a key of " + to_string(call.operands[0]) + ", needed u64[]");
  }
  return {DType::u32, call.wanted.shape};
}

void input_kernel(const KernelCall&) { assert(false && "an input is bound, not computed"); }

void constant_kernel(const KernelCall& call) {
  fill(call.get<NumberAttributes>().number, call.out);
}

void iota_kernel(const KernelCall& call) { iota(as_size(call.get<DimAttributes>().dim), call.out); }

void random_kernel(const KernelCall& call) {
  std::uint64_t key = 0;
  std::memcpy(&key, call.operands[0].data, sizeof key);
  random_bits(key, call.type.shape, call.out);
}

}  // namespace

std::vector<OpRow> leaf_rows() {
  return {{Op::input, wanted_type, free_rule, no_gradient, input_kernel},
          {Op::constant,
           OpRow::Takes<NumberAttributes>(),
           wanted_type,
           free_rule,
           no_gradient,
           constant_kernel,
           {.is_remade = true}},
          {Op::iota,
           OpRow::Takes<DimAttributes>(),
           iota_type,
           free_rule,
           no_gradient,
           iota_kernel,
           {.is_remade = true}},
          {Op::random_bits, random_type, free_rule, no_gradient, random_kernel}};
}

}  // namespace shardwise::detail
