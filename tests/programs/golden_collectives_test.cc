#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

// What the partitioner of XLA inserts for small programs, or the textbook where that moves less:
// the cases of JAX 0.10.2 on 8 CPU devices, measured for this project. Bytes are those of a ring,
// on one device.

namespace shardwise {
namespace {

struct GoldenCase {
  const char* name;
  const char* mesh;
  std::size_t bound;  ///< of wire bytes
  std::function<Tensor(Tracer&)> program;
};

Tensor marked(Tracer& tracer, const Shape& shape, const PartitionSpec& spec, MemoryKind kind) {
  Tensor tensor = counting(tracer, shape, "tensor", kind);
  mark_sharding(tensor, spec);
  return tensor;
}

/// The gradient of mean(square(table[ids] - target)), cut as the table.
std::function<Tensor(Tracer&)> embedding(PartitionSpec table_spec, PartitionSpec ids_spec) {
  return [=](Tracer& tracer) {
    const Tensor table = marked(tracer, {1024, 64}, table_spec, MemoryKind::parameter);
    Tensor ids = convert(marked(tracer, {64, 32}, ids_spec, MemoryKind::loader), DType::i32);
    const Tensor target = marked(tracer, {64, 32, 64}, ids_spec.padded(3), MemoryKind::loader);
    const Tensor error = take(table, ids, 0) - target;
    const Tensor loss = reduce_sum(error * error, {0, 1, 2}) / (64.0 * 32 * 64);
    Tensor gradient = grad(loss, {table})[0];
    mark_sharding(gradient, table_spec);
    return gradient;
  };
}

/// The gradient of sum(square(x w)) with respect to w, whose columns are cut over the batch's axis.
std::function<Tensor(Tracer&)> fsdp_product(std::int64_t batch) {
  return [=](Tracer& tracer) {
    const Tensor x = marked(tracer, {batch, 256}, {{"d"}, {}}, MemoryKind::loader);
    const Tensor w = marked(tracer, {256, 512}, {{}, {"d"}}, MemoryKind::parameter);
    const Tensor y = einsum("bi,io->bo", x, w);
    Tensor gradient = grad(reduce_sum(y * y, {0, 1}), {w})[0];
    mark_sharding(gradient, {{}, {"d"}});
    return gradient;
  };
}

const GoldenCase kCases[] = {
    {"embedding, vocabulary cut", "m=8", 917504, embedding({{"m"}, {}}, {{}, {}})},
    {"embedding, vocabulary and batch cut", "d=4,m=2", 131072 + 196608,
     embedding({{"m"}, {}}, {{"d"}, {}})},
    {"embedding, width and batch cut", "d=4,m=2", 196608, embedding({{}, {"m"}}, {{"d"}, {}})},
    {"embedding, vocabulary and batch cut over one axis", "d=8", 458752,
     embedding({{"d"}, {}}, {{"d"}, {}})},
    {"FSDP product, small batch: the batch is gathered", "d=8", 57344, fsdp_product(64)},
    {"FSDP product, large batch: reduce-scatter", "d=8", 917504, fsdp_product(8192)},
    {"a reshard that XLA does by gathering all", "x=4,y=2", 3 * 2048,
     [](Tracer& tracer) {
       Tensor y = marked(tracer, {16, 16, 16}, {{"y"}, {}, {"x"}}, MemoryKind::loader) + 1.0;
       mark_sharding(y, {{}, {"x", "y"}, {}});
       return y;
     }},
    {"sort along a dim that is cut", "x=4,y=2", 48,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {8, 8}, {{"x"}, {"y"}}, MemoryKind::loader);
       Tensor y = sort(x, 0).values;
       mark_sharding(y, {{"x"}, {"y"}});
       return y;
     }},
    {"reshape across the cut", "x=4,y=2", 96,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {12, 16}, {{"x"}, {"y"}}, MemoryKind::loader);
       Tensor y = reshape(x * 2.0, {16, 12});
       mark_sharding(y, {{"x"}, {"y"}});
       return y + 1.0;
     }},
};

TEST(GoldenCollectives, MoveNoMoreThanXlaOrTheTextbook) {
  for (const GoldenCase& c : kCases) {
    SCOPED_TRACE(c.name);
    Devices devices(8);
    Tracer tracer(devices, {.mesh = Mesh::parse(c.mesh)});
    const Tensor result = c.program(tracer);
    tracer.mark_step();
    std::size_t wire = 0;
    for (const CollectiveTotal& total : tracer.last()->collectives()) wire += total.wire_bytes;
    EXPECT_LE(wire, c.bound) << tracer.last()->dump_steps();
  }
}

}  // namespace
}  // namespace shardwise
