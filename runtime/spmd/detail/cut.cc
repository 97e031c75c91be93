#include "shardwise/runtime/spmd/detail/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::int64_t ceil_div(std::int64_t extent, std::int64_t parts) {
  return (extent + parts - 1) / parts;
}

/// The axes with tiles of this extent. In an AxisList the least extent is 0.
AxisList with_tile(AxisList axes, std::int64_t tile, std::int64_t extent, const Mesh& mesh) {
  axes.set_tile(tile == ceil_div(extent, ways(axes, mesh)) ? 0 : tile);
  return axes;
}

/// Assigns all axes of a dim to its first factor, if each tile holds whole elements of it.
bool project_to_first(const AxisList& axes, const FactorList& dim,
                      const std::vector<Factor>& factors, const Mesh& mesh, FactorCut& out) {
  const std::size_t first = as_size(dim.front());
  std::int64_t minor = 1;
  for (std::size_t i = 1; i < dim.size(); ++i) minor *= factors[as_size(dim[i])].size;
  const std::int64_t size = factors[first].size;
  const std::int64_t tile = tile_extent(size * minor, axes, mesh);
  if (tile % minor != 0) return false;
  out[first] = with_tile(axes, tile / minor, size, mesh);
  for (std::size_t i = 1; i < dim.size(); ++i) out[as_size(dim[i])] = {};
  return true;
}

/// Assigns the axes of a dim with windows to the factor that it follows already, or to the largest.
void project_window(const AxisList& axes, const FactorList& dim, const std::vector<Factor>& factors,
                    FactorCut& out) {
  std::size_t largest = 0;
  for (std::size_t i = 0; i < dim.size(); ++i) {
    if (axes.window().is_set() && axes.window() == dim.windows[i]) {
      AxisList frame = axes;
      frame.set_window({});
      out[as_size(dim[i])] = frame;
      return;
    }
    if (factors[as_size(dim[i])].size > factors[as_size(dim[largest])].size) largest = i;
  }
  out[as_size(dim[largest])] = axes.axes_only();
}

/// The cut that belongs to the cut factor, or to all.
AxisList cut_of_windows(const FactorCut& cut, const FactorList& dim) {
  AxisList axes;
  std::size_t followed = 0;
  for (std::size_t i = 0; i < dim.size(); ++i) {
    if (!cut[as_size(dim[i])].empty()) followed = i;
  }
  axes = cut[as_size(dim[followed])];
  if (!axes.empty() || !dim.needs_all) axes.set_window(dim.windows[followed]);
  return axes;
}

std::size_t axis_number(const std::string& name, const PartitionSpec& spec, const Mesh& mesh) {
  try {
    return mesh.axis_index(name);
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("found axis \"{}\" in spec \"{}\", needed one of mesh \"{}\"", name,
                            spec.to_string(), mesh.to_string()));
  }
}

}  // namespace

void AxisList::push_back(std::size_t axis) {
  if (size_ == axes_.size()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("found a dim cut over more than {} mesh axes, needed fewer", axes_.size()));
  }
  axes_[size_++] = static_cast<std::uint8_t>(axis);
  tile_ = 0;
}

AxisList AxisList::axes_only() const {
  AxisList axes = *this;
  axes.tile_ = 0;
  axes.window_ = {};
  return axes;
}

bool AxisList::is_prefix_of(const AxisList& other) const {
  if (!(window_ == other.window_) || (window_.is_set() && size_ != other.size_)) return false;
  if (size_ == other.size_ && tile_ != other.tile_) return false;
  return size_ <= other.size_ && std::equal(begin(), end(), other.begin());
}

bool AxisList::operator==(const AxisList& other) const {
  return size_ == other.size_ && is_prefix_of(other);
}

AxisSet axes_of(const Cut& cut) {
  AxisSet bits = 0;
  for (const AxisList& axes : cut) bits |= axes.set();
  return bits;
}

AxisSet changed_axes(const Cut& from, const Cut& to) {
  AxisSet changed = 0;
  for (std::size_t dim = 0; dim < from.size(); ++dim) {
    if (!(from[dim] == to[dim])) changed |= from[dim].set() | to[dim].set();
  }
  return changed;
}

