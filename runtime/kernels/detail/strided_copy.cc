#include "shardwise/runtime/kernels/detail/strided_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>

#include "shardwise/runtime/kernels/detail/element_type.h"

namespace shardwise::detail {
namespace {

using CopyLoops = Loops<2>;

// An element of any type moves as an integer of its size, by memcpy, because memcpy may read any
// type.
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

/// A constant length lets the compiler turn memcpy into a move or two, as short runs need.
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
void transpose_elements(const std::byte* from, std::int64_t from_step, std::byte* to,
                        std::int64_t to_step, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      store(to, r * to_step + c, load<T>(from, r + c * from_step));
    }
  }
}

/// The same for 4 rows and columns of 4 bytes, in registers.
void transpose_words(const std::byte* from, std::int64_t from_step, std::byte* to,
                     std::int64_t to_step) {
  typedef std::uint32_t Words __attribute__((vector_size(16)));
  const auto col = [&](std::int64_t c) {
    Words words;
    std::memcpy(&words, from + c * from_step * 4, sizeof(words));
    return words;
  };
  const Words a = col(0), b = col(1), c = col(2), d = col(3);
  const Words ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Words ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Words cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Words cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Words rows[] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                        __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                        __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                        __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (std::int64_t r = 0; r < 4; ++r) std::memcpy(to + r * to_step * 4, &rows[r], sizeof(Words));
}

/// Most rows and columns of a part of a matrix that is transposed at once.
template <class T>
constexpr std::int64_t kTile = sizeof(T) < 8 ? 64 : 256 / static_cast<std::int64_t>(sizeof(T));

/// The same for a tile. Whole cache lines are read first, into a buffer where they do not evict
/// each other, unlike lines at steps of powers of two.
template <class T>
void transpose_tile(const std::byte* from, std::int64_t from_step, std::byte* to,
                    std::int64_t to_step, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBytes = sizeof(T), kStep = kTile<T> + 16 / kBytes;
  std::byte lines[kTile<T> * kStep * kBytes];
  for (std::int64_t c = 0; c < cols; ++c) {
    std::memcpy(lines + c * kStep * kBytes, from + c * from_step * kBytes, as_size(rows * kBytes));
  }
  std::int64_t whole_rows = 0, whole_cols = 0;
  if constexpr (kBytes == 4) {
    whole_rows = rows / 4 * 4, whole_cols = cols / 4 * 4;
    for (std::int64_t r = 0; r < whole_rows; r += 4) {
      for (std::int64_t c = 0; c < whole_cols; c += 4) {
        transpose_words(lines + (r + c * kStep) * 4, kStep, to + (r * to_step + c) * 4, to_step);
      }
    }
  }
  transpose_elements<T>(lines + whole_cols * kStep * kBytes, kStep, to + whole_cols * kBytes,
                        to_step, whole_rows, cols - whole_cols);
  transpose_elements<T>(lines + whole_rows * kBytes, kStep, to + whole_rows * to_step * kBytes,
                        to_step, rows - whole_rows, cols);
}

template <class T>
void transpose_matrix(const std::byte* from, std::int64_t from_step, std::byte* to,
                      std::int64_t to_step, std::int64_t rows, std::int64_t cols) {
  constexpr std::int64_t kBytes = sizeof(T);
  for (std::int64_t r = 0; r < rows; r += kTile<T>) {
    for (std::int64_t c = 0; c < cols; c += kTile<T>) {
      transpose_tile<T>(from + (r + c * from_step) * kBytes, from_step,
                        to + (r * to_step + c) * kBytes, to_step, std::min(kTile<T>, rows - r),
                        std::min(kTile<T>, cols - c));
    }
  }
}

/// Tiles of fewer rows are not worth their copies.
constexpr std::int64_t kFewRows = 8;

/// For neighbours in `from` that are not neighbours in `to`.
template <class T>
void copy_elements(CopyLoops loops, const CopyLoops::Loop& inner, const CopyLoops::Offsets& at,
                   const std::byte* from, std::byte* to) {
  constexpr std::int64_t kBytes = sizeof(T);
  const std::int64_t from_step = inner.steps[0], to_step = inner.steps[1];
  if (from_step == 0 && to_step == 1) {
    loops.for_each(at, [&](const CopyLoops::Offsets& o) {
      fill_run(load<T>(from, o[0]), to + o[1] * kBytes, inner.extent);
    });
    return;
  }
  for (std::size_t i = loops.size(); to_step == 1 && i-- > 0;) {
    if (loops[i].steps[0] != 1 || loops[i].extent < kFewRows) continue;
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
  with_moved_type(element_bytes,
                  [&](auto zero) { copy_elements<decltype(zero)>(loops, inner, at, from, to); });
}

void fill_elements(const std::byte* element, std::size_t element_bytes, std::byte* to,
                   std::size_t count) {
  with_moved_type(element_bytes, [&](auto zero) {
    fill_run(load<decltype(zero)>(element, 0), to, static_cast<std::int64_t>(count));
  });
}

}  // namespace shardwise::detail
