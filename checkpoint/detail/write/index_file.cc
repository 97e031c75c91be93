#include "shardwise/checkpoint/detail/write/index_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_set>

#include "shardwise/checkpoint/detail/write/placement_driver.h"

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

// What shows where a source is missing: NaN, or a number that is hardly ever meant.
std::array<std::byte, 8> fill_value(DType dtype) {
  const auto bytes = [](auto value) {
    std::array<std::byte, 8> result{};
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

void add_text(const H5Dataset& dataset, const char* name, const std::string& text) {
  const H5Type type(H5Tcopy(H5T_C_S1), "copy the string type");
  check_hdf5(H5Tset_size(type.get(), std::max<std::size_t>(text.size(), 1)), name);
  check_hdf5(H5Tset_strpad(type.get(), H5T_STR_NULLPAD), name);
  check_hdf5(H5Tset_cset(type.get(), H5T_CSET_UTF8), name);
  const H5Space space = hdf5_space({});
  const H5Attribute attribute(
      H5Acreate2(dataset.get(), name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT), name);
  // An empty text has its terminator, so there is always a byte to write.
  check_hdf5(H5Awrite(attribute.get(), type.get(), text.c_str()), name);
}

/// Writes index.h5 into an open file. Under an Hdf5Lock.
class IndexWriter {
 public:
  IndexWriter(const H5File& file, std::span<const FileEntry> files)
      : file_(file), files_(files), link_(H5Pcreate(H5P_LINK_CREATE), "make a property list") {
    check_hdf5(H5Pset_char_encoding(link_.get(), H5T_CSET_UTF8), "set the link encoding");
  }

  void add(const TensorEntry& tensor) {
    make_groups(tensor.index);
    if (tensor.shape.empty()) {
      const PieceEntry& piece = tensor.pieces.front();
      check_hdf5(H5Lcreate_external(source_of(piece), piece.dataset.c_str(), file_.get(),
                                    tensor.index.c_str(), link_.get(), H5P_DEFAULT),
                 tensor.index);
      return;
    }
    const H5Type type = hdf5_type(tensor.dtype);
    const H5Space space = hdf5_space(tensor.shape);
    const H5Properties creation = hdf5_timeless(H5P_DATASET_CREATE);
    check_hdf5(H5Pset_fill_value(creation.get(), type.get(), fill_value(tensor.dtype).data()),
               tensor.index);
    for (const PieceEntry& piece : tensor.pieces) map(tensor, piece, space, creation);
    const H5Dataset dataset(H5Dcreate2(file_.get(), tensor.index.c_str(), type.get(), space.get(),
                                       link_.get(), creation.get(), H5P_DEFAULT),
                            tensor.index);
    add_text(dataset, "dtype", std::string(shardwise::name(tensor.dtype)));
    add_text(dataset, "mesh", tensor.mesh);
    add_text(dataset, "spec", tensor.spec);
  }

 private:
  const char* source_of(const PieceEntry& piece) const {
    return files_[static_cast<std::size_t>(piece.file)].name.c_str();
  }

  void map(const TensorEntry& tensor, const PieceEntry& piece, const H5Space& space,
           const H5Properties& creation) const {
    std::array<hsize_t, kMaxRank> begin{}, extents{};
    for (std::size_t d = 0; d < piece.box.rank(); ++d) {
      begin[d] = static_cast<hsize_t>(piece.box.begin(d));
      extents[d] = static_cast<hsize_t>(piece.box.extent(d));
    }
    constexpr std::array<hsize_t, kMaxRank> once{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, once.data(),
                                   extents.data()),
               tensor.index);
    const H5Space whole = hdf5_space(piece.box.shape());
    check_hdf5(H5Pset_virtual(creation.get(), space.get(), source_of(piece), piece.dataset.c_str(),
                              whole.get()),
               tensor.index);
  }

  // One by one, as the library would make missing groups with object times.
  void make_groups(const std::string& path) {
    for (std::size_t slash = path.find('/', 1); slash != std::string::npos;
         slash = path.find('/', slash + 1)) {
      const std::string group = path.substr(0, slash);
      if (!groups_.insert(group).second) continue;
      const H5Properties creation = hdf5_timeless(H5P_GROUP_CREATE);
      const H5Group made(
          H5Gcreate2(file_.get(), group.c_str(), link_.get(), creation.get(), H5P_DEFAULT), group);
    }
  }

  const H5File& file_;
  std::span<const FileEntry> files_;
  H5Properties link_;
  std::unordered_set<std::string> groups_;
};

}  // namespace

std::vector<std::string> index_paths(std::span<const std::string> names) {
  const NameSet set(names.begin(), names.end());
  std::vector<std::string> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(index_path(name, set));
  return paths;
}

std::vector<std::byte> build_index_file(std::span<const TensorEntry> tensors,
                                        std::span<const FileEntry> files) {
  const Hdf5Lock lock;
  PlacementDriver driver(0, 0);
  H5File file = driver.create_file();
  IndexWriter writer(file, files);
  for (const TensorEntry& tensor : tensors) writer.add(tensor);
  driver.finish(std::move(file));
  return {driver.tail().begin(), driver.tail().end()};
}

}  // namespace shardwise::detail
