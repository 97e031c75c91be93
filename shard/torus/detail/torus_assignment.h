#pragma once

#include <vector>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// How logical axes may use a physical axis.
enum class PhysicalAxes {
  whole,       ///< each logical axis is a product of whole physical axes
  splittable,  ///< several may share one if whole axes do not suffice; they then share its
               ///< bandwidth
};

/// How the axes of a logical mesh are mapped to the axes of a torus.
///
/// `factors[p][l]` says how many ways logical axis l cuts physical axis p; 1 if it takes no part of
/// it. The product over l is the size of physical axis p, the product over p that of logical axis
/// l.
struct TorusAssignment {
  std::vector<Dims> factors;

  bool operator==(const TorusAssignment&) const = default;
};

/// Chooses physical axes for each logical axis, so that neighbours in the logical mesh are near in
/// the torus. Logical axes are listed by rising communication: the last one chooses first.
///
/// Each takes the largest number of whole physical axes whose product is its size, the first such
/// set in lexical order. If that fails and the axes are `splittable`, the choice starts over: each
/// logical axis takes, of all ways to cut the remaining axes, the one with the largest product of
/// whole physical axes; then with more of them; then with the largest part on axes that are already
/// cut; then with the larger factors on the first axes. These are the rules of JAX's mesh_utils.
///
/// Takes time in proportion to the number of sets of physical axes, at most the number of devices.
///
///   assign_torus({4, 4, 8}, {16, 8}).factors;   // [4, 1], [4, 1], [1, 8]: 16 = 4 x 4
///
/// Throws invalid_argument if an extent is under 1, if the shapes differ in their number of
/// devices, or if whole axes do not suffice and may not be split.
TorusAssignment assign_torus(const Shape& physical, const Shape& logical,
                             PhysicalAxes axes = PhysicalAxes::whole);

/// The devices of `physical`, a mesh with an axis for each axis of the torus, as a mesh with these
/// axes. Within a logical axis the first physical axis is the slowest; if several logical axes cut
/// a physical axis, the last of them has the nearest neighbours.
///
/// Throws invalid_argument if the products of the assignment's factors are not the sizes of the
/// axes.
Mesh logical_mesh(const Mesh& physical, std::vector<Axis> axes, const TorusAssignment& assignment);

}  // namespace shardwise
