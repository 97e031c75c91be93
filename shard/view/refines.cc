#include "shardwise/shard/view/refines.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "shardwise/shard/detail/same_boxes.h"
#include "shardwise/shard/detail/spec_axes.h"
#include "shardwise/shard/shard_boxes.h"

namespace shardwise {
namespace {

/// How two shardings read tile numbers from one number per device: its mesh position where both
/// have the same devices in the same order, else its id.
struct CommonDigits {
  std::vector<detail::Digits> fine, coarse;  // per dim
};

std::vector<detail::Digits> position_digits(const Sharding& sharding) {
  std::vector<detail::Digits> digits(sharding.rank());
  for (const detail::SpecAxis& part : detail::resolve(sharding.mesh(), sharding.spec())) {
    digits[part.dim].append(part.stride, part.size, true);
  }
  return digits;
}

bool consecutive(const DeviceOrder& order) {
  return order.nth_smallest(order.size() - 1) - order.nth_smallest(0) == order.size() - 1;
}

/// Turns digits of the position into digits of the id; false where they cannot be.
bool count_by_id(const DeviceOrder& order, std::vector<detail::Digits>& digits) {
  const std::vector<DeviceOrder::Digit> id_digits = order.digits();
  for (detail::Digits& of_dim : digits) {
    const std::optional<detail::Digits> by_id = detail::by_device(of_dim, id_digits);
    if (!by_id) return false;
    of_dim = *by_id;
  }
  return true;
}

/// Absent where there is no such number.
std::optional<CommonDigits> common_digits(const Sharding& fine, const Sharding& coarse) {
  const Mesh &a = fine.mesh(), &b = coarse.mesh();
  if (a.size() != b.size() || a.is_abstract() != b.is_abstract()) return std::nullopt;
  CommonDigits common{position_digits(fine), position_digits(coarse)};
  if (a.is_abstract() || a.devices() == b.devices()) return common;
  const DeviceOrder &order_a = a.devices(), &order_b = b.devices();
  const bool same_devices = order_a.is_compact() && order_b.is_compact() &&
                            order_a.nth_smallest(0) == order_b.nth_smallest(0) &&
                            consecutive(order_a) && consecutive(order_b);
  if (!same_devices || !count_by_id(order_a, common.fine) || !count_by_id(order_b, common.coarse)) {
    return std::nullopt;
  }
  return common;
}

/// The most significant digits of a number, as many as tell `ways` values apart; absent where a
/// digit would have to be cut at no factor.
std::optional<detail::Digits> leading(const detail::Digits& digits, std::int64_t ways) {
  detail::Digits result;
  for (const detail::Digit& digit : digits.list) {
    if (ways == 1) break;
    const std::int64_t size = digit.size.divisor(), take = std::min(size, ways);
    if (size % take != 0 || ways % take != 0) return std::nullopt;
    result.append(digit.stride.divisor() * (size / take), take, true);
    ways /= take;
  }
  return result;
}

bool cuts_blocks(const Sharding& sharding) {
  const UnevenPolicy::Kind kind = sharding.policy().kind();
  return kind == UnevenPolicy::Kind::ceil || kind == UnevenPolicy::Kind::strict;
}

/// Whether each tile of a dim under `fine` lies inside the coarse tile that is `split` times as
/// large. Requires a tensor with elements.
bool splits(const Sharding& fine, const Sharding& coarse, std::size_t dim, const Shape& shape) {
  const std::int64_t extent = shape[dim];
  const std::int64_t split = fine.tiles(dim) / coarse.tiles(dim);
  if (cuts_blocks(fine) && cuts_blocks(coarse)) {
    // split fine blocks are a coarse one, or more, and then the last of them leaves it.
    const TileRange block = fine.tile_range(dim, 0, extent);
    const TileRange coarse_block = coarse.tile_range(dim, 0, extent);
    return coarse_block.end == extent ||
           (coarse_block.end % block.end == 0 && coarse_block.end / block.end == split);
  }
  for (std::int64_t element = 0; element < extent;) {
    const std::int64_t tile = fine.tile_of(dim, element, extent);
    const TileRange range = fine.tile_range(dim, tile, extent);
    const TileRange coarse_range = coarse.tile_range(dim, tile / split, extent);
    if (range.begin < coarse_range.begin || range.end > coarse_range.end) return false;
    element = range.end;
  }
  return true;
}

bool inside_everywhere(const Sharding& fine, const Sharding& coarse, const Shape& shape) {
  const bool abstract = fine.mesh().is_abstract() && coarse.mesh().is_abstract();
  const auto inside = [&](std::int64_t position, const Box& box) {
    if (box.empty()) return true;
    std::optional<std::int64_t> place = position;
    if (!abstract) place = coarse.mesh().position_of(fine.mesh().device_at(position));
    return place && *place < coarse.mesh().size() && coarse.box_at(*place, shape).contains(box);
  };
  // Where an axis tells boxes apart, one of these mostly shows it.
  for (std::int64_t position = fine.mesh().size() - 1; position > 0; position /= 2) {
    if (!inside(position, fine.box_at(position, shape))) return false;
  }
  const ShardBoxes boxes(fine, shape);
  for (auto at = boxes.begin(); at != boxes.end(); ++at) {
    if (!inside(at.position(), *at)) return false;
  }
  return true;
}

}  // namespace

bool refines(const Sharding& fine, const Sharding& coarse, const Shape& shape) {
  fine.shard_shape(shape);
  coarse.shard_shape(shape);
  if (Box::whole(shape).empty()) return true;
  const std::optional<CommonDigits> common = common_digits(fine, coarse);
  bool decided = common.has_value();
  for (std::size_t dim = 0; common && dim < shape.size(); ++dim) {
    const std::int64_t ways = coarse.tiles(dim);
    if (ways == 1) continue;
    // The coarse tile follows from the fine one where its digits lead the other's.
    const bool follows =
        fine.tiles(dim) % ways == 0 && leading(common->fine[dim], ways) == common->coarse[dim];
    if (follows && !splits(fine, coarse, dim, shape)) return false;
    decided &= follows;
  }
  return decided || inside_everywhere(fine, coarse, shape);
}

}  // namespace shardwise
