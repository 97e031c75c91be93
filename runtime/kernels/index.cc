#include "shardwise/runtime/kernels/detail/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string_view>
#include <vector>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/loops.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/program/detail/extremes.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using TableLoops = detail::Loops<2>;  // over the table that ids point into, and over its rows

/// Ids, checked as they are read.
class Ids {
 public:
  Ids(const ConstShardView& view, std::int64_t extent, std::string_view operation,
      OutOfRange mode = OutOfRange::error)
      : view_(view), extent_(extent), operation_(operation), mode_(mode) {
    assert(view.dtype == DType::i32 || view.dtype == DType::i64);
  }

  /// The id that is `element` in the shard's memory; -1 if it is left out.
  std::int64_t operator[](std::int64_t element) const {
    std::int64_t id = 0;
    if (view_.dtype == DType::i64) {
      id = reinterpret_cast<const std::int64_t*>(view_.data)[element];
    } else {
      id = reinterpret_cast<const std::int32_t*>(view_.data)[element];
    }
    if (id >= 0 && id < extent_) return id;
    if (mode_ == OutOfRange::error) fail(id, element);
    return mode_ == OutOfRange::drop ? -1 : std::clamp<std::int64_t>(id, 0, extent_ - 1);
  }

 private:
  [[noreturn]] void fail(std::int64_t id, std::int64_t element) const {
    Index at = view_.box.begin();
    for (std::size_t dim = at.size(); dim-- > 0; element /= view_.box.extent(dim)) {
      at[dim] += element % view_.box.extent(dim);
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: found id {} at {}, needed one in [0, {})", operation_, id,
                            to_string(at), extent_));
  }

  const ConstShardView& view_;
  std::int64_t extent_;
  std::string_view operation_;
  OutOfRange mode_;
};

/// Offsets of an id's part of the table and of its place among the rows, in elements.
struct IdPlace {
  std::int64_t table, row;
};
constexpr std::int64_t kElsewhere = -1;  // for an id outside the table's box

/// The loops of take and scatter_add. `rows` has the dims of `table`, with `dim` replaced by the
/// dims of `ids`.
class TableWalk {
 public:
  TableWalk(const Box& table, const ConstShardView& ids, std::size_t dim, const Box& rows,
            const Ids& checked) {
    const std::size_t ids_rank = ids.box.rank();
    assert(rows.rank() + 1 == table.rank() + ids_rank);
    const Dims table_strides = row_major_strides(table.shape());
    const Dims row_strides = row_major_strides(rows.shape());
    TableLoops inner;
    for (std::size_t d = 0; d < table.rank(); ++d) {
      if (d == dim) continue;
      const std::size_t row_dim = d < dim ? d : d + ids_rank - 1;
      const std::int64_t begin = std::max(table.begin(d), rows.begin(row_dim));
      const std::int64_t end = std::min(table.end(d), rows.end(row_dim));
      at_[0] += (begin - table.begin(d)) * table_strides[d];
      at_[1] += (begin - rows.begin(row_dim)) * row_strides[row_dim];
      (d < dim ? outer_ : inner)
          .add(std::max<std::int64_t>(end - begin, 0), {table_strides[d], row_strides[row_dim]});
    }
    run_ = inner.take_innermost();
    if (run_.steps != TableLoops::Offsets{1, 1}) {
      inner.add(run_);
      run_ = {};
    }
    inner_ = inner;

    // The ids that the rows need are checked once, however often they are walked through.
    Box needed;
    for (std::size_t d = 0; d < ids_rank; ++d) {
      needed.push_back(rows.begin(dim + d), rows.end(dim + d));
    }
    needed = intersect(needed, ids.box);
    places_.reserve(as_size(needed.num_elements()));
    const Dims id_strides = row_major_strides(ids.box.shape());
    for_each_index(needed, [&](const Index& at) {
      std::int64_t element = 0, row = 0;
      for (std::size_t d = 0; d < ids_rank; ++d) {
        element += (at[d] - ids.box.begin(d)) * id_strides[d];
        row += (at[d] - rows.begin(dim + d)) * row_strides[dim + d];
      }
      const std::int64_t id = checked[element];
      const bool here = id >= table.begin(dim) && id < table.end(dim);
      places_.push_back({here ? (id - table.begin(dim)) * table_strides[dim] : kElsewhere, row});
    });
  }

  /// The number of elements per call of body.
  std::int64_t run_elements() const { return run_.extent; }

