#include "shardwise/shard/detail/same_boxes.h"

#include <algorithm>

namespace shardwise::detail {

std::optional<Digits> by_device(const Digits& digits,
                                const std::vector<DeviceOrder::Digit>& order) {
  Digits result;
  for (const Digit& digit : digits.list) {
    // From the major end: the digit spans positions [stride, end), and is cut where digits of the
    // order end.
    std::int64_t end = digit.stride.divisor() * digit.size.divisor();
    while (end > digit.stride.divisor()) {
      const auto part = std::find_if(order.begin(), order.end(), [end](const auto& o) {
        return o.position_stride < end && end <= o.position_stride * o.size;
      });
      if (part == order.end() || part->position_stride * part->size % end != 0) return std::nullopt;
      const std::int64_t begin = std::max(digit.stride.divisor(), part->position_stride);
      if (begin % part->position_stride != 0 || end % begin != 0) return std::nullopt;
      result.append(begin / part->position_stride * part->device_stride, end / begin, true);
      end = begin;
    }
  }
  return result;
}

namespace {

std::optional<bool> same_by_digits(const Sharding& a, const Sharding& b,
                                   const std::vector<DimCut>& cuts_a,
                                   const std::vector<DimCut>& cuts_b) {
  const DeviceOrder &order_a = a.mesh().devices(), &order_b = b.mesh().devices();
  if (!order_a.is_compact() || !order_b.is_compact()) return std::nullopt;
  if (order_a.nth_smallest(0) != order_b.nth_smallest(0) ||
      order_a.nth_smallest(order_a.size() - 1) != order_b.nth_smallest(order_b.size() - 1)) {
    return false;
  }
  if (order_a.nth_smallest(order_a.size() - 1) - order_a.nth_smallest(0) != order_a.size() - 1) {
    return std::nullopt;  // devices with gaps
  }
  const auto digits_a = order_a.digits(), digits_b = order_b.digits();
  for (std::size_t dim = 0; dim < cuts_a.size(); ++dim) {
    const auto in_a = by_device(cuts_a[dim].digits(), digits_a);
    const auto in_b = by_device(cuts_b[dim].digits(), digits_b);
    if (!in_a || !in_b) return std::nullopt;
    if (*in_a != *in_b) return false;
  }
  return true;
}

}  // namespace

bool same_boxes(const Sharding& a, const Sharding& b, const std::vector<DimCut>& cuts_a,
                const std::vector<DimCut>& cuts_b) {
  if (a.rank() != b.rank() || a.mesh().size() != b.mesh().size() ||
      a.mesh().is_abstract() != b.mesh().is_abstract()) {
    return false;
  }
  const bool same_devices = a.mesh().is_abstract() || a.mesh().devices() == b.mesh().devices();
  for (std::size_t dim = 0; dim < a.rank(); ++dim) {
    const bool same =
        same_devices ? cuts_a[dim] == cuts_b[dim] : cuts_a[dim].same_rule(cuts_b[dim]);
    if (!same) return false;
  }
  if (same_devices) return true;
  if (const auto same = same_by_digits(a, b, cuts_a, cuts_b)) return *same;
  for (std::int64_t position = 0; position < a.mesh().size(); ++position) {
    const auto place = b.mesh().position_of(a.mesh().device_at(position));
    if (!place) return false;
    for (std::size_t dim = 0; dim < a.rank(); ++dim) {
      if (a.tile_index(position, dim) != b.tile_index(*place, dim)) return false;
    }
  }
  return true;
}

std::size_t hash_of_boxes(const Sharding& sharding) noexcept {
  const Mesh& mesh = sharding.mesh();
  std::uint64_t hash = 0x9e3779b97f4a7c15;
  const auto mix = [&hash](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0xff51afd7ed558ccd;
    hash ^= hash >> 32;
  };
  mix(static_cast<std::int64_t>(sharding.rank()));
  mix(mesh.size());
  for (std::size_t dim = 0; dim < sharding.rank(); ++dim) mix(sharding.tiles(dim));
  // Hashes the tiles of a few devices, chosen by rank among the ids, so that equal shardings choose
  // the same ones in any spelling.
  constexpr std::int64_t kProbes = 8;
  std::uint64_t draw = 1;
  for (std::int64_t i = 0; i < std::min(kProbes, mesh.size()); ++i) {
    draw = draw * 6364136223846793005 + 1442695040888963407;
    const std::int64_t k =
        mesh.size() <= kProbes ? i : static_cast<std::int64_t>(draw >> 1) % mesh.size();
    const DeviceId device = mesh.is_abstract() ? k : mesh.devices().nth_smallest(k);
    mix(device);
    const std::int64_t position = mesh.is_abstract() ? k : mesh.position_of(device).value_or(0);
    for (std::size_t dim = 0; dim < sharding.rank(); ++dim) mix(sharding.tile_index(position, dim));
  }
  return hash;
}

}  // namespace shardwise::detail
