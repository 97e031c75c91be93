#include "shardwise/shard/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "shardwise/shard/detail/text.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

std::string axes_text(std::span<const Axis> axes) {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += ',';
    if (axes[i].name != std::to_string(i)) text += axes[i].name + '=';
    text += std::to_string(axes[i].size);
  }
  return text;
}

[[noreturn]] void fail(std::span<const Axis> axes, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("Mesh \"{}\": {}", axes_text(axes), what));
}

void check_axes(std::span<const Axis> axes) {
  std::set<std::string_view> names;
  for (const Axis& axis : axes) {
    const std::size_t bad = axis.name.find_first_of(detail::kReservedInAxisNames);
    if (bad != std::string::npos) {
      fail(axes, fmt::format("axis name \"{}\" contains the reserved character '{}'", axis.name,
                             axis.name[bad]));
    }
    if (axis.size < 1) {
      fail(axes,
           fmt::format("axis \"{}\" has size {}; needed is at least 1", axis.name, axis.size));
    }
    if (!names.insert(axis.name).second) {
      fail(axes, fmt::format("axis name \"{}\" is there twice", axis.name));
    }
  }
}

}  // namespace

struct Mesh::Data {
  explicit Data(std::vector<Axis> mesh_axes);
  void set_devices(std::vector<DeviceId> ids);

  std::vector<Axis> axes;
  std::vector<std::int64_t> strides;  // positions between neighbours, per axis
  std::int64_t size = 1;

  // Both empty where position p holds device p.
  std::vector<DeviceId> device_ids;                          // by position
  std::vector<std::pair<DeviceId, std::int64_t>> by_device;  // device and position, ascending
};

Mesh::Data::Data(std::vector<Axis> mesh_axes) : axes(std::move(mesh_axes)), strides(axes.size()) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name.empty()) axes[i].name = std::to_string(i);
  }
  check_axes(axes);
  for (std::size_t i = axes.size(); i-- > 0;) {
    strides[i] = size;
    if (__builtin_mul_overflow(size, axes[i].size, &size)) {
      fail(axes, "there are more than 2^63 - 1 devices");
    }
  }
}

void Mesh::Data::set_devices(std::vector<DeviceId> ids) {
  if (std::cmp_not_equal(ids.size(), size)) {
    fail(axes, fmt::format("{} device ids for {} positions", ids.size(), size));
  }
  bool iota = true;
  for (std::size_t p = 0; p < ids.size(); ++p) {
    if (ids[p] < 0) fail(axes, fmt::format("device id {} is negative", ids[p]));
    iota &= std::cmp_equal(ids[p], p);
    by_device.emplace_back(ids[p], static_cast<std::int64_t>(p));
  }
  std::sort(by_device.begin(), by_device.end());
  for (std::size_t i = 1; i < by_device.size(); ++i) {
    if (by_device[i - 1].first == by_device[i].first) {
      fail(axes, fmt::format("device id {} is at positions {} and {}", by_device[i].first,
                             by_device[i - 1].second, by_device[i].second));
    }
  }
  if (iota) {
    by_device.clear();
  } else {
    device_ids = std::move(ids);
  }
}

Mesh::Mesh(std::vector<Axis> axes) : data_(std::make_shared<Data>(std::move(axes))) {}

Mesh::Mesh(std::vector<Axis> axes, std::vector<DeviceId> device_ids) {
  auto data = std::make_shared<Data>(std::move(axes));
  data->set_devices(std::move(device_ids));
  data_ = std::move(data);
}

Mesh Mesh::line(std::int64_t size, std::string_view axis_name) {
  return Mesh({{std::string(axis_name), size}});
}

Mesh Mesh::parse(std::string_view text) {
  const auto count = [text](std::string_view part, const char* what) {
    const auto value = detail::parse_count(detail::trim(part));
    if (value) return *value;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Mesh \"{}\": \"{}\" is not {}; needed is a form as in "
                            "\"data=4,model=2\", \"4,2\" or \"data=2,model=2@3,1,0,2\"",
                            text, part, what));
  };
  const std::size_t at = text.find('@');
  const std::string_view axes_part = text.substr(0, at);
  std::vector<Axis> axes;
  if (!detail::trim(axes_part).empty()) {
    for (const std::string_view part : detail::split(axes_part, ',')) {
      const std::size_t equals = part.find('=');
      if (equals == std::string_view::npos) {
        axes.push_back({"", count(part, "an axis")});
      } else {
        axes.push_back({std::string(detail::trim(part.substr(0, equals))),
                        count(part.substr(equals + 1), "an axis size")});
      }
    }
  }
  if (at == std::string_view::npos) return Mesh(std::move(axes));

  std::vector<DeviceId> ids;
  for (const std::string_view part : detail::split(text.substr(at + 1), ',')) {
    ids.push_back(count(part, "a device id"));
  }
  return Mesh(std::move(axes), std::move(ids));
}

std::span<const Axis> Mesh::axes() const { return data_->axes; }

std::int64_t Mesh::size() const { return data_->size; }

std::size_t Mesh::axis_index(std::string_view axis) const {
  const std::vector<Axis>& all = data_->axes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == axis) return i;
  }
  const auto number = detail::parse_count(axis);
  if (number && std::cmp_less(*number, all.size())) return static_cast<std::size_t>(*number);
  throw Error(ErrorCode::not_found,
              fmt::format("axis_index: no axis \"{}\" in mesh \"{}\"", axis, axes_text(all)));
}

std::int64_t Mesh::axis_size(std::string_view axis) const {
  return data_->axes[axis_index(axis)].size;
}

std::int64_t Mesh::coordinate(std::int64_t position, std::size_t axis) const {
  return position / data_->strides[axis] % data_->axes[axis].size;
}

std::int64_t Mesh::stride(std::size_t axis) const { return data_->strides[axis]; }

DeviceId Mesh::device_at(std::int64_t position) const {
  return is_iota() ? position : data_->device_ids[static_cast<std::size_t>(position)];
}

std::optional<std::int64_t> Mesh::position_of(DeviceId device) const {
  if (is_iota()) {
    if (device < 0 || device >= size()) return std::nullopt;
    return device;
  }
  const auto& sorted = data_->by_device;
  const auto found = std::lower_bound(sorted.begin(), sorted.end(), std::pair{device, DeviceId{0}});
  if (found == sorted.end() || found->first != device) return std::nullopt;
  return found->second;
}

bool Mesh::is_iota() const { return data_->device_ids.empty(); }

std::string Mesh::to_string() const {
  std::string text = axes_text(data_->axes);
  if (!is_iota()) text += fmt::format("@{}", fmt::join(data_->device_ids, ","));
  return text;
}

bool Mesh::operator==(const Mesh& other) const {
  return data_ == other.data_ ||
         (data_->axes == other.data_->axes && data_->device_ids == other.data_->device_ids);
}

}  // namespace shardwise
