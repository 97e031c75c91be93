#include "shardwise/checkpoint/detail/hdf5/index_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "shardwise/checkpoint/detail/hdf5/address_driver.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_groups.h"
#include "shardwise/checkpoint/detail/hdf5/hdf5_objects.h"

namespace shardwise::detail {
namespace {

using NameSet = std::unordered_set<std::string_view>;

// A path component that HDF5 would take for "here" or that people would take for "up".
std::string escape_dots(const std::string& component) {
  if (component == ".") return "%2E";
  if (component == "..") return "%2E%2E";
  return component;
}

// "/" ends a component unless that would leave an empty one, or make a group of a dataset.
bool separates(const std::string& name, std::size_t slash, const NameSet& names) {
  const bool at_border = slash == 0 || slash + 1 == name.size() || name[slash - 1] == '/';
  return !at_border && !names.contains(std::string_view(name).substr(0, slash));
}

std::string index_path(const std::string& name, const NameSet& names) {
  std::string path, component;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '%') {
      component += "%25";
    } else if (name[i] != '/') {
      component += name[i];
    } else if (separates(name, i, names)) {
      path += '/' + escape_dots(component);
      component.clear();
    } else {
      component += "%2F";
    }
  }
  return path + '/' + escape_dots(component);
}

// Describes a tensor, for people. A list of devices may be too long for an attribute. Valid as long
// as `texts` stay.
std::vector<Hdf5Attribute> attributes_of(const TensorEntry& tensor, ShardingTexts& texts) {
  std::vector<Hdf5Attribute> attributes{{"dtype", shardwise::name(tensor.dtype)}};
  if (!tensor.sharding) {
    attributes.push_back({"mesh", ""});
    attributes.push_back({"spec", ""});
    return attributes;
  }
  texts.set(*tensor.sharding);
  if (texts.mesh.size() <= kMaxHdf5Text) attributes.push_back({"mesh", texts.mesh});
  if (texts.spec.size() <= kMaxHdf5Text) attributes.push_back({"spec", texts.spec});
  if (texts.policy != kUsualPolicy && texts.policy.size() <= kMaxHdf5Text) {
    attributes.push_back({"policy", texts.policy});
  }
  return attributes;
}

/// Gives the pieces of a tensor, by its number, whose datasets are texts that stay in `datasets`;
/// false: no index is wanted after all.
using MappingsOf = std::function<bool(std::size_t tensor, std::vector<Hdf5Mapping>& mappings,
                                      std::deque<std::string>& datasets)>;

std::vector<std::byte> build_index(std::span<const TensorEntry> tensors, const MappingsOf& of) {
  AddressDriver driver(0, 0);
  std::optional<Hdf5Types> made_types;
  {
    const Hdf5Lock lock;
    driver.finish(driver.create_file());
    made_types.emplace();
  }
  const Hdf5Types& types = *made_types;
  Hdf5Bytes out(driver.end());
  Hdf5Datasets datasets(out);
  std::vector<Hdf5Link> links;
  links.reserve(tensors.size());
  std::vector<Hdf5Mapping> mappings;
  std::deque<std::string> datasets_of, targets;  // of the tensor's pieces, of all links
  ShardingTexts texts;
  std::vector<std::string> names;
  for (const TensorEntry& tensor : tensors) names.push_back(tensor.name);
  const std::vector<std::string> paths = index_paths(names);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const TensorEntry& tensor = tensors[t];
    mappings.clear();
    datasets_of.clear();
    if (!of(t, mappings, datasets_of)) return {};
    if (tensor.shape.empty()) {
      const Hdf5Mapping& piece = mappings.front();
      const std::string& target = targets.emplace_back(piece.dataset);
      links.push_back({.path = paths[t], .file = piece.file, .object = target});
      continue;
    }
    const FillValue value = fill_value(tensor.dtype);
    const std::span fill = std::span(value).first(size_bytes(tensor.dtype));
    const std::vector<Hdf5Attribute> attributes = attributes_of(tensor, texts);
    links.push_back(
        {paths[t], mappings.empty()
                       ? datasets.add_empty(types[tensor.dtype], tensor.shape, fill, attributes)
                       : datasets.add_virtual(types[tensor.dtype], tensor.shape, fill, mappings,
                                              attributes)});
  }
  const std::uint64_t root = add_hdf5_groups(out, std::move(links));
  driver.append(out, root);
  return {driver.tail().begin(), driver.tail().end()};
}

}  // namespace