std::int64_t ways(const AxisList& axes, const Mesh& mesh) {
  std::int64_t product = 1;
  for (const std::uint8_t axis : axes) product *= mesh.axes()[axis].size;
  return product;
}

std::int64_t ways(AxisSet axes, const Mesh& mesh) {
  std::int64_t product = 1;
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    if (axes >> axis & 1) product *= mesh.axes()[axis].size;
  }
  return product;
}

std::int64_t tile_extent(std::int64_t extent, const AxisList& axes, const Mesh& mesh) {
  return axes.tile() > 0 ? axes.tile() : ceil_div(extent, ways(axes, mesh));
}

void check_axes(const Mesh& mesh) {
  constexpr std::size_t kMost = std::numeric_limits<AxisSet>::digits;
  if (mesh.rank() <= kMost) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("program: found a mesh of {} axes, needed at most {}", mesh.rank(), kMost));
}

Cut to_cut(const PartitionSpec& spec, const Mesh& mesh, std::size_t rank) {
  check_axes(mesh);
  if (spec.rank() > rank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found spec \"{}\" of {} dims for a tensor of {}, needed no more",
                            spec.to_string(), spec.rank(), rank));
  }
  Cut cut(rank);
  AxisSet used = 0;
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    for (const std::string& name : spec[dim]) {
      if (name.find(':') != std::string::npos) {
        throw Error(ErrorCode::unsupported,
                    fmt::format("found \"{}\" in spec \"{}\", needed whole axes: a program has its "
                                "own mesh, give that one more axis",
                                name, spec.to_string()));
      }
      const std::size_t axis = axis_number(name, spec, mesh);
      if (used >> axis & 1) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("found axis \"{}\" twice in spec \"{}\", needed each axis once",
                                name, spec.to_string()));
      }
      used |= AxisSet{1} << axis;
      if (mesh.axes()[axis].size > 1) cut[dim].push_back(axis);
    }
  }
  return cut;
}

PartitionSpec to_spec(const Cut& cut, const Mesh& mesh) {
  std::vector<PartitionSpec::Entry> entries;
  for (const AxisList& axes : cut) {
    PartitionSpec::Entry& entry = entries.emplace_back();
    for (const std::uint8_t axis : axes) entry.push_back(mesh.axes()[axis].name);
  }
  return PartitionSpec(std::move(entries));
}

Sharding to_sharding(const Cut& cut, const Mesh& mesh, const Shape& shape) {
  if (!has_tiles(cut)) return Sharding(mesh, to_spec(cut, mesh));
  std::vector<std::vector<std::int64_t>> sizes;
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    std::vector<std::int64_t>& of_dim = sizes.emplace_back();
    const std::int64_t parts = ways(cut[dim], mesh);
    const std::int64_t tile = tile_extent(shape[dim], cut[dim], mesh);
    std::int64_t left = shape[dim];
    for (std::int64_t part = 0; part < parts; ++part) {
      of_dim.push_back(std::min(tile, left));
      left -= of_dim.back();
    }
  }
  return Sharding(mesh, to_spec(cut, mesh), UnevenPolicy::tile_sizes(std::move(sizes)));
}

Layout to_layout(const Cut& cut, const Mesh& mesh, const Shape& shape) {
  if (!has_windows(cut)) return to_sharding(cut, mesh, shape);
  Cut frame = cut;
  Shape frame_shape = shape;
  std::vector<Window> windows;
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    windows.push_back(cut[dim].window());
    if (!windows.back().is_set()) continue;
    frame[dim].set_window({});
    frame_shape[dim] = windows.back().extent;
  }
  return {to_sharding(frame, mesh, frame_shape), frame_shape, std::move(windows)};
}

bool has_windows(const Cut& cut) {
  return std::any_of(cut.begin(), cut.end(),
                     [](const AxisList& axes) { return axes.window().is_set(); });
}

Cut without_windows(const Cut& cut) {
  Cut plain = cut;
  for (AxisList& axes : plain) {
    if (axes.window().is_set()) axes = axes.axes_only();
  }
  return plain;
}

