#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {
namespace {

TensorType wanted_type(const TypeCall& call) {
  need_operands(call, 0);
  return call.wanted;
}

TensorType literal_type(const TypeCall& call) {
  need_operands(call, 0);
  const std::span<const std::byte> bytes = call.get<LiteralAttributes>().bytes();
  const std::size_t needed = num_bytes(call.wanted.shape, size_bytes(call.wanted.dtype));
  if (bytes.size() != needed) {
    refuse(fmt::format("found {} bytes for {}, needed {}", bytes.size(), to_string(call.wanted),
                       needed));
  }
  if (call.wanted.dtype == DType::boolean) {
    for (const std::byte byte : bytes) {
      if (byte > std::byte{1}) {
        refuse(fmt::format("found the byte {} for bool, needed 0 or 1", static_cast<int>(byte)));
      }
    }
  }
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

void literal_kernel(const KernelCall& call) {
  copy_box(call.out.box, size_bytes(call.out.dtype),
           {call.get<LiteralAttributes>().bytes().data(), Box::whole(call.type.shape)},
           {call.out.data, call.out.box});
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
          {Op::literal,
           OpRow::Takes<LiteralAttributes>(),
           literal_type,
           free_rule,
           no_gradient,
           literal_kernel,
           {.only_moves = true, .is_remade = true}},
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
