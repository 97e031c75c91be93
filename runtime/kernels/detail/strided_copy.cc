#include "shardwise/runtime/kernels/detail/strided_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "shardwise/runtime/kernels/detail/element_type.h"

namespace shardwise::detail {
namespace {

using CopyLoops = Loops<2>;

/// Of a matrix that is transposed: rows of one are in as few cache lines as columns of the other.
constexpr std::int64_t kTile = 16;

// Elements move as unsigned integers of their size, whatever they are: by memcpy, which may.
template <class T>
T load(const std::byte* data, std::int64_t element) {
  T value;
  std::memcpy(&value, data + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store(std::byte* data, std::int64_t element, T value) {
  std::memcpy(data + element * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

template <class T>
void fill_run(T value, std::byte* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) store(to, i, value);
}

/// A constant length lets the compiler turn memcpy into a move or two, which is what short runs
/// need.
template <std::size_t kRunBytes>
void copy_equal_runs(const CopyLoops& loops, const CopyLoops::Offsets& at,
                     std::int64_t element_bytes, const std::byte* from, std::byte* to) {
  loops.for_each(at, [=](const CopyLoops::Offsets& o) {
    std::memcpy(to + o[1] * element_bytes, from + o[0] * element_bytes, kRunBytes);
  });
}

void copy_runs(const CopyLoops& loops, const CopyLoops::Offsets& at, std::int64_t element_bytes,
               std::size_t run_bytes, const std::byte* from, std::byte* to) {
  switch (run_bytes) {
    case 1:
      return copy_equal_runs<1>(loops, at, element_bytes, from, to);
    case 2:
      return copy_equal_runs<2>(loops, at, element_bytes, from, to);
    case 4:
      return copy_equal_runs<4>(loops, at, element_bytes, from, to);
    case 8:
      return copy_equal_runs<8>(loops, at, element_bytes, from, to);
    case 16:
      return copy_equal_runs<16>(loops, at, element_bytes, from, to);
    case 32:
      return copy_equal_runs<32>(loops, at, element_bytes, from, to);
    default:
      loops.for_each(at, [=](const CopyLoops::Offsets& o) {
        std::memcpy(to + o[1] * element_bytes, from + o[0] * element_bytes, run_bytes);
      });
  }
}

/// Element (r, c) is at from[r + c * from_step] and goes to to[r * to_step + c].
template <class T>
void transpose_tile(const std::byte* from, std::int64_t from_step, std::byte* to,
                    std::int64_t to_step, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      store(to, r * to_step + c, load<T>(from, r + c * from_step));
    }
  }
}

template <class T>
void transpose_matrix(const std::byte* from, std::int64_t from_step, std::byte* to,
                      std::int64_t to_step, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBytes = sizeof(T);
  for (std::int64_t r = 0; r < rows; r += kTile) {
    for (std::int64_t c = 0; c < cols; c += kTile) {
      const std::byte* tile_from = from + (r + c * from_step) * kBytes;
      std::byte* tile_to = to + (r * to_step + c) * kBytes;
      if (r + kTile <= rows && c + kTile <= cols) {
        transpose_tile<T>(tile_from, from_step, tile_to, to_step, kTile, kTile);
      } else {
        transpose_tile<T>(tile_from, from_step, tile_to, to_step, std::min(kTile, rows - r),
                          std::min(kTile, cols - c));
      }
    }
  }
}

/// Where neighbours in `from` are not neighbours in `to`.
template <class T>
void copy_elements(CopyLoops loops, const CopyLoops::Loop& inner, const CopyLoops::Offsets& at,
                   const std::byte* from, std::byte* to) {
  constexpr std::int64_t kBytes = sizeof(T);
  const auto [from_step, to_step] = inner.steps;
  if (from_step == 0 && to_step == 1) {
    loops.for_each(at, [&](const CopyLoops::Offsets& o) {
      fill_run(load<T>(from, o[0]), to + o[1] * kBytes, inner.extent);
    });
    return;
  }
  for (std::size_t i = loops.size(); to_step == 1 && i-- > 0;) {
    if (loops[i].steps[0] != 1) continue;
    const CopyLoops::Loop rows = loops.take(i);
    loops.for_each(at, [&](const CopyLoops::Offsets& o) {
      transpose_matrix<T>(from + o[0] * kBytes, from_step, to + o[1] * kBytes, rows.steps[1],
                          rows.extent, inner.extent);
    });
    return;
  }
  loops.for_each(at, [&](const CopyLoops::Offsets& o) {
    for (std::int64_t i = 0; i < inner.extent; ++i) {
      store(to, o[1] + i * to_step, load<T>(from, o[0] + i * from_step));
    }
  });
}

}  // namespace

void strided_copy(Loops<2> loops, const Loops<2>::Offsets& at, std::size_t element_bytes,
                  const std::byte* from, std::byte* to) {
  if (loops.nothing()) return;
  const CopyLoops::Loop inner = loops.take_innermost();
  if (inner.extent == 1 || inner.steps == CopyLoops::Offsets{1, 1}) {
    const std::size_t run_bytes = as_size(inner.extent) * element_bytes;
    return copy_runs(loops, at, static_cast<std::int64_t>(element_bytes), run_bytes, from, to);
  }
  with_unsigned_type(element_bytes,
                     [&](auto zero) { copy_elements<decltype(zero)>(loops, inner, at, from, to); });
}

void fill_elements(const std::byte* element, std::size_t element_bytes, std::byte* to,
                   std::size_t count) {
  with_unsigned_type(element_bytes, [&](auto zero) {
    fill_run(load<decltype(zero)>(element, 0), to, static_cast<std::int64_t>(count));
  });
}

}  // namespace shardwise::detail