FillValue fill_value(DType dtype) {
  const auto bytes = [](auto value) {
    FillValue result{};
    const auto raw = std::bit_cast<std::array<std::byte, sizeof value>>(value);
    std::copy(raw.begin(), raw.end(), result.begin());
    return result;
  };
  switch (dtype) {
    case DType::f64:
      return bytes(std::numeric_limits<double>::quiet_NaN());
    case DType::f32:
      return bytes(std::numeric_limits<float>::quiet_NaN());
    case DType::f16:
      return bytes(std::uint16_t{0x7E00});
    case DType::bf16:
      return bytes(std::uint16_t{0x7FC0});
    case DType::f8_e4m3fn:
      return bytes(std::uint8_t{0x7F});
    case DType::f8_e5m2:
      return bytes(std::uint8_t{0x7E});
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return bytes(std::uint8_t{0x80});
    case DType::f8_e8m0fnu:
      return bytes(std::uint8_t{0xFF});
    case DType::c64:
      return bytes(std::array{std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::quiet_NaN()});
    case DType::c128:
      return bytes(std::array{std::numeric_limits<double>::quiet_NaN(),
                              std::numeric_limits<double>::quiet_NaN()});
    case DType::i64:
      return bytes(std::numeric_limits<std::int64_t>::min());
    case DType::i32:
      return bytes(std::numeric_limits<std::int32_t>::min());
    case DType::i16:
      return bytes(std::numeric_limits<std::int16_t>::min());
    case DType::i8:
    case DType::boolean:
      return bytes(std::numeric_limits<std::int8_t>::min());
    case DType::u64:
    case DType::u32:
    case DType::u16:
    case DType::u8:
      break;
  }
  return bytes(std::numeric_limits<std::uint64_t>::max());
}

std::vector<std::string> index_paths(std::span<const std::string> names) {
  const NameSet set(names.begin(), names.end());
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(index_path(name, set));
  return paths;
}

std::vector<std::byte> build_index_file(std::span<const TensorEntry> tensors,
                                        std::span<const FileEntry> files) {
  return build_index(tensors, [&](std::size_t t, auto& mappings, auto& datasets) {
    for (const PieceEntry& piece : tensors[t].pieces) {
      mappings.push_back({piece.box, files[static_cast<std::size_t>(piece.file)].name,
                          datasets.emplace_back(piece.dataset.path())});
    }
    return true;
  });
}

std::vector<std::byte> build_useful_index(const WriterMap& writers,
                                          std::span<const TensorEntry> tensors) {
  const std::int64_t count = writers.num_writers();
  if (count > kMostIndexedWriters) return {};
  std::vector<std::string> files;
  for (std::int64_t writer = 0; writer < count; ++writer) {
    files.push_back(shard_file_name(writer, count));
  }
  std::vector<PieceDatasets> numbers(files.size());
  std::vector<Box> boxes;
  std::size_t all = 0;
  return build_index(tensors, [&](std::size_t t, auto& mappings, auto& datasets) {
    for (std::size_t writer = 0; writer < files.size(); ++writer) {
      boxes.clear();
      add_pieces_of(static_cast<std::int64_t>(writer), writers, tensors[t], boxes);
      for (const Box& box : boxes) {
        mappings.push_back(
            {box, files[writer], datasets.emplace_back(numbers[writer].next(t).path())});
      }
    }
    all += mappings.size();
    return all <= kMostMappings;
  });
}

}  // namespace shardwise::detail