  /// Calls body(offset in the table, or kElsewhere, offset in the rows) for each run of elements
  /// that are side by side in both. Offsets are in elements. The runs come in the order of the ids.
  template <class Body>
  void for_each(Body&& body) const {
    if (inner_.nothing()) return;
    outer_.for_each(at_, [&](const TableLoops::Offsets& outer) {
      for (const IdPlace& place : places_) {
        const bool here = place.table != kElsewhere;
        inner_.for_each(
            {outer[0] + place.table, outer[1] + place.row},
            [&](const TableLoops::Offsets& at) { body(here ? at[0] : kElsewhere, at[1]); });
      }
    });
  }

 private:
  TableLoops outer_, inner_;
  TableLoops::Loop run_;
  TableLoops::Offsets at_{};
  std::vector<IdPlace> places_;
};

/// [outer, extent, inner] of the table and of ids and rows, for take_along and scatter_add_along.
/// Calls body(offset in the table, or kElsewhere, offset in the rows), in the order of the rows.
template <class Body>
void for_each_along(const Box& table, const ConstShardView& ids, std::size_t dim, const Box& rows,
                    const Ids& checked, Body&& body) {
  std::int64_t outer = 1, inner = 1;
  for (std::size_t d = 0; d < rows.rank(); ++d) {
    if (d == dim) continue;
    assert(rows.extent(d) == table.extent(d) && rows.extent(d) == ids.box.extent(d));
    (d < dim ? outer : inner) *= rows.extent(d);
  }
  assert(rows.extent(dim) == 0 ||
         (rows.begin(dim) >= ids.box.begin(dim) && rows.end(dim) <= ids.box.end(dim)));
  std::int64_t row = 0;
  for (std::int64_t o = 0; o < outer; ++o) {
    const std::int64_t first_id = o * ids.box.extent(dim) + rows.begin(dim) - ids.box.begin(dim);
    std::int64_t element = first_id * inner;
    for (std::int64_t i = 0; i < rows.extent(dim); ++i) {
      for (std::int64_t j = 0; j < inner; ++j, ++element, ++row) {
        const std::int64_t id = checked[element];
        const bool here = id >= table.begin(dim) && id < table.end(dim);
        const std::int64_t table_row = o * table.extent(dim) + id - table.begin(dim);
        body(here ? table_row * inner + j : kElsewhere, row);
      }
    }
  }
}

void clear(const ShardView& out) {
  if (out.box.empty()) return;
  std::memset(out.data, 0, as_size(out.box.num_elements()) * size_bytes(out.dtype));
}

/// Calls body(zero, sum), where sum(a, b) adds elements of the dtype.
template <class Body>
void with_sum(DType dtype, Body&& body) {
  if (dtype == DType::boolean) {
    return body(std::uint8_t{}, [](auto a, auto b) { return std::max(a, b); });
  }
  detail::with_arithmetic_type(
      dtype, [&](auto zero) { body(zero, [](auto a, auto b) { return detail::add(a, b); }); });
}

}  // namespace

void take(const ConstShardView& x, const ConstShardView& ids, std::size_t dim, std::int64_t extent,
          const ShardView& out) {
  assert(x.dtype == out.dtype);
  if (out.box.empty()) return;
  const TableWalk walk(x.box, ids, dim, out.box, Ids(ids, extent, "take"));
  const auto copy_runs = [&](std::size_t element_bytes, std::size_t run_bytes) {
    walk.for_each([=, &x, &out](std::int64_t from, std::int64_t to) {
      std::byte* const target = out.data + as_size(to) * element_bytes;
      if (from == kElsewhere) {
        std::memset(target, 0, run_bytes);
      } else {
        std::memcpy(target, x.data + as_size(from) * element_bytes, run_bytes);
      }
    });
  };
  const std::size_t element_bytes = size_bytes(x.dtype);
  if (walk.run_elements() > 1) {
    return copy_runs(element_bytes, as_size(walk.run_elements()) * element_bytes);
  }
  // A constant length lets the compiler turn memcpy into one move.
  detail::with_moved_type(element_bytes, [&](auto zero) { copy_runs(sizeof(zero), sizeof(zero)); });
}

void scatter_add(const ConstShardView& ids, const ConstShardView& updates, std::size_t dim,
                 std::int64_t extent, const ShardView& out) {
  assert(updates.dtype == out.dtype);
  if (detail::is_half(out.dtype)) {
    const detail::Widened wide(updates);
    const detail::Unrounded sums(out);
    scatter_add(ids, wide.view(), dim, extent, sums.view());
    return sums.round();
  }
  clear(out);
  if (updates.box.empty()) return;
  const TableWalk walk(out.box, ids, dim, updates.box, Ids(ids, extent, "scatter_add"));
  const std::int64_t run = walk.run_elements();
  with_sum(out.dtype, [&](auto zero, auto sum) {
    using T = decltype(zero);
    walk.for_each([&](std::int64_t to, std::int64_t from) {
      if (to == kElsewhere) return;
      T* const sums = reinterpret_cast<T*>(out.data) + to;
      const T* const terms = reinterpret_cast<const T*>(updates.data) + from;
      for (std::int64_t i = 0; i < run; ++i) sums[i] = sum(sums[i], terms[i]);
    });
  });
}

