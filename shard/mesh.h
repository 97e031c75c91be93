#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/device_order.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A named mesh axis and the number of devices along it.
struct Axis {
  std::string name;
  std::int64_t size;

  bool operator==(const Axis&) const = default;
};

/// Most positions that a function may list; see Mesh.
inline constexpr std::int64_t kMostListedPositions = std::int64_t{1} << 24;

/// A grid of devices with named axes; a PartitionSpec is resolved against one.
///
/// A *position* counts the grid row-major, the last axis fastest: 0 <= position < size(). Each
/// position holds one device, given by a DeviceOrder; without one, position p holds device p. An
/// *abstract* mesh has no devices, only positions: their boxes can be queried and planned before
/// devices exist.
///
/// Invariants: axis names are non-empty, distinct and free of the characters of the text forms
/// (",=+-@;:()[]{}'\"" and blanks); sizes are >= 1 and their product fits in an int64; device ids
/// are distinct and >= 0, one per position. A mesh with no axes is valid and has one device.
///
/// A mesh may be far larger than memory. Only functions that list its positions (plans, pieces,
/// replicas, XLA's tile assignments) need memory for each; if the mesh has more than
/// kMostListedPositions, they throw unsupported.
///
/// Immutable, cheap to copy (shares its data), thread-safe.
///
///   const Mesh mesh({{"data", 4}, {"model", 2}});
///   mesh.size();                        // 8
///   mesh.axis_size("model");            // 2
///   mesh.coordinate(5, 0);              // 2, as position 5 is data=2, model=1
///   Mesh::parse("data=4,model=2") == mesh;
///   Mesh({4, 2}, {"data", "model"}) == mesh;
class Mesh {
 public:
  /// Devices in the order 0, 1, 2, ... An empty name stands for the axis's index ("0", "1", ..).
  /// Throws invalid_argument, naming the axis at fault, if an invariant would not hold.
  explicit Mesh(std::vector<Axis> axes);

  /// The same for the axes' sizes and names. Also throws invalid_argument if there is not a name
  /// for each, unless there are no names at all.
  explicit Mesh(const Shape& sizes, const std::vector<std::string>& names = {});
  explicit Mesh(const char*) = delete;  // Mesh::parse("data=4,model=2")

  /// Position p holds device_ids[p], or devices.device_at(p). Throws invalid_argument.
  Mesh(std::vector<Axis> axes, std::vector<DeviceId> device_ids);
  Mesh(std::vector<Axis> axes, DeviceOrder devices);
  Mesh(std::vector<DeviceId>, Shape, std::vector<std::string>) = delete;  // Mesh(axes, device_ids)

  /// A mesh without devices. Throws invalid_argument.
  static Mesh abstract(std::vector<Axis> axes);

  /// One axis over devices 0 .. size-1.
  static Mesh line(std::int64_t size, std::string_view axis_name = "devices");

  /// Reads "data=4,model=2", or "4,2" for unnamed axes, or "" for one device; then, if the order is
  /// not 0, 1, 2, ..., "@" and the devices as DeviceOrder reads them: "data=2,model=2@3,1,0,2",
  /// "data=2,model=4@[4,2]T(1,0)"; "@?" for an abstract mesh. Throws invalid_argument.
  static Mesh parse(std::string_view text);

  /// In the order given; valid as long as this mesh or a copy of it.
  std::span<const Axis> axes() const;
  std::size_t rank() const { return axes().size(); }

  /// The axes' sizes: [4, 2]. Throws invalid_argument if there are more than kMaxRank.
  Shape shape() const;

  /// Number of devices.
  std::int64_t size() const;
  void size(std::string_view) const = delete;  // axis_size("data")

  /// Index of the axis with this name, or with this number as its index. Throws no_such_name,
  /// listing the mesh's axes.
  std::size_t axis_index(std::string_view axis) const;

  /// Devices along the axis. Throws no_such_name.
  std::int64_t axis_size(std::string_view axis) const;
  void axis_names() const = delete;                  // axes()[i].name
  void operator[](std::string_view) const = delete;  // axis_size("data")

  /// The index of `position` along axis number `axis`. Requires both in range.
  std::int64_t coordinate(std::int64_t position, std::size_t axis) const;

  /// Positions between neighbours along axis number `axis`. Requires it in range.
  std::int64_t stride(std::size_t axis) const;

  bool is_abstract() const;

  /// Throws invalid_argument if the mesh is abstract.
  const DeviceOrder& devices() const;

  /// The device at a position. Requires 0 <= position < size(). Throws as devices().
  DeviceId device_at(std::int64_t position) const;
  void num_devices() const = delete;       // size()
  void get_logical_mesh() const = delete;  // devices(), device_at(position) or position_of(device)

  /// Inverse of device_at(); absent if the device is not in the mesh.
  std::optional<std::int64_t> position_of(DeviceId device) const;

  /// The form that parse() reads.
  std::string to_string() const;

  /// True if the axes and the device at each position are the same.
  bool operator==(const Mesh& other) const;

 private:
  struct Data;
  Mesh(std::vector<Axis> axes, std::optional<DeviceOrder> devices, bool is_abstract);
  std::shared_ptr<const Data> data_;
};

void make_mesh(const auto&...) = delete;  // Mesh({4, 2}, {"data", "model"})

/// Mesh::to_string().
std::ostream& operator<<(std::ostream& out, const Mesh& mesh);

}  // namespace shardwise
