#include "shardwise/storage/detail/hdf5_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/hdf5.h"

namespace shardwise::detail {
namespace {

// Before 1.14 the library finds chunk i by walking over all chunks before it: with this number of
// chunks, listing them takes a tenth of a second. A dataset of more chunks is read through the
// library.
constexpr hsize_t kMostListedChunks = 1 << 11;

struct FoundNames {
  std::vector<std::string> names;
  std::exception_ptr error;
};

// No exception may cross the library.
herr_t add_dataset_name(hid_t group, const char* name, const H5L_info_t* link, void* found) {
  auto& all = *static_cast<FoundNames*>(found);
  try {
    if (link->type == H5L_TYPE_SOFT || link->type == H5L_TYPE_EXTERNAL) return 0;
    H5O_info_t info;
    if (H5Oget_info_by_name2(group, name, &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0) return -1;
    if (info.type == H5O_TYPE_DATASET) all.names.emplace_back(name);
    return 0;
  } catch (...) {
    all.error = std::current_exception();
    return -1;
  }
}

std::vector<std::string> root_datasets(const H5File& file, const std::string& path) {
  FoundNames found;
  hsize_t at = 0;
  const herr_t status =
      H5Literate(file.get(), H5_INDEX_NAME, H5_ITER_INC, &at, add_dataset_name, &found);
  if (found.error) std::rethrow_exception(found.error);
  check_hdf5(status, fmt::format("list {}", path), kBroken);
  std::sort(found.names.begin(), found.names.end());
  return found.names;
}

[[noreturn]] void refuse_missing(const H5File& file, const std::string& path,
                                 const std::string& name) {
  H5Eclear2(H5E_DEFAULT);
  std::string known;
  for (const std::string& other : root_datasets(file, path)) {
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", other);
  }
  for (char& c : known) {  // names come from the file; a message is one line
    if (static_cast<unsigned char>(c) < ' ') c = '?';
  }
  throw Error(ErrorCode::not_found,
              fmt::format("open {}: there is no dataset \"{}\"; its root has {}", path, name,
                          known.empty() ? "none" : known));
}

// A chunk that is not kept is decoded again for each record in it. The first handle fixes the size
// of the cache, so it is closed first.
H5Dataset with_cache(H5Dataset opened, std::size_t chunk_bytes, const H5File& file,
                     const std::string& name, const std::string& what) {
  if (chunk_bytes <= kLeastHdf5CacheBytes) return opened;
  { const H5Dataset closed = std::move(opened); }
  const H5Properties access(H5Pcreate(H5P_DATASET_ACCESS), what, kBroken);
  check_hdf5(H5Pset_chunk_cache(access.get(), H5D_CHUNK_CACHE_NSLOTS_DEFAULT, chunk_bytes, 1),
             what);
  return H5Dataset(H5Dopen2(file.get(), name.c_str(), access.get()), what, kBroken);
}

// The number of chunks that cover the dataset; absent if over `most`.
std::optional<hsize_t> chunk_count(const Shape& shape, const Shape& chunk, hsize_t most) {
  hsize_t count = 1;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 0) return 0;
    const std::int64_t last = (shape[d] - 1) / chunk[d];
    const auto along = static_cast<hsize_t>(last) + 1;
    if (along > most / count) return std::nullopt;
    count *= along;
  }
  return count;
}

// Lists the offsets of all chunks, by their number in row-major order of the grid. False, with the
// list unfinished, if there are more than kMostListedChunks, the library cannot describe a chunk,
// or a chunk is missing, beyond the dataset or not of a whole chunk's size.
bool list_chunks(const H5Dataset& dataset, const H5Space& space, const Shape& shape,
                 std::size_t element_bytes, Hdf5Layout& layout) {
  const std::optional<hsize_t> count = chunk_count(shape, layout.chunk, kMostListedChunks);
  hsize_t there = 0;
  if (!count || H5Dget_num_chunks(dataset.get(), space.get(), &there) < 0 || there != *count) {
    return false;
  }
  const std::size_t chunk_bytes = num_bytes(layout.chunk, element_bytes);
  layout.chunk_offsets.assign(static_cast<std::size_t>(there), HADDR_UNDEF);
  for (hsize_t i = 0; i < there; ++i) {
    std::array<hsize_t, kMaxRank> begin{};
    unsigned mask = 0;
    haddr_t address = HADDR_UNDEF;
    hsize_t size = 0;
    if (H5Dget_chunk_info(dataset.get(), space.get(), i, begin.data(), &mask, &address, &size) <
            0 ||
        address == HADDR_UNDEF || size != chunk_bytes) {
      return false;
    }
    hsize_t number = 0;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      if (begin[d] >= static_cast<hsize_t>(shape[d])) return false;
      const std::int64_t last = (shape[d] - 1) / layout.chunk[d];
      number = number * (static_cast<hsize_t>(last) + 1) +
               begin[d] / static_cast<hsize_t>(layout.chunk[d]);
    }
    layout.chunk_offsets[static_cast<std::size_t>(number)] = address;
  }
  return std::find(layout.chunk_offsets.begin(), layout.chunk_offsets.end(), HADDR_UNDEF) ==
         layout.chunk_offsets.end();
}

