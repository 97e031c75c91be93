#include "shardwise/shard/plan/transfer_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// Calls body(part) for parts of at most `most` elements, in row-major order: slabs of the
/// outermost dim whose inner dims fit. Requires most >= 1.
template <class Body>
void for_each_part(Box box, std::int64_t most, Body&& body) {
  std::int64_t inner = 1;
  std::size_t dim = box.rank();
  while (dim > 0 && inner <= most / box.extent(dim - 1)) inner *= box.extent(--dim);
  if (dim == 0) return body(box);
  // Dim number dim-1 goes by steps, those before it one by one.
  const std::size_t stepped = dim - 1;
  const std::int64_t step = most / inner;
  const Box whole = box;
  for (std::size_t d = 0; d < stepped; ++d) box.set(d, whole.begin(d), whole.begin(d) + 1);
  for (;;) {
    for (std::int64_t at = whole.begin(stepped); at < whole.end(stepped);) {
      const std::int64_t end = at + std::min(step, whole.end(stepped) - at);
      box.set(stepped, at, end);
      body(box);
      at = end;
    }
    std::size_t d = stepped;
    for (; d > 0 && box.end(d - 1) == whole.end(d - 1); --d) {
      box.set(d - 1, whole.begin(d - 1), whole.begin(d - 1) + 1);
    }
    if (d == 0) return;
    box.set(d - 1, box.begin(d - 1) + 1, box.end(d - 1) + 1);
  }
}

}  // namespace

void for_each_batch(const TransferPlan& plan, std::size_t element_bytes, std::size_t max_bytes,
                    const std::function<void(std::span<const Copy>)>& body) {
  if (element_bytes == 0 || max_bytes < element_bytes) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("transfer batches: batches of {} bytes of elements of {}; needed is room "
                    "for an element of at least 1 byte",
                    max_bytes, element_bytes));
  }
  const auto most = static_cast<std::int64_t>(
      std::min<std::size_t>(max_bytes / element_bytes, std::size_t{1} << 62));
  std::vector<Copy> batch;
  std::int64_t room = most;
  for (const Copy& copy : plan.copies()) {
    for_each_part(copy.box, most, [&](const Box& part) {
      const std::int64_t elements = part.num_elements();
      if (elements > room) {
        body(batch);
        batch.clear();
        room = most;
      }
      batch.push_back({copy.source, copy.target, part});
      room -= elements;
    });
  }
  if (!batch.empty()) body(batch);
}

void for_each_read(const TransferPlan& plan, const std::function<void(const SharedRead&)>& body) {
  PackedBoxes boxes(plan.sources().boxes().rank());
  std::vector<std::int64_t> sources, targets;
  for (const Copy& copy : plan.copies()) {
    sources.push_back(copy.source);
    targets.push_back(copy.target);
    boxes.push_back(copy.box);
  }
  const std::size_t ends = 2 * boxes.rank();
  const auto same = [&](std::size_t a, std::size_t b) {
    return sources[a] == sources[b] &&
           std::equal(boxes.begin_of(a), boxes.begin_of(a) + ends, boxes.begin_of(b));
  };
  std::vector<std::size_t> order(sources.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    if (sources[a] != sources[b]) return sources[a] < sources[b];
    if (same(a, b)) return a < b;  // copies are by target
    return std::lexicographical_compare(boxes.begin_of(a), boxes.begin_of(a) + ends,
                                        boxes.begin_of(b), boxes.begin_of(b) + ends);
  });
  std::vector<std::int64_t> readers;
  for (std::size_t first = 0; first < order.size();) {
    readers.clear();
    std::size_t last = first;
    for (; last < order.size() && same(order[first], order[last]); ++last) {
      readers.push_back(targets[order[last]]);
    }
    body({sources[order[first]], boxes[order[first]], readers});
    first = last;
  }
}

}  // namespace shardwise
