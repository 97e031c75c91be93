#include "shardwise/checkpoint/detail/read/index_check.h"

#include <fmt/format.h>

#include <array>

#include "shardwise/storage/detail/hdf5.h"

namespace shardwise::detail {
namespace {

constexpr ErrorCode kCorrupt = ErrorCode::corrupt;

[[noreturn]] void corrupt(const std::string& message) { throw Error(kCorrupt, message); }

/// The text that an HDF5 query gives when asked for its length first.
template <class Query>
std::string text_of(const char* what, Query&& query) {
  const ssize_t size = query(nullptr, 0);
  if (size < 0) throw_hdf5(what, kCorrupt);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (query(text.data(), text.size() + 1) < 0) throw_hdf5(what, kCorrupt);
  return text;
}

Shape extents_of(const H5Space& space) {
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0 || static_cast<std::size_t>(rank) > kMaxRank) corrupt("its rank is not possible");
  std::array<hsize_t, kMaxRank> extents{};
  check_hdf5(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr), "extents", kCorrupt);
  Shape shape;
  for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d) {
    shape.push_back(static_cast<std::int64_t>(extents[d]));
  }
  return shape;
}

/// The box that a selection is; it must be all of its bounding box.
Box selection_of(const H5Space& space, std::size_t rank) {
  std::array<hsize_t, kMaxRank> first{}, last{};
  check_hdf5(H5Sget_select_bounds(space.get(), first.data(), last.data()), "selection", kCorrupt);
  Index begin, end;
  for (std::size_t d = 0; d < rank; ++d) {
    begin.push_back(static_cast<std::int64_t>(first[d]));
    end.push_back(static_cast<std::int64_t>(last[d]) + 1);
  }
  Box box(begin, end);
  if (H5Sget_select_npoints(space.get()) != box.num_elements()) {
    corrupt(fmt::format("a mapping selects some elements of {}, not all", to_string(box)));
  }
  return box;
}

void check_mapping(const H5Properties& list, std::size_t number, const PieceEntry& piece,
                   const FileEntry& file) {
  const std::string file_name = text_of("file of a mapping", [&](char* text, std::size_t size) {
    return H5Pget_virtual_filename(list.get(), number, text, size);
  });
  const std::string dataset = text_of("dataset of a mapping", [&](char* text, std::size_t size) {
    return H5Pget_virtual_dsetname(list.get(), number, text, size);
  });
  if (file_name != file.name || dataset != piece.dataset) {
    corrupt(fmt::format("mapping {} is of {:?} in {:?}, must be of {:?} in {:?}", number, dataset,
                        file_name, piece.dataset, file.name));
  }
  const std::size_t rank = piece.box.rank();
  const H5Space to(H5Pget_virtual_vspace(list.get(), number), "place of a mapping", kCorrupt);
  if (const Box box = selection_of(to, rank); box != piece.box) {
    corrupt(fmt::format("mapping {} is to {}, must be to {}", number, to_string(box),
                        to_string(piece.box)));
  }
  // "All", whatever the extents: HDF5 does not keep the source's; those lie in the shard file.
  const H5Space from(H5Pget_virtual_srcspace(list.get(), number), "source of a mapping", kCorrupt);
  if (H5Sget_select_type(from.get()) != H5S_SEL_ALL) {
    corrupt(fmt::format("mapping {} is not from all of its dataset", number));
  }
}

void check_dataset(const H5File& file, const TensorEntry& tensor, const Manifest& manifest) {
  const H5Dataset dataset(H5Dopen2(file.get(), tensor.index.c_str(), H5P_DEFAULT), "open dataset",
                          kCorrupt);
  const H5Type type(H5Dget_type(dataset.get()), "type", kCorrupt);
  const H5Type expected = hdf5_type(tensor.dtype);
  if (H5Tequal(type.get(), expected.get()) <= 0) {
    corrupt(fmt::format("its type is not that of {}", shardwise::name(tensor.dtype)));
  }
  const H5Space space(H5Dget_space(dataset.get()), "extents", kCorrupt);
  if (const Shape extents = extents_of(space); extents != tensor.shape) {
    corrupt(
        fmt::format("its extents are {}, must be {}", to_string(extents), to_string(tensor.shape)));
  }
  if (tensor.pieces.empty()) return;

  const H5Properties list(H5Dget_create_plist(dataset.get()), "properties", kCorrupt);
  std::size_t count = 0;
  if (H5Pget_layout(list.get()) != H5D_VIRTUAL || H5Pget_virtual_count(list.get(), &count) < 0 ||
      count != tensor.pieces.size()) {
    corrupt(fmt::format("it has {} mappings, must have {}", count, tensor.pieces.size()));
  }
  for (std::size_t p = 0; p < count; ++p) {
    const PieceEntry& piece = tensor.pieces[p];
    check_mapping(list, p, piece, manifest.files[static_cast<std::size_t>(piece.file)]);
  }
}

void check_scalar(const H5File& file, const TensorEntry& tensor, const Manifest& manifest) {
  H5L_info_t info;
  const char* const path = tensor.index.c_str();
  check_hdf5(H5Lget_info(file.get(), path, &info, H5P_DEFAULT), "link", kCorrupt);
  if (info.type != H5L_TYPE_EXTERNAL) corrupt("it is not an external link");
  std::string value(info.u.val_size, '\0');
  check_hdf5(H5Lget_val(file.get(), path, value.data(), value.size(), H5P_DEFAULT), "link",
             kCorrupt);
  const char *file_name = nullptr, *dataset = nullptr;
  check_hdf5(H5Lunpack_elink_val(value.data(), value.size(), nullptr, &file_name, &dataset), "link",
             kCorrupt);
  const PieceEntry& piece = tensor.pieces.front();
  const FileEntry& source = manifest.files[static_cast<std::size_t>(piece.file)];
  if (file_name != source.name || dataset != piece.dataset) {
    corrupt(fmt::format("it links to {:?} in {:?}, must link to {:?} in {:?}", dataset, file_name,
                        piece.dataset, source.name));
  }
}

}  // namespace

std::vector<std::string> check_index(const std::filesystem::path& path, const Manifest& manifest) {
  std::vector<std::string> wrong;
  const Hdf5Lock lock;
  try {
    const H5File file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open", kCorrupt);
    for (const TensorEntry& tensor : manifest.tensors) {
      try {
        if (tensor.shape.empty()) {
          check_scalar(file, tensor, manifest);
        } else {
          check_dataset(file, tensor, manifest);
        }
      } catch (const Error& e) {
        wrong.push_back(fmt::format("check index {}: dataset {:?} of tensor {:?}: {}",
                                    path.string(), tensor.index, tensor.name, e.what()));
      }
    }
  } catch (const Error& e) {
    wrong.push_back(fmt::format("check index {}: {}", path.string(), e.what()));
  }
  return wrong;
}

}  // namespace shardwise::detail
