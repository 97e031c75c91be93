#include "shardwise/shard/detail/spec_axes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shardwise/shard/detail/axis_ref.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void fail(ErrorCode code, const PartitionSpec& spec, std::size_t dim,
                       const std::string& what) {
  throw Error(code, fmt::format("sharding \"{}\": dim {}: {}", spec.to_string(), dim, what));
}

SpecAxis resolve_one(const Mesh& mesh, const PartitionSpec& spec, std::size_t dim,
                     const std::string& text) {
  try {
    const AxisRef ref = parse_axis_ref(text, "axis");
    const std::size_t axis = mesh.axis_index(ref.axis);
    const std::int64_t whole = mesh.axes()[axis].size;
    const std::int64_t size = ref.size == 0 ? whole : ref.size;
    std::int64_t used = 0;
    if (__builtin_mul_overflow(ref.pre, size, &used) || whole % used != 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("axis \"{}\" of size {} has no part ({}){}; needed is a product that "
                              "divides the size",
                              ref.axis, whole, ref.pre, size));
    }
    return {dim, axis, ref.pre, size, mesh.stride(axis) * (whole / used)};
  } catch (const Error& error) {
    fail(error.code(), spec, dim, error.what());
  }
}

/// Two parts of one axis go together if one ends before the other begins, and divides it.
bool compatible(const SpecAxis& a, const SpecAxis& b) {
  const SpecAxis& major = a.pre <= b.pre ? a : b;
  const SpecAxis& minor = a.pre <= b.pre ? b : a;
  return minor.pre % (major.pre * major.size) == 0;
}

}  // namespace

std::vector<SpecAxis> resolve(const Mesh& mesh, const PartitionSpec& spec) {
  std::vector<SpecAxis> parts;
  parts.reserve(mesh.rank());
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    for (const std::string& text : spec[dim]) {
      const SpecAxis part = resolve_one(mesh, spec, dim, text);
      const std::int64_t whole = mesh.axes()[part.axis].size;
      for (const SpecAxis& other : parts) {
        if (other.axis != part.axis) continue;
        // An axis or part of size 1 uses up nothing but its name.
        const bool in_part = part.size != whole && other.size != whole;
        if (in_part && (part.size == 1 || other.size == 1 || compatible(part, other))) continue;
        fail(ErrorCode::invalid_argument, spec, dim,
             fmt::format("axis \"{}\" is used twice; needed is at most once",
                         mesh.axes()[part.axis].name));
      }
      parts.push_back(part);
    }
  }
  return parts;
}

std::vector<SpecAxis> unused(const Mesh& mesh, const std::vector<SpecAxis>& used) {
  std::vector<SpecAxis> rest;
  std::vector<SpecAxis> parts;
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    const std::int64_t whole = mesh.axes()[axis].size, stride = mesh.stride(axis);
    parts.clear();
    for (const SpecAxis& part : used) {
      if (part.axis == axis && part.size > 1) parts.push_back(part);
    }
    if (parts.size() > 1) {
      std::sort(parts.begin(), parts.end(),
                [](const SpecAxis& a, const SpecAxis& b) { return a.pre < b.pre; });
    }
    std::int64_t done = 1;
    for (const SpecAxis& part : parts) {
      if (part.pre > done) {
        rest.push_back({0, axis, done, part.pre / done, stride * (whole / part.pre)});
      }
      done = part.pre * part.size;
    }
    if (done < whole) rest.push_back({0, axis, done, whole / done, stride});
  }
  return rest;
}

}  // namespace shardwise::detail
