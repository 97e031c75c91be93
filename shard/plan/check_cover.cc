#include <fmt/format.h>

#include <string>

#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/detail/cover.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

void check_cover(std::span<const Box> boxes, const Shape& shape) {
  const Box whole = Box::whole(shape);
  num_elements(shape);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes[i].rank() != whole.rank() || !whole.contains(boxes[i])) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("cover the tensor: box {}, {}, is not inside the shape {}", i,
                              to_string(boxes[i]), to_string(shape)));
    }
  }
  PackedBoxes packed(whole.rank());
  packed.reserve(boxes.size());
  for (const Box& box : boxes) packed.push_back(box);
  if (detail::is_tiling(packed, whole)) return;
  const auto miscount = detail::find_miscount(packed, whole);
  const std::string element = fmt::format("cover the tensor: element {} of shape {}",
                                          to_string(miscount->element), to_string(shape));
  if (miscount->times == 0) {
    throw Error(ErrorCode::invalid_argument, element + " is in no box; needed is one");
  }
  Index next = miscount->element;
  for (std::int64_t& i : next) ++i;
  const Box one(miscount->element, next);
  constexpr int kMostListed = 4;
  std::string holders;
  int listed = 0;
  for (std::size_t i = 0; i < boxes.size() && listed < kMostListed; ++i) {
    if (!boxes[i].contains(one)) continue;
    holders += fmt::format("{} {} {}", listed == 0 ? ":" : " and", i, to_string(boxes[i]));
    ++listed;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is in {} boxes{}; needed is one", element, miscount->times, holders));
}

}  // namespace shardwise
