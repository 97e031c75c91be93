#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/runtime/kernels/detail/scratch.h"

namespace shardwise {
namespace {

template <class T>
using SortBits = std::conditional_t<sizeof(T) <= 4, std::uint32_t, std::uint64_t>;

/// An unsigned number in the order of the element: -0 equals 0, and every NaN is the largest.
template <class T>
auto sort_key(T element) {
  if constexpr (std::floating_point<T>) {
    if (std::isnan(element)) return std::numeric_limits<SortBits<T>>::max();
    using Bits = SortBits<T>;
    constexpr Bits kSign = Bits{1} << (8 * sizeof(T) - 1);
    const Bits bits = std::bit_cast<Bits>(element == 0 ? T{0} : element);  // -0 equals 0
    return (bits & kSign) != 0 ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | kSign);
  } else {
    using Bits = std::make_unsigned_t<T>;
    constexpr Bits kLowest = static_cast<Bits>(std::numeric_limits<T>::lowest());
    return static_cast<Bits>(static_cast<Bits>(element) ^ kLowest);
  }
}

/// As sort_key, in the requested order.
template <class T>
auto sort_key(T element, SortOrder order) {
  const auto key = sort_key(element);
  return order == SortOrder::ascending ? key : static_cast<decltype(key)>(~key);
}

/// Key and index, so that no two items are equal and any sort is stable.
struct WideSortItem {
  std::uint64_t key;
  std::uint32_t index;

  auto operator<=>(const WideSortItem&) const = default;
};

/// The same for keys up to 32 bits, as one number.
struct SortItem {
  SortItem() = default;
  SortItem(std::uint32_t key, std::uint32_t index) : both(std::uint64_t{key} << 32 | index) {}

  bool operator<(const SortItem& other) const { return both < other.both; }

  std::uint64_t both;
};
std::uint32_t index_of(const WideSortItem& item) { return item.index; }
std::uint32_t index_of(const SortItem& item) { return static_cast<std::uint32_t>(item.both); }

/// Sorts `count` elements that are `step` apart.
template <class T, class Item>
void sort_line(const T* in, std::int64_t step, std::int64_t count, SortOrder order, Item* items,
               std::int32_t* out) {
  for (std::int64_t i = 0; i < count; ++i) {
    items[i] = Item{sort_key(in[i * step], order), static_cast<std::uint32_t>(i)};
  }
  std::sort(items, items + count);
  for (std::int64_t i = 0; i < count; ++i) {
    out[i * step] = static_cast<std::int32_t>(index_of(items[i]));
  }
}

}  // namespace

void argsort(const ConstShardView& in, std::size_t dim, SortOrder order, const ShardView& out) {
  assert(out.dtype == DType::i32 && in.box == out.box);
  if (in.box.empty()) return;
  if (detail::is_half(in.dtype)) return argsort(detail::Widened(in).view(), dim, order, out);
  const std::int64_t count = in.box.extent(dim);
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < in.box.rank(); ++d) inner *= in.box.extent(d);
  std::int32_t* const indices = reinterpret_cast<std::int32_t*>(out.data);
  detail::with_ordered_type(in.dtype, [&](auto zero) {
    using T = decltype(zero);
    using Item = std::conditional_t<(sizeof(T) > 4), WideSortItem, SortItem>;
    const detail::Scratch items(as_size(count) * sizeof(Item));
    const T* const data = reinterpret_cast<const T*>(in.data);
    for (std::int64_t i = 0; i < in.box.num_elements(); i += count * inner) {
      for (std::int64_t j = i; j < i + inner; ++j) {
        sort_line(data + j, inner, count, order, items.as<Item>(), indices + j);
      }
    }
  });
}

}  // namespace shardwise
