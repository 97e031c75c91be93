#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/device_order.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/packed_boxes.h"
#include "shardwise/shard/plan/piece_list.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// The connection between two devices, the nearest first.
enum class Link {
  same_device,
  same_process,
  same_slice,      ///< the fast network between processes
  between_slices,  ///< the slow network
};
inline constexpr std::size_t kNumLinks = 4;

/// "same_device", ...
std::string_view name(Link link);

/// The process and slice of each device.
///
/// Immutable, thread-safe.
///
///   const Topology topology(devices);
///   topology.link(0, 5);                // Link::same_slice
class Topology {
 public:
  /// All devices, whatever their ids, are in one process.
  Topology() = default;

  /// Devices without a slice index are one slice. Throws invalid_argument if an id repeats.
  explicit Topology(std::span<const DeviceAttributes> devices);

  /// Devices with one site belong to one process.
  struct Site {
    std::int64_t slice = 0, process = 0;

    auto operator<=>(const Site&) const = default;
  };

  /// Throws not_found for a device that is not in the topology.
  Site site(DeviceId device) const;
  Link link(DeviceId a, DeviceId b) const;

 private:
  struct Entry {
    DeviceId device;
    Site site;
  };
  std::vector<Entry> entries_;  // by device
  bool one_process_ = true;
};

/// The link between a device at one site and another device at the other site.
Link link_between(const Topology::Site& a, const Topology::Site& b);

/// How several sources of one element are combined. bit_or takes elements as bits: if all sources
/// but one are zeros, the result is that one, bit for bit.
enum class Reduction { none, sum, max, min, bit_or, product };

/// One step of a plan: the elements of `box` go from a source piece to a target piece. The numbers
/// index TransferPlan::sources() and targets().
struct Copy {
  std::int64_t source;
  std::int64_t target;
  Box box;
};

/// The kind of a plan, for people, cost models and message passing: the first class that fits all
/// non-empty targets. A *group* consists of targets that all take from the same sources, on devices
/// that all give or all take in it; if a class has groups, each target and source in use belongs to
/// one.
enum class TransferClass {
  nothing,         ///< every target is all of a source in the same place
  slice,           ///< every target is inside one source in the same place
  permute,         ///< every target is all of one source, and no source is used twice
  broadcast,       ///< every target is all of one source
  scatter,         ///< every target is inside one source
  all_gather,      ///< in groups, every target is put together from whole sources
  gather,          ///< every target is put together from whole sources
  all_to_all,      ///< in groups, every target takes a part of several sources
  all_reduce,      ///< in groups, reduced; every target has the box of a source in the same place
  reduce_scatter,  ///< in groups, reduced; every target is inside each source it takes from
  reduce,          ///< reduced; every target is inside each source it takes from
  general,
};

/// "all_gather", ...
std::string_view name(TransferClass c);

class TransferPlan;

/// Copies of a plan, in its order. The box of a copy is computed on access, so a plan takes only a
/// few bytes per copy.
///
/// Immutable, thread-safe; valid as long as the plan. Its iterators are thread-compatible.
class CopyRange {
 public:
  class iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = Copy;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = Copy;

    iterator() = default;
    Copy operator*() const;
    iterator& operator++();
    iterator operator++(int);
    bool operator==(const iterator& other) const { return index_ == other.index_; }

   private:
    friend class CopyRange;
    iterator(const TransferPlan* plan, std::size_t index, std::size_t target)
        : plan_(plan), index_(index), target_(target) {}

    const TransferPlan* plan_ = nullptr;
    std::size_t index_ = 0, target_ = 0;
  };
  using value_type = Copy;
  using const_iterator = iterator;

  std::size_t size() const { return last_ - first_; }
  bool empty() const { return first_ == last_; }
  iterator begin() const;
  iterator end() const;

  /// Requires i < size().
  Copy operator[](std::size_t i) const;
  Copy front() const { return (*this)[0]; }
  Copy back() const { return (*this)[size() - 1]; }

 private:
  friend class TransferPlan;
  CopyRange(const TransferPlan* plan, std::size_t first, std::size_t last)
      : plan_(plan), first_(first), last_(last) {}

  const TransferPlan* plan_;
  std::size_t first_, last_;
};

struct PlanOptions {
  Reduction reduction = Reduction::none;

  /// Tells which of several replicas is nearest. Planning throws not_found for places that it
  /// lacks.
  Topology topology = {};
};

/// Every copy that turns one placement of a tensor into another.
///
/// Without a reduction each element of each target comes from exactly one source: one in the same
/// place if there is one, else the nearest replica by Link. Of equally near replicas it is the one
/// that has had the least to send so far; among equals the first in source order. With a reduction
/// every source that holds the element contributes, in the order of sources, so results do not
/// depend on timing.
///
/// Immutable, thread-safe. Empty pieces are legal and take no copies. A plan takes 4 bytes per
/// copy and 16 per piece and dim.
///
///   // 8 rows in 4 blocks, to be held in 2 blocks
///   const auto plan = TransferPlan::reshard(rows_by_4, rows_by_2, {8, 3});
///   for (const Copy& copy : plan.copies()) ...
class TransferPlan {
 public:
  /// From one sharding to another; sources and targets are the boxes at each mesh position of
  /// `from` and `to`, in position order. The positions of an abstract mesh stand for devices of the
  /// same number. O(devices + copies). Throws invalid_argument if a rank is not the shape's, or a
  /// policy does not allow the shape.
  static TransferPlan reshard(const Sharding& from, const Sharding& to, const Shape& shape,
                              const Topology& topology = {});

  /// From any pieces to any pieces, about O(m log m + overlaps) for m pieces. Throws
  /// invalid_argument if ranks differ, or if an element of a target is in no source: the message
  /// names the target and a missing element.
  TransferPlan(const std::vector<Piece>& sources, const std::vector<Piece>& targets,
               const PlanOptions& options = {});

  const PieceList& sources() const { return sources_; }
  const PieceList& targets() const { return targets_; }

  /// Ordered by target, then by source.
  CopyRange copies() const { return CopyRange(this, 0, source_of_.size()); }

  /// The copies that fill one target. Requires 0 <= target < targets().size().
  CopyRange copies_to(std::int64_t target) const;

  Reduction reduction() const { return reduction_; }
  TransferClass classify() const;

  /// Number of elements that change place; those that stay are not counted.
  std::int64_t moved_elements() const;

 private:
  friend class CopyRange;
  TransferPlan() = default;

  std::size_t target_of(std::size_t copy) const;
  Copy copy_at(std::size_t copy, std::size_t target) const;

  PieceList sources_, targets_;
  std::vector<std::uint32_t> source_of_;  // per copy
  std::vector<std::size_t> first_copy_;   // per target, and one past the end
  // A copy moves all elements that its source and target share, except for these copies, ascending:
  // they arise if sources overlap each other in part.
  std::vector<std::size_t> cut_copies_;
  PackedBoxes cut_boxes_;
  Reduction reduction_ = Reduction::none;
};

/// Proves that the boxes cover every element of a tensor exactly once; boxes may be empty. About
/// O(m log m) for m boxes, cut along any dims. Throws invalid_argument, naming an element that is
/// missing or held twice, and the boxes that hold it.
void check_cover(std::span<const Box> boxes, const Shape& shape);

}  // namespace shardwise
