#include "shardwise/runtime/program/detail/fill_target.h"

#include <cassert>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/runtime/program/detail/reduce.h"

namespace shardwise::detail {
namespace {

/// Combines the sources of copies that all have the same box.
void reduce_box(Reduction reduction, DType dtype, std::span<const Copy> copies,
                const SourceMemory& source, const BoxView& to) {
  const std::size_t element_bytes = size_bytes(dtype);
  const ConstBoxView first = source(copies.front().source);
  std::vector<const std::byte*> begins, runs(copies.size());
  for (const Copy& copy : copies) {
    const ConstBoxView from = source(copy.source);
    assert(from.box == first.box);
    begins.push_back(from.data);
  }
  const RunWalk walk = walk_runs(copies.front().box, first.box, to.box);
  for_each_run(walk, [&](std::int64_t a, std::int64_t b, std::int64_t count) {
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i] = begins[i] + static_cast<std::size_t>(a) * element_bytes;
    }
    reduce(reduction, dtype, runs, to.data + static_cast<std::size_t>(b) * element_bytes,
           static_cast<std::size_t>(count));
  });
}

}  // namespace

void fill_target(const TransferPlan& plan, std::int64_t target, DType dtype,
                 const SourceMemory& source, const BoxView& to) {
  const CopyRange copies = plan.copies_to(target);
  if (plan.reduction() == Reduction::none) {
    for (const Copy& copy : copies) {
      const ConstBoxView from = source(copy.source);
      if (from.data != to.data) copy_box(copy.box, size_bytes(dtype), from, to);
    }
    return;
  }
  std::vector<Copy> rest(copies.begin(), copies.end());
  while (!rest.empty()) {
    std::vector<Copy> same, others;
    for (const Copy& copy : rest) {
      assert(copy.box == rest.front().box || intersect(copy.box, rest.front().box).empty());
      (copy.box == rest.front().box ? same : others).push_back(copy);
    }
    reduce_box(plan.reduction(), dtype, same, source, to);
    rest = std::move(others);
  }
}

}  // namespace shardwise::detail
