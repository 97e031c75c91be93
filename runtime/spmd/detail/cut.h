#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/ops/detail/factors.h"
#include "shardwise/runtime/program/detail/layout.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// Mesh axes by number, as bits.
using AxisSet = std::uint32_t;

/// The cut of one dim or factor: the mesh axes, by number, major first, at most 7; and the extent
/// of a tile if that is not the least with which the tiles cover the dim. 10 rows over 8 devices
/// are cut in tiles of 2. Flattened with a dim of 4 they are 40 in tiles of 8, not of 5. A dim with
/// a window is not cut itself: the axes and the tile are its frame's, and each device has the
/// elements that belong to its tile, such as its rows and one on either side.
class AxisList {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::size_t operator[](std::size_t i) const { return axes_[i]; }
  const std::uint8_t* begin() const { return axes_.data(); }
  const std::uint8_t* end() const { return axes_.data() + size_; }

  /// The tile becomes the least one. Throws unsupported for an eighth axis.
  void push_back(std::size_t axis);

  /// The extent of a tile; 0: the least one.
  std::int64_t tile() const { return tile_; }
  void set_tile(std::int64_t extent) { tile_ = extent; }

  const Window& window() const { return window_; }
  void set_window(const Window& window) { window_ = window; }

  /// Only the axes.
  AxisList axes_only() const;

  /// True if the other's axes begin with these; if it has no more, tiles are also equal. With a
  /// window: both are the same.
  bool is_prefix_of(const AxisList& other) const;

  AxisSet set() const {
    AxisSet bits = 0;
    for (const std::uint8_t axis : *this) bits |= AxisSet{1} << axis;
    return bits;
  }

  bool operator==(const AxisList& other) const;

 private:
  std::uint8_t size_ = 0;
  std::array<std::uint8_t, 7> axes_{};
  std::int64_t tile_ = 0;
  Window window_ = {};
};

/// A PartitionSpec in numbers: the cut of each dim of a tensor.
using Cut = std::vector<AxisList>;

/// The cut of each factor of a rule.
using FactorCut = std::vector<AxisList>;

AxisSet axes_of(const Cut& cut);

/// The axes of dims that are cut differently.
AxisSet changed_axes(const Cut& from, const Cut& to);

/// The number of parts that the axes make.
std::int64_t ways(const AxisList& axes, const Mesh& mesh);
std::int64_t ways(AxisSet axes, const Mesh& mesh);

/// Elements of the largest tile of a dim or factor.
std::int64_t tile_extent(std::int64_t extent, const AxisList& axes, const Mesh& mesh);

/// Throws invalid_argument if an AxisSet has no room for the mesh's axes.
void check_axes(const Mesh& mesh);

/// Converts names to numbers. Throws no_such_name for an unknown axis; invalid_argument if one
/// repeats or the rank is not the tensor's; unsupported for a part of an axis.
Cut to_cut(const PartitionSpec& spec, const Mesh& mesh, std::size_t rank);
PartitionSpec to_spec(const Cut& cut, const Mesh& mesh);

/// The placement of a tensor of this shape. Requires a cut without windows.
Sharding to_sharding(const Cut& cut, const Mesh& mesh, const Shape& shape);

/// The same with windows.
Layout to_layout(const Cut& cut, const Mesh& mesh, const Shape& shape);

bool has_windows(const Cut& cut);

/// The same without windows, and with the least tiles in dims that had one.
Cut without_windows(const Cut& cut);

/// True if the tiles of some dim are not the least ones, which no spec can express.
bool has_tiles(const Cut& cut);

/// The same axes, with the least tiles.
Cut without_tiles(const Cut& cut);

/// "data,-"; "data in 8s,-" for tiles of 8; "data[-1..+1],-" for a window.
std::string to_text(const Cut& cut, const Mesh& mesh);

/// Converts the cut of a tensor's dims to a cut of its factors: a dim's axes go to its factors,
/// major first, as far as they divide them, or all to the first one if tiles hold each of its
/// elements whole; the rest is left out. Axes of a dim with windows go to its largest factor.
void project(const Cut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
             const Mesh& mesh, FactorCut& out);

/// The cut of a tensor under a cut of the factors. Requires is_box().
Cut cut_of(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
           const Mesh& mesh);

/// The cut of one dim by its factors, major first, using only the first `most_axes` axes.
AxisList cut_of_dim(const FactorCut& cut, const FactorList& dim, const std::vector<Factor>& factors,
                    const Mesh& mesh, std::size_t most_axes = SIZE_MAX);

/// True if each device's part is a box. If a dim has several factors, a minor one is cut only if
/// the major ones are cut into single elements, and then evenly. At most one factor of a dim with
/// windows is cut.
bool is_box(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
            const Mesh& mesh);

}  // namespace shardwise
