#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A device's number. A mesh may have any distinct non-negative numbers.
using DeviceId = std::int64_t;

/// The device at each position of a mesh.
///
/// An order is compact if it is 0, 1, 2, .. reshaped, transposed and flattened again (XLA's iota
/// tile assignment), or such a pattern with a first device and gaps, as a sub-mesh has. A compact
/// order takes no memory and no time per device. Any other order is a list. A list that follows
/// such a pattern is recognised, so equal orders are equal however they were made.
///
/// Invariant: device ids are distinct and >= 0; there is at least one.
///
/// Immutable, cheap to copy (shares a list), thread-safe.
///
///   DeviceOrder::transposed({4, 2}, {1, 0});       // 0, 2, 4, 6, 1, 3, 5, 7
///   DeviceOrder::parse("[4,2]T(1,0)");             // the same
///   DeviceOrder::list({0, 2, 4, 6, 1, 3, 5, 7});   // the same
class DeviceOrder {
 public:
  /// 0, 1, .. size-1. Throws invalid_argument if size < 1.
  static DeviceOrder iota(std::int64_t size);

  /// iota of the product of `dims`, reshaped to them (row-major), its dims permuted so that dim i
  /// of the result is dim perm[i] of `dims`, and flattened. Throws invalid_argument if a dim is <
  /// 1, the product overflows or `perm` is no permutation.
  static DeviceOrder transposed(std::span<const std::int64_t> dims,
                                std::span<const std::int64_t> perm);
  static DeviceOrder transposed(std::initializer_list<std::int64_t> dims,
                                std::initializer_list<std::int64_t> perm);

  /// Position p holds ids[p]. Throws invalid_argument if an id is negative or repeats.
  static DeviceOrder list(std::vector<DeviceId> ids);

  /// Reads "3,1,0,2", or XLA's compact "[8]" and "[4,2]T(1,0)". Throws invalid_argument.
  static DeviceOrder parse(std::string_view text);

  /// Number of devices.
  std::int64_t size() const { return size_; }

  /// Requires 0 <= position < size().
  DeviceId device_at(std::int64_t position) const;

  /// Inverse of device_at(); absent if the order does not have the device.
  std::optional<std::int64_t> position_of(DeviceId device) const;

  /// The k-th smallest device id. Requires 0 <= k < size().
  DeviceId nth_smallest(std::int64_t k) const;

  /// True if position p holds device p for every p.
  bool is_iota() const { return first_ == 0 && list_ == nullptr && pattern_ == nullptr; }

  /// True if no list is kept.
  bool is_compact() const { return list_ == nullptr; }

  /// The form that parse() reads; compact only if the ids are all of 0, 1, .. size-1.
  std::string to_string() const;

  bool operator==(const DeviceOrder& other) const;

  /// One digit of a position, which is read as a mixed radix number, and the digit's share of the
  /// device's id.
  struct Digit {
    std::int64_t size;             ///< of the digit's range
    std::int64_t position_stride;  ///< product of the sizes of the less significant digits
    std::int64_t device_stride;
  };

  /// The digits of a compact order, the largest device stride first: device_at(p) is first_device()
  /// plus the sum of (p / position_stride % size) * device_stride. Empty for one device and for a
  /// list.
  std::vector<Digit> digits() const;
  DeviceId first_device() const { return first_; }

 private:
  struct List;
  struct Pattern;

  /// Consecutive devices. A type of its own, so that a list of two ids in braces is never taken for
  /// a span.
  struct Span {
    DeviceId first;
    std::int64_t size;
  };
  explicit DeviceOrder(const Span& span) : first_(span.first), size_(span.size) {}
  /// `sizes` and `strides` of digits, major first.
  static DeviceOrder compact(DeviceId first, std::vector<std::int64_t> sizes,
                             std::vector<std::int64_t> strides);
  static std::optional<DeviceOrder> recognise(std::span<const DeviceId> ids);
  bool is_dense() const;

  DeviceId first_;
  std::int64_t size_;
  std::shared_ptr<const List> list_;        // of an order that follows no pattern
  std::shared_ptr<const Pattern> pattern_;  // both null: consecutive devices
};

/// The location of a device.
///
/// Value type, thread-compatible.
struct DeviceAttributes {
  DeviceId id = 0;

  /// Its place in the torus that joins the devices of a slice, as in {x, y, z}; empty if there is
  /// no torus. If a chip has several cores that are devices of their own, the core is the last
  /// coordinate.
  Index coordinates = {};

  /// The slice, a set of devices with a fast network among themselves; absent if all devices are
  /// one slice.
  std::optional<std::int64_t> slice_index = {};

  /// The process that the device belongs to.
  std::int64_t process = 0;
};

}  // namespace shardwise
