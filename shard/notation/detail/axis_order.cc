#include "shardwise/shard/notation/detail/axis_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "shardwise/shard/detail/spec_axes.h"

namespace shardwise::detail {
namespace {

std::string name_of(const Mesh& mesh, const SpecAxis& part) {
  const Axis& axis = mesh.axes()[part.axis];
  if (part.size == axis.size) return axis.name;
  return fmt::format("{}:({}){}", axis.name, part.pre, part.size);
}

std::string names_of(const Mesh& mesh, const std::vector<SpecAxis>& parts) {
  std::string names;
  for (const SpecAxis& part : parts) names += (names.empty() ? "" : "+") + name_of(mesh, part);
  return names;
}

/// The number of parts, from the major end, that multiply to `product`; splits a part in two if the
/// product ends inside it. Absent if no number does.
std::optional<std::size_t> parts_before(std::vector<SpecAxis>& parts, std::int64_t product) {
  std::size_t count = 0;
  for (; product > 1; ++count) {
    if (count == parts.size()) return std::nullopt;
    SpecAxis& part = parts[count];
    if (product % part.size == 0) {
      product /= part.size;
    } else if (part.size % product == 0) {
      SpecAxis minor = part;
      minor.pre *= product;
      minor.size /= product;
      part.size = product;
      product = 1;
      parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(count) + 1, minor);
    } else {
      return std::nullopt;
    }
  }
  return count;
}

}  // namespace

AxisOrder spec_order(const Placements& placements, std::size_t dim) {
  const Mesh& mesh = placements.mesh();
  AxisOrder order;
  std::vector<SpecAxis> parts;  // of the later axes, major first
  for (std::size_t axis = mesh.rank(); axis-- > 0;) {
    const Placement& placement = placements.list()[axis];
    if (!placement.cuts() || placement.dim != dim) continue;
    const std::int64_t size = mesh.axes()[axis].size;
    // An axis of one device cuts nothing, whatever its split factor.
    const auto before = size == 1 ? 0 : parts_before(parts, placement.split);
    if (!before) {
      order.problem = fmt::format(
          "axis \"{}\" has {}, but no parts of the later axes of dim {}, \"{}\", multiply to {}",
          mesh.axes()[axis].name, placement.to_string(), dim, names_of(mesh, parts),
          placement.split);
    }
    parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(before.value_or(0)),
                 SpecAxis{dim, axis, 1, size, mesh.stride(axis)});
  }
  for (const SpecAxis& part : parts) order.entry.push_back(name_of(mesh, part));
  return order;
}

std::string placement_order(const Sharding& sharding, std::vector<Placement>& list) {
  const Mesh& mesh = sharding.mesh();
  list.assign(mesh.rank(), Placement::replicate());
  std::vector<SpecAxis> rest;  // of axes without a placement yet; by dim, major first
  for (const SpecAxis& part : resolve(mesh, sharding.spec())) {
    if (mesh.axes()[part.axis].size == 1) list[part.axis] = Placement::shard(part.dim);
    if (part.size > 1) rest.push_back(part);
  }
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    const auto of_axis = [axis](const SpecAxis& part) { return part.axis == axis; };
    const auto first = std::find_if(rest.begin(), rest.end(), of_axis);
    if (first == rest.end()) continue;
    auto end = first;
    std::int64_t size = 1;
    for (; end != rest.end() && end->axis == axis && end->dim == first->dim && end->pre == size;
         ++end) {
      size *= end->size;
    }
    if (size != mesh.axes()[axis].size) {
      std::vector<SpecAxis> parts;
      std::copy_if(rest.begin(), rest.end(), std::back_inserter(parts), of_axis);
      return fmt::format(
          "axis \"{}\" of size {} is used as \"{}\", of dim {}; a placement gives "
          "all of an axis to one dim, with no later axis between its parts",
          mesh.axes()[axis].name, mesh.axes()[axis].size, names_of(mesh, parts), first->dim);
    }
    std::int64_t split = 1;
    for (auto before = rest.begin(); before != first; ++before) {
      if (before->dim == first->dim) split *= before->size;
    }
    list[axis] =
        split == 1 ? Placement::shard(first->dim) : Placement::strided_shard(first->dim, split);
    rest.erase(first, end);
  }
  return "";
}

}  // namespace shardwise::detail
