#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

#include "shardwise/shard/detail/spec_axes.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/shard/view/explain.h"

namespace shardwise {
namespace {

using Problem = SpecProblem::Kind;
using Entry = PartitionSpec::Entry;

constexpr std::size_t kMostAlternatives = 5;

PartitionSpec with_entry(const PartitionSpec& spec, std::size_t dim, Entry entry) {
  std::vector<Entry> entries = spec.entries();
  entries[dim] = std::move(entry);
  return PartitionSpec(std::move(entries));
}

/// The axis or part as a spec writes it.
std::string text_of(const Mesh& mesh, const detail::SpecAxis& part) {
  const Axis& axis = mesh.axes()[part.axis];
  if (part.size == axis.size) return axis.name;
  return fmt::format("{}:({}){}", axis.name, part.pre, part.size);
}

/// The axes and parts that a valid spec leaves free, the nearest to `name` first.
std::vector<std::string> free_axes(const Mesh& mesh, const PartitionSpec& spec,
                                   std::string_view name) {
  std::vector<std::string> texts;
  for (const detail::SpecAxis& part : detail::unused(mesh, detail::resolve(mesh, spec))) {
    texts.push_back(text_of(mesh, part));
  }
  std::stable_sort(texts.begin(), texts.end(), [name](const std::string& a, const std::string& b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  return texts;
}

bool resolves(const Mesh& mesh, const PartitionSpec& spec) {
  try {
    detail::resolve(mesh, spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Requires an entry that resolves.
std::int64_t ways_of(const Mesh& mesh, const Entry& entry) {
  std::int64_t ways = 1;
  for (const detail::SpecAxis& part : detail::resolve(mesh, PartitionSpec{entry})) {
    ways *= part.size;
  }
  return ways;
}

/// The mesh, shape and policy that a spec is checked against.
struct Context {
  const Mesh& mesh;
  const std::optional<Shape>& shape;
  const UnevenPolicy& policy;

  bool is_strict() const { return shape && policy.kind() == UnevenPolicy::Kind::strict; }
};

struct Found {
  SpecProblem problem;
  std::size_t place = 0;  // of the axis in its entry
};

Problem kind_of(const Mesh& mesh, const std::string& axis, const Error& error) {
  if (error.code() == ErrorCode::no_such_name) return Problem::unknown_axis;
  return resolves(mesh, PartitionSpec{{axis}}) ? Problem::used_twice : Problem::bad_part;
}

/// Also sets `valid` to the spec without the axes at fault.
std::vector<Found> axis_problems(const Mesh& mesh, const PartitionSpec& spec,
                                 PartitionSpec& valid) {
  std::vector<Found> found;
  valid = PartitionSpec::replicated(spec.rank());
  for (std::size_t dim = 0; dim < spec.rank(); ++dim) {
    for (std::size_t place = 0; place < spec[dim].size(); ++place) {
      const std::string& axis = spec[dim][place];
      Entry entry = valid[dim];
      entry.push_back(axis);
      const PartitionSpec longer = with_entry(valid, dim, std::move(entry));
      try {
        detail::resolve(mesh, longer);
        valid = longer;
      } catch (const Error& error) {
        found.push_back({{kind_of(mesh, axis, error), dim, {axis}, 0, 0, error.what()}, place});
      }
    }
  }
  for (Found& f : found) f.problem.other_axes = free_axes(mesh, valid, f.problem.axes[0]);
  return found;
}

SpecProblem uneven_problem(const PartitionSpec& spec, std::size_t dim, std::int64_t extent,
                           std::int64_t ways) {
  std::string nearest;
  const std::int64_t below = extent - extent % ways;
  std::int64_t above = 0;
  if (below > 0) nearest = fmt::format(" {}", below);
  if (!__builtin_add_overflow(below, ways, &above)) {
    nearest += fmt::format("{} {}", nearest.empty() ? "" : " or", above);
  }
  return {Problem::uneven,
          dim,
          spec[dim],
          extent,
          ways,
          fmt::format("dim {} has extent {} over axes \"{}\", {} ways; needed under the policy "
                      "strict is a multiple, as{}",
                      dim, extent, fmt::join(spec[dim], "+"), ways, nearest)};
}

std::vector<Found> find_problems(const Context& context, const PartitionSpec& spec) {
  PartitionSpec valid;
  std::vector<Found> found = axis_problems(context.mesh, spec, valid);
  const std::size_t rank = context.shape ? context.shape->size() : std::min(spec.rank(), kMaxRank);
  if (spec.rank() != rank) {
    found.push_back({{Problem::rank,
                      0,
                      {},
                      0,
                      0,
                      fmt::format("the spec has {} dims; needed are {}", spec.rank(), rank)}});
  }
  for (std::size_t dim = 0; context.is_strict() && dim < std::min(rank, spec.rank()); ++dim) {
    const std::int64_t extent = (*context.shape)[dim], ways = ways_of(context.mesh, valid[dim]);
    if (extent % ways != 0) found.push_back({uneven_problem(valid, dim, extent, ways)});
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.problem.dim < b.problem.dim; });
  if (!found.empty()) return found;
  try {
    const Sharding sharding(context.mesh, spec, context.policy);
    if (context.shape) sharding.shard_shape(*context.shape);
  } catch (const Error& error) {
    found.push_back({{Problem::tile_sizes, 0, {}, 0, 0, error.what()}});
  }
  return found;
}

/// Entries for a dim whose ways divide its extent: some of the dim's axes, with or without a free
/// axis, or the largest part of it that divides. The nearest in number of ways come first, an empty
/// entry last.
std::vector<Entry> dividing_entries(const Mesh& mesh, const PartitionSpec& spec, std::size_t dim,
                                    std::int64_t extent) {
  constexpr std::size_t kMostAxes = 6;  // every choice among them is tried
  std::vector<std::pair<std::int64_t, Entry>> found;
  const auto consider = [&](const Entry& entry) {
    if (entry.empty() || !resolves(mesh, with_entry(spec, dim, entry))) return;
    const std::int64_t ways = ways_of(mesh, entry);
    if (ways > 1 && extent % ways == 0) found.emplace_back(ways, entry);
  };
  const std::vector<std::string> free = free_axes(mesh, with_entry(spec, dim, {}), "");
  const std::size_t axes = std::min(spec[dim].size(), kMostAxes);
  for (std::size_t choice = std::size_t{1} << axes; choice-- > 0;) {
    Entry some;
    for (std::size_t i = 0; i < axes; ++i) {
      if ((choice >> i & 1) != 0) some.push_back(spec[dim][i]);
    }
    consider(some);
    const std::int64_t ways = ways_of(mesh, some);
    if (extent % ways != 0) continue;
    for (const std::string& axis : free) {
      some.push_back(axis);
      consider(some);
      const std::int64_t size = ways_of(mesh, {axis}), part = std::gcd(size, extent / ways);
      if (part > 1 && part < size && axis.find(':') == std::string::npos) {
        some.back() = fmt::format("{}:(1){}", axis, part);
        consider(some);
      }
      some.pop_back();
    }
  }
  const std::int64_t ways = ways_of(mesh, spec[dim]);
  const auto factor = [ways](std::int64_t other) {
    return static_cast<double>(std::max(other, ways)) / static_cast<double>(std::min(other, ways));
  };
  std::stable_sort(found.begin(), found.end(), [&factor](const auto& a, const auto& b) {
    return factor(a.first) < factor(b.first);
  });
  std::vector<Entry> entries;
  for (auto& [other, entry] : found) {
    if (std::find(entries.begin(), entries.end(), entry) == entries.end()) entries.push_back(entry);
    if (entries.size() == kMostAlternatives) break;
  }
  entries.emplace_back();
  return entries;
}

/// The spec with a problem fixed in each possible way, the nearest first.
std::vector<PartitionSpec> fixes(const Context& context, const PartitionSpec& spec,
                                 const Found& found) {
  const SpecProblem& problem = found.problem;
  std::vector<PartitionSpec> specs;
  if (problem.kind == Problem::rank) {
    std::vector<Entry> entries = spec.entries();
    entries.resize(context.shape ? context.shape->size() : kMaxRank);
    specs.emplace_back(std::move(entries));
  } else if (problem.kind == Problem::uneven) {
    for (Entry& entry : dividing_entries(context.mesh, spec, problem.dim, problem.extent)) {
      specs.push_back(with_entry(spec, problem.dim, std::move(entry)));
    }
  } else if (problem.kind != Problem::tile_sizes) {
    Entry entry = spec[problem.dim];
    for (const std::string& axis : problem.other_axes) {
      entry[found.place] = axis;
      specs.push_back(with_entry(spec, problem.dim, entry));
    }
    entry.erase(entry.begin() + static_cast<std::ptrdiff_t>(found.place));
    specs.push_back(with_entry(spec, problem.dim, entry));
  }
  return specs;
}

/// Fixes one problem after the other, by the choices that are nearest in sum. Taking the nearest
/// choice each time leads to a valid spec, and is tried first.
std::vector<PartitionSpec> nearest_specs(const Context& context, const PartitionSpec& spec,
                                         std::size_t problems) {
  const std::size_t most_steps = problems + 200;
  std::vector<PartitionSpec> specs;
  std::multimap<std::size_t, PartitionSpec> open{{0, spec}};
  for (std::size_t step = 0; step < most_steps && !open.empty(); ++step) {
    const auto [cost, nearest] = *open.begin();
    open.erase(open.begin());
    std::vector<Found> found = find_problems(context, nearest);
    if (found.empty()) {
      if (std::find(specs.begin(), specs.end(), nearest) == specs.end()) specs.push_back(nearest);
      if (specs.size() == kMostAlternatives) break;
      continue;
    }
    // Which numbers of ways fit is only known once the axes are.
    std::stable_partition(found.begin(), found.end(),
                          [](const Found& f) { return f.problem.kind != Problem::uneven; });
    std::size_t choice = 0;
    for (PartitionSpec& fixed : fixes(context, nearest, found.front())) {
      open.emplace(cost + choice++, std::move(fixed));
    }
  }
  return specs;
}

/// The shape with the dims that do not divide made smaller or larger.
std::vector<Shape> nearest_shapes(const Context& context, const std::vector<Found>& found) {
  std::vector<Shape> shapes;
  for (const bool larger : {false, true}) {
    Shape shape = *context.shape;
    bool fits = true;
    for (const auto& [problem, place] : found) {
      std::int64_t& extent = shape[problem.dim];
      extent -= problem.extent % problem.ways;
      fits &= larger ? !__builtin_add_overflow(extent, problem.ways, &extent) : extent > 0;
    }
    if (fits) shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace

SpecAdvice advise(const Mesh& mesh, const PartitionSpec& spec, const std::optional<Shape>& shape,
                  const UnevenPolicy& policy) {
  if (shape) Box::whole(*shape);  // throws for a negative extent
  const Context context{mesh, shape, policy};
  const std::vector<Found> found = find_problems(context, spec);
  SpecAdvice advice;
  bool uneven_only = !found.empty();
  for (const Found& f : found) {
    advice.problems.push_back(f.problem);
    uneven_only &= f.problem.kind == Problem::uneven;
  }
  if (!found.empty()) advice.specs = nearest_specs(context, spec, found.size());
  if (uneven_only) advice.shapes = nearest_shapes(context, found);
  return advice;
}

std::string SpecAdvice::to_string() const {
  if (problems.empty()) return "the spec is valid\n";
  std::string text;
  const auto out = std::back_inserter(text);
  for (const SpecProblem& problem : problems) {
    fmt::format_to(out, "{}\n", problem.what);
    if (!problem.other_axes.empty()) {
      fmt::format_to(out, "  free on the mesh: {}\n", fmt::join(problem.other_axes, ", "));
    }
  }
  for (const PartitionSpec& spec : specs) {
    fmt::format_to(out, "valid is the spec \"{}\"\n", spec.to_string());
  }
  for (const Shape& shape : shapes) {
    fmt::format_to(out, "valid is the shape {}\n", shardwise::to_string(shape));
  }
  return text;
}

}  // namespace shardwise