Hdf5Layout find_layout(const H5File& file, const H5Dataset& dataset, const H5Space& space,
                       const Shape& shape, std::size_t element_bytes, const std::string& what) {
  Hdf5Layout layout;
  const H5Properties made(H5Dget_create_plist(dataset.get()), what, kBroken);
  const H5Properties file_made(H5Fget_create_plist(file.get()), what, kBroken);
  hsize_t user_block = 0;
  check_hdf5(H5Pget_userblock(file_made.get(), &user_block), what, kBroken);
  const H5D_layout_t kind = H5Pget_layout(made.get());
  if (kind == H5D_CONTIGUOUS && user_block == 0) {
    const haddr_t offset = H5Dget_offset(dataset.get());
    if (offset == HADDR_UNDEF) return layout;  // nothing was written: all fill values
    layout.kind = Hdf5Layout::Kind::contiguous;
    layout.offset = offset;
  } else if (kind == H5D_CHUNKED) {
    std::array<hsize_t, kMaxRank> chunk{};
    check_hdf5(H5Pget_chunk(made.get(), static_cast<int>(shape.size()), chunk.data()), what,
               kBroken);
    for (std::size_t d = 0; d < shape.size(); ++d) {
      layout.chunk.push_back(static_cast<std::int64_t>(chunk[d]));
    }
    if (user_block == 0 && H5Pget_nfilters(made.get()) == 0 &&
        list_chunks(dataset, space, shape, element_bytes, layout)) {
      layout.kind = Hdf5Layout::Kind::chunks;
    } else {
      layout.chunk_offsets.clear();
    }
  }
  return layout;
}

}  // namespace

struct Hdf5Dataset::Impl {
  Impl(const std::filesystem::path& path, const std::string& name);
  ~Impl() {
    const Hdf5Lock lock(Hdf5Lock::For::closing);
    dataset.reset();
    file.reset();
  }

  std::string what;
  Hdf5Description description;
  Hdf5Layout layout;
  std::optional<H5File> file;  // used and closed under the lock
  std::optional<H5Dataset> dataset;
};

Hdf5Dataset::Impl::Impl(const std::filesystem::path& path, const std::string& name)
    : what(fmt::format("open {}: dataset \"{}\"", path.string(), name)) {
  const Hdf5Lock lock;
  H5File opened = open_hdf5_file(path, kLeastHdf5CacheBytes);
  // Checked first, so that a dataset that exists but cannot be opened is reported with the
  // library's own reason.
  if (H5Oexists_by_name(opened.get(), name.c_str(), H5P_DEFAULT) <= 0) {
    refuse_missing(opened, path.string(), name);
  }
  H5Dataset found(H5Dopen2(opened.get(), name.c_str(), H5P_DEFAULT), what, kBroken);
  description = describe_hdf5(found.get(), what);
  if (!description.why_not.empty()) {
    const char* const no_numbers = "its elements are no numbers that shardwise has: ";
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: {}{}", what, description.element ? "" : no_numbers, description.why_not));
  }
  found = with_cache(std::move(found), description.chunk_bytes, opened, name, what);
  const H5Space space(H5Dget_space(found.get()), what, kBroken);
  layout = find_layout(opened, found, space, description.shape,
                       size_bytes(description.element->dtype), what);
  file.emplace(std::move(opened));
  dataset.emplace(std::move(found));
}

Hdf5Dataset::Hdf5Dataset(const std::filesystem::path& file, const std::string& name)
    : impl_(std::make_unique<Impl>(file, name)) {}
Hdf5Dataset::~Hdf5Dataset() = default;
Hdf5Dataset::Hdf5Dataset(Hdf5Dataset&&) noexcept = default;
Hdf5Dataset& Hdf5Dataset::operator=(Hdf5Dataset&&) noexcept = default;

DType Hdf5Dataset::dtype() const { return impl_->description.element->dtype; }
const Shape& Hdf5Dataset::shape() const { return impl_->description.shape; }
std::size_t Hdf5Dataset::bytes() const { return impl_->description.bytes; }
bool Hdf5Dataset::swapped() const { return impl_->description.element->swapped; }
const Hdf5Layout& Hdf5Dataset::layout() const { return impl_->layout; }

void Hdf5Dataset::read(const Box& box, std::byte* out) const {
  if (box.empty()) return;
  const std::string what = fmt::format("read {}", std::string_view(impl_->what).substr(5));
  const Hdf5Lock lock;
  read_hdf5_box(*impl_->dataset, dtype(), box, out, what);
}

std::vector<std::string> hdf5_dataset_names(const std::filesystem::path& file) {
  const Hdf5Lock lock;
  const H5File opened = open_hdf5_file(file, kLeastHdf5CacheBytes);
  return root_datasets(opened, file.string());
}

}  // namespace shardwise::detail