bool has_tiles(const Cut& cut) {
  return std::any_of(cut.begin(), cut.end(), [](const AxisList& axes) { return axes.tile() > 0; });
}

Cut without_tiles(const Cut& cut) {
  Cut plain = cut;
  for (AxisList& axes : plain) axes.set_tile(0);
  return plain;
}

std::string to_text(const Cut& cut, const Mesh& mesh) {
  if (!has_tiles(cut) && !has_windows(cut)) return to_spec(cut, mesh).to_string();
  std::string text;
  for (const AxisList& axes : cut) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", to_spec({axes}, mesh).to_string());
    if (axes.tile() > 0) text += fmt::format(" in {}s", axes.tile());
    if (axes.window().is_set()) text += to_string(axes.window());
  }
  return text;
}

void project(const Cut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
             const Mesh& mesh, FactorCut& out) {
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    const AxisList& axes = cut[dim];
    if (axes.empty() || dims[dim].empty()) continue;
    if (!dims[dim].windows.empty()) {
      project_window(axes, dims[dim], factors, out);
      continue;
    }
    if (dims[dim].size() == 1) {
      out[as_size(dims[dim][0])] = axes.window().is_set() ? axes.axes_only() : axes;
      continue;
    }
    std::size_t at = 0;
    for (const std::int32_t factor : dims[dim]) {
      std::int64_t left = factors[as_size(factor)].size;
      AxisList& to = out[as_size(factor)];
      to = {};
      while (axes.tile() == 0 && at < axes.size() && left % mesh.axes()[axes[at]].size == 0) {
        left /= mesh.axes()[axes[at]].size;
        to.push_back(axes[at++]);
      }
      if (left != 1) break;
    }
    if (at < axes.size()) project_to_first(axes, dims[dim], factors, mesh, out);
  }
}

AxisList cut_of_dim(const FactorCut& cut, const FactorList& dim, const std::vector<Factor>& factors,
                    const Mesh& mesh, std::size_t most_axes) {
  if (!dim.windows.empty()) return cut_of_windows(cut, dim);
  AxisList axes;
  std::int64_t extent = 1, tile = 0;
  for (const std::int32_t factor : dim) {
    const AxisList& whole = cut[as_size(factor)];
    const std::int64_t size = factors[as_size(factor)].size;
    AxisList own;
    for (std::size_t i = 0; i < whole.size() && axes.size() < most_axes; ++i) {
      own.push_back(whole[i]);
      axes.push_back(whole[i]);
    }
    if (own.size() == whole.size()) own = whole;
    extent *= size;
    tile = own.empty() ? tile * size : tile_extent(size, own, mesh);
  }
  return axes.empty() ? axes : with_tile(axes, tile, extent, mesh);
}

Cut cut_of(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
           const Mesh& mesh) {
  Cut result;
  result.reserve(dims.size());
  for (const FactorList& dim : dims) {
    result.push_back(dim.size() == 1 && dim.windows.empty() ? cut[as_size(dim[0])]
                                                            : cut_of_dim(cut, dim, factors, mesh));
  }
  return result;
}

bool is_box(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
            const Mesh& mesh) {
  for (const FactorList& dim : dims) {
    if (dim.size() < 2) continue;
    if (!dim.windows.empty()) {
      const auto is_cut = [&](std::int32_t factor) { return !cut[as_size(factor)].empty(); };
      if (std::count_if(dim.begin(), dim.end(), is_cut) > 1) return false;
      continue;
    }
    bool may_cut = true, is_first = true;
    for (const std::int32_t factor : dim) {
      const std::int64_t parts = ways(cut[as_size(factor)], mesh);
      const std::int64_t size = factors[as_size(factor)].size;
      if (parts == 1 && size == 1) continue;
      const bool is_even = size % parts == 0 && cut[as_size(factor)].tile() == 0;
      if (parts > 1 && !(may_cut && (is_first || is_even))) return false;
      may_cut = may_cut && is_even && parts == size;
      is_first = false;
    }
  }
  return true;
}

}  // namespace shardwise
