#include "shardwise/runtime/detail/transfer.h"

#include <cassert>
#include <cstddef>
#include <span>

#include "shardwise/runtime/detail/reduce.h"

namespace shardwise::detail {
namespace {

const ConstBoxView& source_view(const Transfer& transfer, const Copy& copy) {
  return transfer.sources[static_cast<std::size_t>(copy.source)];
}

void count_traffic(const Transfer& transfer, const CopyRange& copies, const Devices& devices) {
  for (const Copy& copy : copies) {
    const DeviceId from = transfer.plan.sources().place(static_cast<std::size_t>(copy.source));
    const DeviceId to = transfer.plan.targets().place(static_cast<std::size_t>(copy.target));
    if (from == to) continue;
    const std::size_t bytes =
        static_cast<std::size_t>(copy.box.num_elements()) * size_bytes(transfer.dtype);
    devices.at(from).count_sent(bytes);
    devices.at(to).count_received(bytes);
  }
}

/// Combines the sources of copies that all have the same box.
void reduce_box(const Transfer& transfer, std::span<const Copy> copies, const BoxView& to) {
  const std::size_t element_bytes = size_bytes(transfer.dtype);
  const ConstBoxView& first = source_view(transfer, copies.front());
  std::vector<const std::byte*> runs(copies.size());
  const RunWalk walk = walk_runs(copies.front().box, first.box, to.box);
  for_each_run(walk, [&](std::int64_t a, std::int64_t b, std::int64_t count) {
    for (std::size_t i = 0; i < copies.size(); ++i) {
      assert(source_view(transfer, copies[i]).box == first.box);
      runs[i] = source_view(transfer, copies[i]).data + static_cast<std::size_t>(a) * element_bytes;
    }
    reduce(transfer.plan.reduction(), transfer.dtype, runs,
           to.data + static_cast<std::size_t>(b) * element_bytes, static_cast<std::size_t>(count));
  });
}

void reduce_target(const Transfer& transfer, const CopyRange& copies, const BoxView& to) {
  std::vector<Copy> rest(copies.begin(), copies.end());
  while (!rest.empty()) {
    std::vector<Copy> same, others;
    for (const Copy& copy : rest) {
      assert(copy.box == rest.front().box || intersect(copy.box, rest.front().box).empty());
      (copy.box == rest.front().box ? same : others).push_back(copy);
    }
    reduce_box(transfer, same, to);
    rest = std::move(others);
  }
}

}  // namespace

void fill_target(const Transfer& transfer, std::int64_t target, const Devices& devices) {
  const CopyRange copies = transfer.plan.copies_to(target);
  const BoxView& to = transfer.targets[static_cast<std::size_t>(target)];
  count_traffic(transfer, copies, devices);
  if (transfer.plan.reduction() != Reduction::none) return reduce_target(transfer, copies, to);
  for (const Copy& copy : copies) {
    const ConstBoxView& from = source_view(transfer, copy);
    if (from.data == to.data) continue;
    copy_box(copy.box, size_bytes(transfer.dtype), from, to);
  }
}

}  // namespace shardwise::detail
