#include "shardwise/runtime/spmd/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

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
}

bool AxisList::is_prefix_of(const AxisList& other) const {
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

Sharding to_sharding(const Cut& cut, const Mesh& mesh) {
  return Sharding(mesh, to_spec(cut, mesh));
}

void project(const Cut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
             const Mesh& mesh, FactorCut& out) {
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    const AxisList& axes = cut[dim];
    if (axes.empty() || dims[dim].empty()) continue;
    if (dims[dim].size() == 1) {
      out[as_size(dims[dim][0])] = axes;
      continue;
    }
    std::size_t at = 0;
    for (const std::int32_t factor : dims[dim]) {
      std::int64_t left = factors[as_size(factor)].size;
      AxisList& to = out[as_size(factor)];
      to = {};
      while (at < axes.size() && left % mesh.axes()[axes[at]].size == 0) {
        left /= mesh.axes()[axes[at]].size;
        to.push_back(axes[at++]);
      }
      if (left != 1) break;
    }
  }
}

Cut cut_of(const FactorCut& factors, const DimFactors& dims) {
  Cut cut(dims.size());
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    for (const std::int32_t factor : dims[dim]) {
      for (const std::uint8_t axis : factors[as_size(factor)]) cut[dim].push_back(axis);
    }
  }
  return cut;
}

bool is_box(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
            const Mesh& mesh) {
  for (const std::vector<std::int32_t>& dim : dims) {
    if (dim.size() < 2) continue;
    bool may_cut = true;
    for (const std::int32_t factor : dim) {
      const std::int64_t parts = ways(cut[as_size(factor)], mesh);
      if (parts == 1 && factors[as_size(factor)].size == 1) continue;
      if (parts > 1 && (!may_cut || factors[as_size(factor)].size % parts != 0)) return false;
      may_cut = may_cut && parts == factors[as_size(factor)].size;
    }
  }
  return true;
}

}  // namespace shardwise
