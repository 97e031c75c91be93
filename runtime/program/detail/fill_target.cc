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
  std::vector<ConstBoxView> views;
  bool are_alike = true;
  for (const Copy& copy : copies) {
    views.push_back(source(copy));
    are_alike = are_alike && views.back().box == views.front().box;
  }
  // Some may come from another process, which sends only the box.
  std::vector<std::vector<std::byte>> boxes;
  if (!are_alike) {
    const Box& box = copies.front().box;
    for (ConstBoxView& view : views) {
      std::vector<std::byte>& bytes = boxes.emplace_back(num_bytes(box.shape(), element_bytes));
      copy_box(box, element_bytes, view, {bytes.data(), box});
      view = {bytes.data(), box};
    }
  }
  std::vector<const std::byte*> begins, runs(copies.size());
  for (const ConstBoxView& view : views) begins.push_back(view.data);
  const RunWalk walk = walk_runs(copies.front().box, views.front().box, to.box);
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
      const ConstBoxView from = source(copy);
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