void scatter(const ScatterIntoAttributes& a, std::int64_t extent, const ConstShardView& x,
             const ConstShardView& ids, const ConstShardView& updates, const ShardView& out) {
  assert(x.dtype == out.dtype && updates.dtype == out.dtype && x.box == out.box);
  if (out.box.empty()) return;
  if (detail::is_half(out.dtype)) {
    const detail::Widened wide_x(x), wide_updates(updates);
    const detail::Unrounded result(out);
    scatter(a, extent, wide_x.view(), ids, wide_updates.view(), result.view());
    return result.round();
  }
  if (out.data != x.data) {
    std::memcpy(out.data, x.data, num_bytes(out.box.shape(), size_bytes(out.dtype)));
  }
  if (updates.box.empty()) return;
  const TableWalk walk(out.box, ids, as_size(a.dim), updates.box,
                       Ids(ids, extent, "scatter", a.mode));
  const auto update_all = [&](auto zero, auto combine) {
    using T = decltype(zero);
    walk.for_each([&](std::int64_t to, std::int64_t from) {
      if (to == kElsewhere) return;
      T* const elements = reinterpret_cast<T*>(out.data) + to;
      const T* const terms = reinterpret_cast<const T*>(updates.data) + from;
      for (std::int64_t i = 0; i < walk.run_elements(); ++i) {
        elements[i] = combine(elements[i], terms[i]);
      }
    });
  };
  switch (a.combination) {
    case Combination::set:
      return detail::with_unsigned_type(size_bytes(out.dtype), [&](auto zero) {
        update_all(zero, [](auto, auto update) { return update; });
      });
    case Combination::add:
      return detail::with_arithmetic_type(out.dtype, [&](auto zero) {
        update_all(zero, [](auto p, auto q) { return detail::add(p, q); });
      });
    case Combination::mul:
      return detail::with_arithmetic_type(out.dtype, [&](auto zero) {
        update_all(zero, [](auto p, auto q) { return detail::multiply(p, q); });
      });
    case Combination::min:
      return detail::with_ordered_type(out.dtype, [&](auto zero) {
        update_all(zero, [](auto p, auto q) { return detail::smaller(p, q); });
      });
    case Combination::max:
      return detail::with_ordered_type(out.dtype, [&](auto zero) {
        update_all(zero, [](auto p, auto q) { return detail::larger(p, q); });
      });
  }
}

void take_along(const ConstShardView& x, const ConstShardView& ids, std::size_t dim,
                std::int64_t extent, const ShardView& out) {
  assert(x.dtype == out.dtype);
  const Ids checked(ids, extent, "take_along");
  detail::with_moved_type(size_bytes(x.dtype), [&](auto zero) {
    using T = decltype(zero);
    for_each_along(x.box, ids, dim, out.box, checked, [&](std::int64_t from, std::int64_t to) {
      T value{};
      if (from != kElsewhere) {
        std::memcpy(&value, x.data + as_size(from) * sizeof(T), sizeof(T));
      }
      std::memcpy(out.data + as_size(to) * sizeof(T), &value, sizeof(T));
    });
  });
}

void scatter_add_along(const ConstShardView& ids, const ConstShardView& updates, std::size_t dim,
                       std::int64_t extent, const ShardView& out) {
  assert(updates.dtype == out.dtype);
  if (detail::is_half(out.dtype)) {
    const detail::Widened wide(updates);
    const detail::Unrounded sums(out);
    scatter_add_along(ids, wide.view(), dim, extent, sums.view());
    return sums.round();
  }
  clear(out);
  with_sum(out.dtype, [&](auto zero, auto sum) {
    using T = decltype(zero);
    T* const sums = reinterpret_cast<T*>(out.data);
    const T* const terms = reinterpret_cast<const T*>(updates.data);
    for_each_along(out.box, ids, dim, updates.box, Ids(ids, extent, "scatter_add_along"),
                   [&](std::int64_t to, std::int64_t from) {
                     if (to != kElsewhere) sums[to] = sum(sums[to], terms[from]);
                   });
  });
}

}  // namespace shardwise
