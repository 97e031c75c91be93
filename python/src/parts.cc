#include "parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "gil.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::python {
namespace {

struct Part {
  Box box;
  const std::byte* data;
  Ints strides;  // in bytes
  bool is_contiguous;
};

bool is_contiguous(const Box& box, const Ints& strides, std::size_t element_bytes) {
  auto step = static_cast<std::int64_t>(element_bytes);
  for (std::size_t d = box.rank(); d-- > 0;) {
    if (box.extent(d) != 1 && strides[d] != step) return false;
    step *= box.extent(d);
  }
  return true;
}

/// Copies the elements of `box`, which is inside both, to row-major memory of `out`.
void copy_strided(const Box& box, std::size_t element_bytes, const Part& from, std::byte* out,
                  const Box& out_box) {
  const std::size_t rank = box.rank();
  Ints out_strides(rank);
  auto step = static_cast<std::int64_t>(element_bytes);
  for (std::size_t d = rank; d-- > 0;) {
    out_strides[d] = step;
    step *= out_box.extent(d);
  }
  const std::byte* source = from.data;
  for (std::size_t d = 0; d < rank; ++d) {
    source += (box.begin(d) - from.box.begin(d)) * from.strides[d];
    out += (box.begin(d) - out_box.begin(d)) * out_strides[d];
  }
  // Runs along the last dim, or single elements if they are not side by side.
  Ints at(rank, 0);
  const std::size_t last = rank == 0 ? 0 : rank - 1;
  const bool runs = rank > 0 && from.strides[last] == static_cast<std::int64_t>(element_bytes);
  const std::int64_t count = rank == 0 ? 1 : box.extent(last);
  for (;;) {
    if (runs) {
      std::memcpy(out, source, static_cast<std::size_t>(count) * element_bytes);
    } else {
      for (std::int64_t i = 0; i < count; ++i) {
        std::memcpy(out + i * static_cast<std::int64_t>(element_bytes),
                    source + (rank == 0 ? 0 : i * from.strides[last]), element_bytes);
      }
    }
    std::size_t d = last;
    for (; d-- > 0;) {
      source += from.strides[d];
      out += out_strides[d];
      if (++at[d] < box.extent(d)) break;
      source -= at[d] * from.strides[d];
      out -= at[d] * out_strides[d];
      at[d] = 0;
    }
    if (d == static_cast<std::size_t>(-1)) return;
  }
}

/// A tensor's parts in memory. Immutable.
class PartReader final : public BoxReader {
 public:
  PartReader(TensorInfo info, std::vector<Part> parts)
      : info_(std::move(info)), parts_(std::move(parts)) {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }

  void read(std::size_t /*tensor*/, const Box& box, std::span<std::byte> out) const override {
    const std::size_t element_bytes = size_bytes(info_.dtype);
    std::size_t found = 0;
    for (const Part& part : parts_) {
      const Box common = intersect(part.box, box);
      if (common.empty()) continue;
      if (part.is_contiguous) {
        copy_box(common, element_bytes, {part.data, part.box}, {out.data(), box});
      } else {
        copy_strided(common, element_bytes, part, out.data(), box);
      }
      found += num_bytes(common.shape(), element_bytes);
      if (found == out.size()) return;
    }
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("save: tensor {:?} is to be written at {}, but this process has {} of its {} "
                    "bytes",
                    info_.name, to_string(box), found, out.size()));
  }

  const std::byte* contiguous(std::size_t /*tensor*/, const Box& box) const override {
    for (const Part& part : parts_) {
      if (!part.is_contiguous || !part.box.contains(box)) continue;
      return find_contiguous(box, size_bytes(info_.dtype), ConstBoxView{part.data, part.box});
    }
    return nullptr;
  }

  // Python's arrays may be written to by any thread.
  bool may_change() const override { return true; }

 private:
  const TensorInfo info_;
  const std::vector<Part> parts_;
};

// Throws if two parts have a common element: read() counts bytes to know that it has found all.
void check_disjoint(const std::string& name, std::vector<Box> boxes) {
  const bool has_dims = !boxes.empty() && boxes[0].rank() > 0;
  const auto first = [has_dims](const Box& box) { return has_dims ? box.begin(0) : 0; };
  std::sort(boxes.begin(), boxes.end(),
            [&](const Box& a, const Box& b) { return first(a) < first(b); });
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = i + 1; j < boxes.size(); ++j) {
      if (has_dims && boxes[j].begin(0) >= boxes[i].end(0)) break;
      if (intersect(boxes[i], boxes[j]).empty()) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: tensor {:?}: found parts that overlap, {} and {}, needed is "
                              "each element once",
                              name, to_string(boxes[i]), to_string(boxes[j])));
    }
  }
}

