#include "shardwise/shard/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "shardwise/shard/detail/divider.h"
#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

std::string axes_text(std::span<const Axis> axes) {
  std::string text;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (i > 0) text += ',';
    if (!axes[i].name.empty() && axes[i].name != std::to_string(i)) text += axes[i].name + '=';
    text += std::to_string(axes[i].size);
  }
  return text;
}

[[noreturn]] void fail(std::span<const Axis> axes, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("mesh {:?}: {}", axes_text(axes), what));
}

/// Returns the result of `make`; an error from it is rethrown with the mesh's axes named.
template <class Make>
DeviceOrder order_for(std::span<const Axis> axes, const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    fail(axes, error.what());
  }
}

std::vector<Axis> named_axes(const Shape& sizes, const std::vector<std::string>& names) {
  if (!names.empty() && names.size() != sizes.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mesh {}: found {} names, needed {}", to_string(sizes), names.size(),
                            sizes.size()));
  }
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({names.empty() ? "" : names[i], sizes[i]});
  }
  return axes;
}

void check_axes(std::span<const Axis> axes) {
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const Axis& axis = axes[i];
    const auto is_reserved = [](char c) {
      return kReservedInAxisNames.find(c) != std::string_view::npos || (c >= 0 && c < ' ') ||
             c == 0x7f;
    };
    const auto bad = std::ranges::find_if(axis.name, is_reserved);
    if (bad != axis.name.end()) {
      fail(axes,
           fmt::format("axis name {:?} contains the reserved character {:?}", axis.name, *bad));
    }
    if (axis.size < 1) {
      fail(axes,
           fmt::format("axis \"{}\" has size {}; needed is at least 1", axis.name, axis.size));
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        fail(axes,
             fmt::format("axis name \"{}\" is there twice; needed are distinct names", axis.name));
      }
    }
  }
}

}  // namespace

struct Mesh::Data {
  std::vector<Axis> axes;
  std::vector<detail::Divider> sizes, strides;  // strides: positions between neighbours, per axis
  std::int64_t size = 1;
  std::optional<DeviceOrder> devices;  // absent if the mesh is abstract
};

Mesh::Mesh(std::vector<Axis> axes, std::optional<DeviceOrder> devices, bool is_abstract) {
  auto data = std::make_shared<Data>();
  data->axes = std::move(axes);
  for (std::size_t i = 0; i < data->axes.size(); ++i) {
    if (data->axes[i].name.empty()) data->axes[i].name = std::to_string(i);
  }
  check_axes(data->axes);
  data->sizes.resize(data->axes.size());
  data->strides.resize(data->axes.size());
  for (std::size_t i = data->axes.size(); i-- > 0;) {
    data->sizes[i] = detail::Divider(data->axes[i].size);
    data->strides[i] = detail::Divider(data->size);
    if (__builtin_mul_overflow(data->size, data->axes[i].size, &data->size)) {
      fail(data->axes, "it has too many devices; needed are at most 2^63 - 1");
    }
  }
  if (devices && devices->size() != data->size) {
    fail(data->axes, fmt::format("there are {} device ids for {} positions; needed is one for each",
                                 devices->size(), data->size));
  }
  if (!is_abstract) {
    data->devices = devices ? *std::move(devices) : DeviceOrder::iota(data->size);
  }
  data_ = std::move(data);
}

Mesh::Mesh(std::vector<Axis> axes) : Mesh(std::move(axes), std::nullopt, false) {}

Mesh::Mesh(const Shape& sizes, const std::vector<std::string>& names)
    : Mesh(named_axes(sizes, names)) {}

Mesh::Mesh(std::vector<Axis> axes, std::vector<DeviceId> device_ids) {
  DeviceOrder order = order_for(axes, [&] { return DeviceOrder::list(std::move(device_ids)); });
  *this = Mesh(std::move(axes), std::move(order));
}

Mesh::Mesh(std::vector<Axis> axes, DeviceOrder devices)
    : Mesh(std::move(axes), std::optional(std::move(devices)), false) {}

Mesh Mesh::abstract(std::vector<Axis> axes) { return Mesh(std::move(axes), std::nullopt, true); }

Mesh Mesh::line(std::int64_t size, std::string_view axis_name) {
  return Mesh({{std::string(axis_name), size}});
}

Mesh Mesh::parse(std::string_view text) {
  const auto count = [text](std::string_view part, const char* what) {
    const auto value = parse_count(trim(part));
    if (value) return *value;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mesh \"{}\": \"{}\" is not {}; needed is a form as in "
                            "\"data=4,model=2\", \"4,2\" or \"data=2,model=2@3,1,0,2\"",
                            text, part, what));
  };
  const std::size_t at = text.find('@');
  const std::string_view axes_part = text.substr(0, at);
  std::vector<Axis> axes;
  if (!trim(axes_part).empty()) {
    for (const std::string_view part : split(axes_part, ',')) {
      const std::size_t equals = part.find('=');
      if (equals == std::string_view::npos) {
        axes.push_back({"", count(part, "an axis")});
      } else {
        axes.push_back({std::string(trim(part.substr(0, equals))),
                        count(part.substr(equals + 1), "an axis size")});
      }
    }
  }
  if (at == std::string_view::npos) return Mesh(std::move(axes));
  const std::string_view devices = trim(text.substr(at + 1));
  if (devices == "?") return abstract(std::move(axes));
  DeviceOrder order = order_for(axes, [&] { return DeviceOrder::parse(devices); });
  return Mesh(std::move(axes), std::move(order));
}

std::span<const Axis> Mesh::axes() const { return data_->axes; }

Shape Mesh::shape() const {
  Shape sizes;
  for (const Axis& axis : axes()) sizes.push_back(axis.size);
  return sizes;
}

std::int64_t Mesh::size() const { return data_->size; }

std::size_t Mesh::axis_index(std::string_view axis) const {
  const std::vector<Axis>& all = data_->axes;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == axis) return i;
  }
  const auto number = parse_count(axis);
  if (number && std::cmp_less(*number, all.size())) return static_cast<std::size_t>(*number);
  throw Error(ErrorCode::no_such_name,
              fmt::format("mesh \"{}\": it has no axis \"{}\"", axes_text(all), axis));
}

std::int64_t Mesh::axis_size(std::string_view axis) const {
  return data_->axes[axis_index(axis)].size;
}

std::int64_t Mesh::coordinate(std::int64_t position, std::size_t axis) const {
  return data_->sizes[axis].remainder(data_->strides[axis].quotient(position));
}

std::int64_t Mesh::stride(std::size_t axis) const { return data_->strides[axis].divisor(); }

bool Mesh::is_abstract() const { return !data_->devices; }

const DeviceOrder& Mesh::devices() const {
  if (is_abstract())
    fail(data_->axes, "it is abstract, so it has no devices; needed is a mesh with devices");
  return *data_->devices;
}

DeviceId Mesh::device_at(std::int64_t position) const { return devices().device_at(position); }

std::optional<std::int64_t> Mesh::position_of(DeviceId device) const {
  return devices().position_of(device);
}

std::string Mesh::to_string() const {
  std::string text = axes_text(data_->axes);
  if (is_abstract()) return text + "@?";
  if (!devices().is_iota()) text += "@" + devices().to_string();
  return text;
}

std::ostream& operator<<(std::ostream& out, const Mesh& mesh) { return out << mesh.to_string(); }

bool Mesh::operator==(const Mesh& other) const {
  return data_ == other.data_ ||
         (data_->axes == other.data_->axes && data_->devices == other.data_->devices);
}

}  // namespace shardwise
