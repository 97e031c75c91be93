#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

// Collectives that XLA's partitioner inserts for small programs, or the textbook if less moves:
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

/// Operand and result are cut by rows.
std::function<Tensor(Tracer&)> of_rows(std::function<Tensor(const Tensor&)> op) {
  return [=](Tracer& tracer) {
    Tensor y = op(marked(tracer, {1024, 64}, {{"d"}, {}}, MemoryKind::loader));
    mark_sharding(y, {{"d"}, {}});
    return y;
  };
}

/// 64 rows of logits; each device has some columns.
std::function<Tensor(Tracer&)> of_a_vocabulary(std::function<Tensor(const Tensor&)> op) {
  return [=](Tracer& tracer) {
    return op(marked(tracer, {64, 1024}, {{}, {"m"}}, MemoryKind::loader));
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
    {"a roll by one: a row of a neighbour, in one of two moves", "d=8", 2 * 256,
     of_rows([](const Tensor& x) {
       return concatenate({slice(x, {1, 0}, {1024, 64}), slice(x, {0, 0}, {1, 64})}, 0);
     })},
    {"a shift: a row of a neighbour", "d=8", 256, of_rows([](const Tensor& x) {
       return pad(slice(x, {1, 0}, {1024, 64}), {0, 0}, {1, 0}, {1, 1}, 0.0);
     })},
    {"a shift by all that a device has", "d=8", 128 * 256, of_rows([](const Tensor& x) {
       return pad(slice(x, {128, 0}, {1024, 64}), {0, 0}, {128, 0}, {1, 1}, 0.0);
     })},
    {"a sum of three neighbours: a row on either side", "d=8", 2 * 256,
     of_rows([](const Tensor& x) {
       const Tensor wide = pad(x, {1, 0}, {1, 0}, {1, 1}, 0.0);
       return slice(wide, {0, 0}, {1024, 64}) + slice(wide, {1, 0}, {1025, 64}) +
              slice(wide, {2, 0}, {1026, 64});
     })},
    {"every second row", "d=8", 0, of_rows([](const Tensor& x) {
       return slice(x, {0, 0}, {1024, 64}, {2, 1});
     })},
    {"rows apart", "d=8", 0, of_rows([](const Tensor& x) {
       return pad(x, {0, 0}, {1, 0}, {2, 1}, 0.0);
     })},
    {"the first half", "d=8", 64 * 256, of_rows([](const Tensor& x) {
       return slice(x, {0, 0}, {512, 64});
     })},
    {"four rows of padding", "d=8", 32 * 256, of_rows([](const Tensor& x) {
       return pad(x, {4, 0}, {4, 0}, {1, 1}, 0.0);
     })},
    {"a reversal: the shard of the device opposite", "d=8", 128 * 256,
     of_rows([](const Tensor& x) { return reverse(x, {0}); })},
    {"one after another: of the two moves each device needs one", "d=8", 2 * 256 * 256,
     of_rows([](const Tensor& x) {
       return concatenate({x, x * 2.0}, 0);
     })},
    {"the first row for all", "d=8", 256,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {1024, 64}, {{"d"}, {}}, MemoryKind::loader);
       Tensor y = slice(x, {0, 0}, {1, 64}) * 2.0;
       mark_sharding(y, {{}, {}});
       return y;
     }},
    {"rows at a place that is computed", "d=8", 2 * 16 * 256,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {1024, 64}, {{"d"}, {}}, MemoryKind::loader);
       const Tensor start = convert(reduce_max(slice(x, {0, 0}, {1, 64}), {0, 1}), DType::i32);
       const Tensor column = convert(full_like(start, 0), DType::i32);
       return dynamic_slice(x, {start, column}, {16, 64});
     }},
    {"rows written at a place that is computed", "d=8", 256,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {1024, 64}, {{"d"}, {}}, MemoryKind::loader);
       const Tensor rows = marked(tracer, {16, 64}, {{}, {}}, MemoryKind::loader);
       const Tensor start = convert(reduce_max(slice(x, {0, 0}, {1, 64}), {0, 1}), DType::i32);
       const Tensor column = convert(full_like(start, 0), DType::i32);
       Tensor y = dynamic_update_slice(x, rows, {start, column});
       mark_sharding(y, {{"d"}, {}});
       return y;
     }},
    {"the middle third of queries, keys and values that are cut", "m=2", 0,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {64, 768}, {{}, {"m"}}, MemoryKind::loader);
       return slice(x, {0, 256}, {64, 512}) * 2.0;
     }},
    {"the first place of a sequence that is cut", "d=4,m=2", 1024,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {16, 128, 64}, {{"d"}, {"m"}, {}}, MemoryKind::loader);
       return reshape(slice(x, {0, 0, 0}, {16, 1, 64}), {16, 64}) * 2.0;
     }},
    {"the largest of a vocabulary that is cut: its numbers, and where they are", "m=8", 2 * 448,
     of_a_vocabulary([](const Tensor& x) { return argmax(x, 1); })},
    {"the least: likewise", "m=8", 2 * 448,
     of_a_vocabulary([](const Tensor& x) { return argmin(x, 1); })},
    {"a product over a vocabulary that is cut: a number a row", "m=8", 448,
     of_a_vocabulary([](const Tensor& x) { return reduce_prod(x, {1}); })},
    {"of narrow numbers: the parts are f32", "m=8", 448,
     of_a_vocabulary([](const Tensor& x) { return reduce_prod(convert(x, DType::bf16), {1}); })},
    {"a normalizer over a vocabulary that is cut: the largest and the sum", "m=8", 2 * 448,
     of_a_vocabulary([](const Tensor& x) {
       const Tensor most = reduce_max(x, {1});
       return most + log(sum(exp(x - spread(most, x.shape(), {1})), 1));
     })},
    {"a loss over a vocabulary that is cut: no logit moves", "m=8", 4 * 448 + 14,
     of_a_vocabulary([](const Tensor& x) {
       return cross_entropy(x, iota(x, {DType::i32, {64}}, 0));
     })},
    {"the largest of rows that are cut as well", "d=2,m=4", 2 * 192,
     [](Tracer& tracer) {
       const Tensor x = marked(tracer, {64, 1024}, {{"d"}, {"m"}}, MemoryKind::loader);
       Tensor y = argmax(x, 1);
       mark_sharding(y, {{"d"}});
       return y;
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
    EXPECT_LE(wire, c.bound) << dump_steps(*tracer.last());
  }
}

}  // namespace
}  // namespace shardwise