Source make_source(std::string name, const std::string& dtype, const Ints& shape,
                   const std::vector<PartArgument>& arguments,
                   const std::optional<std::string>& mesh, const std::string& spec,
                   const std::string& policy, bool listed) {
  TensorInfo info{.name = name, .dtype = parse_dtype(dtype), .shape = Shape(std::span(shape))};
  const std::size_t element_bytes = size_bytes(info.dtype);
  num_bytes(info.shape, element_bytes);
  std::vector<Part> parts;
  std::vector<Box> boxes;
  parts.reserve(arguments.size());
  for (const auto& [begin, extents, address, strides] : arguments) {
    Part& part = parts.emplace_back(
        Part{box_of(begin, extents), reinterpret_cast<const std::byte*>(address), strides, false});
    if (part.box.rank() != info.shape.size() || strides.size() != info.shape.size() ||
        !Box::whole(info.shape).contains(part.box)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: tensor {:?} of shape {} is given in {}", name,
                              to_string(info.shape), to_string(part.box)));
    }
    part.is_contiguous = is_contiguous(part.box, strides, element_bytes);
    if (!part.box.empty()) boxes.push_back(part.box);
  }
  check_disjoint(name, boxes);
  TensorSource source;
  source.name = std::move(name);
  if (listed) {
    source.boxes = std::move(boxes);
  } else if (mesh) {
    source.sharding =
        Sharding(Mesh::parse(*mesh), PartitionSpec::parse(spec).padded(info.shape.size()),
                 UnevenPolicy::parse(policy));
  }
  source.reader = std::make_shared<PartReader>(std::move(info), std::move(parts));
  return {std::move(source)};
}

}  // namespace

Box box_of(const Ints& begin, const Ints& shape) {
  if (begin.size() != shape.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a box begins at {} indices and has {} extents", begin.size(), shape.size()));
  }
  const Index first{std::span(begin)};
  Index end = first;
  for (std::size_t d = 0; d < shape.size(); ++d) end[d] += shape[d];
  return Box(first, end);
}

TensorEdits edits_of(const EditArgument& edits) {
  const auto& [select, exclude, renames, casts, transposes, splits, joins, resizes] = edits;
  TensorEdits made{.select = select, .exclude = exclude};
  for (const auto& [pattern, name] : renames) made.renames.push_back({pattern, name});
  for (const auto& [pattern, dtype] : casts) made.casts.push_back({pattern, parse_dtype(dtype)});
  const auto parse = []<class Rule>(const Pairs& pairs, std::vector<Rule>& rules) {
    for (const auto& [left, right] : pairs) rules.push_back(Rule::parse(left + "=" + right));
  };
  parse(transposes, made.transposes);
  parse(splits, made.splits);
  parse(joins, made.joins);
  parse(resizes, made.resizes);
  return made;
}

std::vector<TensorSource> sources_of(const std::vector<Source*>& sources) {
  std::vector<TensorSource> result;
  result.reserve(sources.size());
  for (const Source* source : sources) result.push_back(source->source);
  return result;
}

namespace {

// The names are those of Python's SaveStats, which has a path, too.
template <class Stats, class Visit>
void for_each_member(Stats& stats, Visit&& visit) {
  visit("skipped", stats.skipped);
  visit("error", stats.error);
  visit("failed_saves", stats.failed_saves);
  visit("logical_bytes", stats.logical_bytes);
  visit("stored_bytes", stats.stored_bytes);
  visit("unchanged_bytes", stats.unchanged_bytes);
  visit("file_bytes", stats.file_bytes);
  visit("chunks", stats.chunks);
  visit("memory_bytes", stats.memory_bytes);
  visit("parity_bytes", stats.parity_bytes);
  visit("blocked_seconds", stats.blocked_seconds);
  visit("plan_seconds", stats.plan_seconds);
  visit("write_seconds", stats.write_seconds);
  visit("publish_seconds", stats.publish_seconds);
  visit("seconds", stats.total_seconds);
  visit("cleanup_error", stats.cleanup_error);
}

}  // namespace

Dict dict_of(const SaveStats& stats) {
  nb::dict dict;
  dict["path"] = stats.directory.string();
  for_each_member(stats, [&](const char* name, const auto& value) { dict[name] = value; });
  return dict;
}

ManagerStatsTuple members_of(const ManagerStats& stats) {
  return {stats.failed_saves, stats.failed_in_a_row, stats.failed_step, stats.error};
}

OnSaveError on_save_error_of(const std::string& word) {
  return word == "warn" ? OnSaveError::warn : OnSaveError::raise;
}

Ints ints(const Dims& dims) { return {dims.begin(), dims.end()}; }

IntTuple int_tuple(const Dims& dims) {
  return nb::borrow<IntTuple>(nb::tuple(nb::cast(ints(dims))));
}

void bind_parts(nb::module_& module) {
  nb::class_<Source>(module, "Source", "A tensor to be saved. Its maker keeps its memory.")
      .def(
          "__init__",
          [](Source* self, std::string name, const std::string& dtype, const Ints& shape,
             const std::vector<PartArgument>& parts, const std::optional<std::string>& mesh,
             const std::string& spec, const std::string& policy, bool listed) {
            new (self) Source(
                make_source(std::move(name), dtype, shape, parts, mesh, spec, policy, listed));
          },
          nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("parts"),
          nb::arg("mesh") = nb::none(), nb::arg("spec") = "", nb::arg("policy") = "ceil",
          nb::arg("listed") = false)
      .def_prop_ro("name", [](const Source& self) { return self.source.name; });
  module.def(
      "hash128",
      [](std::uintptr_t address, std::size_t bytes) {
        const GilRelease released;
        return to_hex(shardwise::hash128(reinterpret_cast<const std::byte*>(address), bytes));
      },
      nb::arg("address"), nb::arg("bytes"));
  module.def("dtypes", [] {
    std::vector<std::pair<std::string, std::size_t>> all;
    for (const DType dtype : all_dtypes()) all.emplace_back(name(dtype), size_bytes(dtype));
    return all;
  });
}

}  // namespace shardwise::python
