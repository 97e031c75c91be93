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

/// How one dim or factor is cut: the mesh axes, by number, major first, at most 7; and the
/// extent of a tile if that is not the least with which the tiles cover the dim. 10 rows over 8
/// devices are cut in tiles of 2. Flattened with a dim of 4 they are 40 in tiles of 8, not of 5.
/// A dim with a window is not cut itself: the axes and the tile are its frame's, of which each
/// device has what goes with its tile. So a device has its rows and one on either side.
class AxisList {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::size_t operator[](std::size_t i) const { return axes_[i]; }
  const std::uint8_t* begin() const { return axes_.data(); }
  const std::uint8_t* end() const { return axes_.data() + size_; }

  /// The tile is the least one then. Throws unsupported for an eighth.
  void push_back(std::size_t axis);

  /// The extent of a tile; 0: the least one.
  std::int64_t tile() const { return tile_; }
  void set_tile(std::int64_t extent) { tile_ = extent; }

  const Window& window() const { return window_; }
  void set_window(const Window& window) { window_ = window; }

  /// The axes alone.
  AxisList axes_only() const;

  /// The axes of both start alike, and this has no more; if it has as many, tiles are alike. With a
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

/// A PartitionSpec in numbers: for each dim of a tensor how it is cut.
using Cut = std::vector<AxisList>;

/// For each factor of a rule how it is cut.
using FactorCut = std::vector<AxisList>;

AxisSet axes_of(const Cut& cut);

/// The axes of dims that are cut otherwise.
AxisSet changed_axes(const Cut& from, const Cut& to);

/// Into how many parts the axes cut.
std::int64_t ways(const AxisList& axes, const Mesh& mesh);
std::int64_t ways(AxisSet axes, const Mesh& mesh);

/// Elements of the largest tile of a dim or factor.
std::int64_t tile_extent(std::int64_t extent, const AxisList& axes, const Mesh& mesh);

/// Throws invalid_argument if an AxisSet has no room for the mesh's axes.
void check_axes(const Mesh& mesh);

/// Numbers for names. Throws no_such_name for an unknown axis; invalid_argument if one comes twice
/// or the rank is not the tensor's; unsupported for a part of an axis.
Cut to_cut(const PartitionSpec& spec, const Mesh& mesh, std::size_t rank);
PartitionSpec to_spec(const Cut& cut, const Mesh& mesh);

/// Where a device's part of a tensor of this shape is. Requires that there are no windows.
Sharding to_sharding(const Cut& cut, const Mesh& mesh, const Shape& shape);

/// The same with windows.
Layout to_layout(const Cut& cut, const Mesh& mesh, const Shape& shape);

bool has_windows(const Cut& cut);

/// The same without windows, and with the least tiles in dims that had one.
Cut without_windows(const Cut& cut);

/// The tiles of some dim are not the least ones: no spec says that.
bool has_tiles(const Cut& cut);

/// The same axes, with the least tiles.
Cut without_tiles(const Cut& cut);

/// "data,-"; "data in 8s,-" for tiles of 8; "data[-1..+1],-" for a window.
std::string to_text(const Cut& cut, const Mesh& mesh);

/// The axes of a tensor's dims as those of its factors: a dim's axes go to its factors, major
/// first, as far as they divide them, or all to the first one if tiles hold each of its elements
/// whole; what does not fit is left out. Those of a dim with windows go to its largest factor.
void project(const Cut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
             const Mesh& mesh, FactorCut& out);

/// The cut of a tensor under that of the factors. Requires is_box().
Cut cut_of(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
           const Mesh& mesh);

/// How the factors of one dim, major first, cut it; of the axes only the first `most_axes`.
AxisList cut_of_dim(const FactorCut& cut, const FactorList& dim, const std::vector<Factor>& factors,
                    const Mesh& mesh, std::size_t most_axes = SIZE_MAX);

/// Whether each device's part is a box. If a dim has several factors, a minor one is cut only if
/// the major ones are cut into single elements, and then evenly. Of the factors of a dim with
/// windows at most one is cut.
bool is_box(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
            const Mesh& mesh);

}  // namespace shardwise
