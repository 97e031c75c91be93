#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// Maps elements of another dim, the *frame*, to elements of one dim: `first` to `last` of the
/// frame map to (scale * first + low) / divide, rounded up, to (scale * last + high) / divide,
/// rounded down, as far as the dim has them. With a negative scale first and last change places. So
/// a sum of three neighbours has low = -1 and high = 1, every second element scale = 2, a reversal
/// scale = -1.
struct Window {
  std::int64_t extent = -1;  ///< of the frame; -1: no window, the dim is its own frame
  std::int64_t scale = 1;    ///< not 0
  std::int64_t low = 0, high = 0;
  std::int64_t divide = 1;  ///< at least 1

  /// Elements of the dim below `least`, and those from `limit` on, belong to no frame element.
  std::int64_t least = 0, limit = std::numeric_limits<std::int64_t>::max();

  bool is_set() const { return extent >= 0; }

  /// The elements [begin, end) of a dim of `size` elements that belong to [begin, end) of the
  /// frame.
  std::pair<std::int64_t, std::int64_t> range(std::int64_t begin, std::int64_t end,
                                              std::int64_t size) const;

  bool operator==(const Window&) const = default;
};

/// The window of a dim of `size` elements over the frame of another dim: `window` follows that dim,
/// of `middle` elements, which has the window `frame`. If no element of that dim belongs to a part
/// of the frame, the result may still give some. Absent if no window expresses it.
std::optional<Window> compose(const Window& window, std::int64_t size, const Window& frame,
                              std::int64_t middle);

/// "[-1..+1]", "2*[+0..+2]", "[-3]/2"
std::string to_string(const Window& window);

/// The box of a tensor at each position of a mesh: as a sharding places it, or, in some dims, as
/// windows of the placement of another tensor, their frame. Then boxes may overlap, leave elements
/// out, or be empty. Immutable, thread-safe.
class Layout {
 public:
  Layout(Sharding sharding)  // NOLINT(google-explicit-constructor): a sharding is a layout
      : frame_(std::move(sharding)) {}

  /// The frame has as many dims as the tensor; in a dim without a window also the same extent.
  Layout(Sharding frame, const Shape& frame_shape, std::vector<Window> windows)
      : frame_(std::move(frame)), frame_shape_(frame_shape), windows_(std::move(windows)) {}

  const Mesh& mesh() const { return frame_.mesh(); }
  bool has_windows() const { return !windows_.empty(); }

  /// Requires a layout without windows.
  const Sharding& sharding() const;

  Box box(std::int64_t position, const Shape& shape) const;

  /// As long in each dim as the longest box.
  Shape largest(const Shape& shape) const;

  bool operator==(const Layout&) const = default;

  /// The same text for the same layout.
  std::string to_string() const;

  /// Without the mesh: "data,-", "data,[0..2]".
  std::string short_text() const;

 private:
  Sharding frame_;
  Shape frame_shape_;  ///< if there are windows
  std::vector<Window> windows_;
};

}  // namespace shardwise
