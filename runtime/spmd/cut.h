#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/ops/factors.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// Mesh axes by number, as bits.
using AxisSet = std::uint32_t;

/// The mesh axes that cut one dim or factor, by number, major first. At most 7.
class AxisList {
 public:
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::size_t operator[](std::size_t i) const { return axes_[i]; }
  const std::uint8_t* begin() const { return axes_.data(); }
  const std::uint8_t* end() const { return axes_.data() + size_; }

  /// Throws unsupported for an eighth.
  void push_back(std::size_t axis);

  /// The axes of both start alike, and this has no more.
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
};

/// A PartitionSpec in numbers: for each dim of a tensor the axes that cut it.
using Cut = std::vector<AxisList>;

/// For each factor of a rule the axes that cut it.
using FactorCut = std::vector<AxisList>;

AxisSet axes_of(const Cut& cut);

/// Into how many parts the axes cut.
std::int64_t ways(const AxisList& axes, const Mesh& mesh);
std::int64_t ways(AxisSet axes, const Mesh& mesh);

/// Throws invalid_argument if an AxisSet has no room for the mesh's axes.
void check_axes(const Mesh& mesh);

/// Numbers for names. Throws not_found for an unknown axis, invalid_argument where one comes twice
/// or the rank is not the tensor's, unsupported for a part of an axis.
Cut to_cut(const PartitionSpec& spec, const Mesh& mesh, std::size_t rank);
PartitionSpec to_spec(const Cut& cut, const Mesh& mesh);
Sharding to_sharding(const Cut& cut, const Mesh& mesh);

/// The axes of a tensor's dims as those of its factors: a dim's axes go to its factors, major
/// first, as far as they divide them; what does not fit is left out.
void project(const Cut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
             const Mesh& mesh, FactorCut& out);

/// The cut of a tensor under that of the factors.
Cut cut_of(const FactorCut& factors, const DimFactors& dims);

/// Whether each device's part is a box: of a dim of several factors a minor one is cut only where
/// the major ones are cut into single elements, and factors that share a dim are cut evenly.
bool is_box(const FactorCut& cut, const DimFactors& dims, const std::vector<Factor>& factors,
            const Mesh& mesh);

}  // namespace shardwise
