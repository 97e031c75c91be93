#include "shardwise/storage/detail/hdf5_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <list>
#include <optional>
#include <string_view>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/hdf5.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;
using H5Object = H5Handle<H5Oclose>;

// Limits of a walk: groups linked to each other often make a small file endless.
constexpr std::size_t kMostDepth = 64, kMostLinks = std::size_t{1} << 18;
constexpr std::size_t kMostNameBytes = std::size_t{64} << 20;

// Parts of a dataset that are not stored read as zeros, so a small file may declare any size. No
// filter expands a byte to more than this; a file may have this many bytes of zeros in any case.
constexpr std::uint64_t kMostBytesOfOne = 40'000;
constexpr std::uint64_t kMostZeros = std::uint64_t{64} << 30;

// Caches of decoded chunks. Each open dataset keeps at least one chunk of the largest size.
constexpr std::size_t kMostCacheBytes = std::size_t{256} << 20;  // of all, or one chunk
constexpr std::size_t kMostOpenDatasets = 4;

// Before 1.14 the library finds chunk i by walking over all chunks before it: with this number of
// chunks, listing them takes a tenth of a second. A dataset of more chunks is read through the
// library.
constexpr hsize_t kMostListedChunks = 1 << 11;

struct Link {
  std::string name;
  H5L_type_t type;
  haddr_t address;
};

struct Links {
  std::vector<Link> all;
  std::size_t most;
  std::exception_ptr error;
};

// No exception may cross the library.
herr_t add_link(hid_t, const char* name, const H5L_info_t* info, void* to) {
  auto& links = *static_cast<Links*>(to);
  try {
    if (links.all.size() > links.most) return 1;  // ends it
    links.all.push_back(
        {name, info->type, info->type == H5L_TYPE_HARD ? info->u.address : HADDR_UNDEF});
    return 0;
  } catch (...) {
    links.error = std::current_exception();
    return -1;
  }
}

Links links_of(hid_t group, std::size_t most, const std::string& what) {
  Links links{{}, most, nullptr};
  hsize_t at = 0;
  const herr_t status = H5Literate(group, H5_INDEX_NAME, H5_ITER_INC, &at, add_link, &links);
  if (links.error) std::rethrow_exception(links.error);
  check_hdf5(status, what, kBroken);
  return links;
}

std::vector<std::string> root_datasets(const H5File& file, const std::string& path) {
  std::vector<std::string> names;
  const std::string what = fmt::format("list {}", path);
  for (const Link& link : links_of(file.get(), SIZE_MAX, what).all) {
    if (link.type != H5L_TYPE_HARD) continue;
    const H5Object object(H5Oopen_by_addr(file.get(), link.address), what, kBroken);
    if (H5Iget_type(object.get()) == H5I_DATASET) names.push_back(link.name);
  }
  std::ranges::sort(names);
  return names;
}

struct FoundDataset {
  Hdf5Dataset info;
  haddr_t address;
};

/// Finds the datasets of a file from its root, by links to objects of the file itself. Objects are
/// opened by their addresses, so no name leads to another file. Under an Hdf5Lock.
class Hdf5Walk {
 public:
  Hdf5Walk(const fs::path& path, const H5File& file) : path_(path), file_(file) {}

  void run() {
    const H5Object root(H5Oopen(file_.get(), "/", H5P_DEFAULT), what("its root"), kBroken);
    H5O_info_t info;
    check_hdf5(H5Oget_info2(root.get(), &info, H5O_INFO_BASIC), what("its root"), kBroken);
    above_.push_back(info.addr);
    walk(root, "");
    std::ranges::sort(found_, {}, [](const FoundDataset& dataset) -> const std::string& {
      return dataset.info.name;
    });
    const auto twice = std::ranges::adjacent_find(
        found_, {},
        [](const FoundDataset& dataset) -> const std::string& { return dataset.info.name; });
    if (twice != found_.end()) {
      throw Error(kBroken, fmt::format("read {}: dataset {} is there twice", path_.string(),
                                       shown(twice->info.name)));
    }
  }

  std::vector<FoundDataset> take_found() { return std::move(found_); }
  std::vector<std::string> take_left_out() { return std::move(left_out_); }
  std::size_t largest_compressed_chunk() const { return largest_chunk_; }

 private:
  std::string what(std::string_view object) const {
    return fmt::format("read {}: {}", path_.string(), object);
  }

  [[noreturn]] void refuse(const std::string& found) const {
    throw Error(ErrorCode::unsupported, fmt::format("read {}: {}", path_.string(), found));
  }

  void leave_out(const std::string& name, std::string_view why) {
    left_out_.push_back(fmt::format("{}: {}", shown(name), why));
  }

  void walk(const H5Object& group, const std::string& prefix) {
    const Links links = links_of(group.get(), kMostLinks - links_, what("group " + shown(prefix)));
    links_ += links.all.size();
    for (const Link& link : links.all) {
      const std::string name = prefix + link.name;
      name_bytes_ += name.size();
      if (links_ > kMostLinks || name_bytes_ > kMostNameBytes) {
        refuse(fmt::format("found more than {} links, or {} bytes of names, needed are fewer",
                           kMostLinks, kMostNameBytes));
      }
      follow(link, name);
    }
  }

  void follow(const Link& link, const std::string& name) {
    if (!is_utf8(name)) return leave_out(name, "its name is not UTF-8");
    if (link.type == H5L_TYPE_SOFT) return leave_out(name, "it is a soft link");
    if (link.type != H5L_TYPE_HARD) return leave_out(name, "it is a link to another file");
    const H5Object object(H5Oopen_by_addr(file_.get(), link.address), what(shown(name)), kBroken);
    const H5I_type_t type = H5Iget_type(object.get());
    if (type == H5I_DATASET) return add_dataset(object, link.address, name);
    if (type != H5I_GROUP) return;  // a named type has no elements
    if (std::ranges::find(above_, link.address) != above_.end()) {
      return leave_out(name, "it leads to a group above it");
    }
    if (above_.size() == kMostDepth) {
      refuse(fmt::format("found more than {} groups inside each other", kMostDepth));
    }
    above_.push_back(link.address);
    walk(object, name + "/");
    above_.pop_back();
  }

  void add_dataset(const H5Object& dataset, haddr_t address, const std::string& name) {
    const std::string whole = what("dataset " + shown(name));
    Hdf5Description found = describe_hdf5(dataset.get(), whole);
    if (!found.why_not.empty()) return leave_out(name, found.why_not);
    largest_chunk_ = std::max(largest_chunk_, found.chunk_bytes);
    check_claim(whole, found.bytes);
    found_.push_back(
        {{name, found.element->dtype, found.shape, found.bytes, found.element->swapped}, address});
  }

  void check_claim(const std::string& whole, std::uint64_t bytes) {
    hsize_t there = 0;
    check_hdf5(H5Fget_filesize(file_.get(), &there), what("its size"), kBroken);
    claimed_bytes_ += bytes;  // no overflow: each is < 2^63, and a sum over the limit throws
    const std::uint64_t most =
        std::max(kMostZeros, kMostBytesOfOne * std::min<std::uint64_t>(there, kMostZeros));
    if (claimed_bytes_ <= most) return;
    throw Error(kBroken, fmt::format("{}: found {} bytes of elements, with those before it, in a "
                                     "file of {} bytes, needed at most {}",
                                     whole, claimed_bytes_, there, most));
  }

  const fs::path& path_;
  const H5File& file_;
  std::vector<haddr_t> above_;  // the groups that the walk is in
  std::size_t links_ = 0, name_bytes_ = 0, largest_chunk_ = 0;
  std::uint64_t claimed_bytes_ = 0;
  std::vector<FoundDataset> found_;
  std::vector<std::string> left_out_;
};

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
bool list_chunks(const H5Dataset& dataset, const Shape& shape, std::size_t element_bytes,
                 const std::string& what, Hdf5Layout& layout) {
  const H5Space space(H5Dget_space(dataset.get()), what, kBroken);
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

Hdf5Layout find_layout(const H5File& file, const H5Dataset& dataset, const Shape& shape,
                       std::size_t element_bytes, const std::string& what) {
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
        list_chunks(dataset, shape, element_bytes, what, layout)) {
      layout.kind = Hdf5Layout::Kind::chunks;
    } else {
      layout.chunk_offsets.clear();
    }
  }
  return layout;
}

}  // namespace

struct Hdf5Reader::Impl {
  struct Open {
    std::size_t dataset;
    H5Dataset handle;
  };

  explicit Impl(const fs::path& of) : path(of) {}
  ~Impl() {
    const Hdf5Lock lock(Hdf5Lock::For::closing);
    open.clear();
    file.reset();
  }

  void walk() {
    const Hdf5Lock lock;
    file.emplace(open_hdf5_file(path, kLeastHdf5CacheBytes));
    Hdf5Walk walk(path, *file);
    walk.run();
    for (FoundDataset& found : walk.take_found()) {
      addresses.push_back(found.address);
      datasets.push_back(std::move(found.info));
    }
    left_out = walk.take_left_out();
    keep_chunks_of(walk.largest_compressed_chunk());
  }

  void find(const std::string& name) {
    const std::string what = fmt::format("open {}: dataset \"{}\"", path.string(), name);
    const Hdf5Lock lock;
    file.emplace(open_hdf5_file(path, kLeastHdf5CacheBytes));
    // Checked first, so that a dataset that exists but cannot be opened is reported with the
    // library's own reason.
    if (H5Oexists_by_name(file->get(), name.c_str(), H5P_DEFAULT) <= 0) {
      refuse_missing(*file, path.string(), name);
    }
    const auto found = [&] {
      return H5Dataset(H5Dopen2(file->get(), name.c_str(), H5P_DEFAULT), what, kBroken);
    };
    const H5Dataset& handle = open.emplace_front(Open{0, found()}).handle;
    const Hdf5Description told = describe_hdf5(handle.get(), what);
    if (!told.why_not.empty()) {
      const char* const no_numbers = "its elements are no numbers that shardwise has: ";
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: {}{}", what, told.element ? "" : no_numbers, told.why_not));
    }
    const auto& [dtype, swapped] = *told.element;
    datasets.push_back({name, dtype, told.shape, told.bytes, swapped});
    layout = find_layout(*file, handle, told.shape, size_bytes(dtype), what);
    keep_chunks_of(told.chunk_bytes);
    if (open.empty()) open.push_front({0, found()});
  }

  /// Opens the file again if its datasets need a larger cache, which is one of the first handle.
  void keep_chunks_of(std::size_t chunk_bytes) {
    if (chunk_bytes <= kLeastHdf5CacheBytes) return;
    most_open = std::clamp<std::size_t>(kMostCacheBytes / chunk_bytes, 1, kMostOpenDatasets);
    open.clear();
    file.reset();
    file.emplace(open_hdf5_file(path, chunk_bytes));
  }

  /// Under the lock. The datasets used last stay open, with their decoded chunks.
  const H5Dataset& opened(std::size_t dataset, const std::string& what) {
    const auto found = std::ranges::find(open, dataset, &Open::dataset);
    if (found != open.end()) {
      open.splice(open.begin(), open, found);
    } else {
      if (open.size() == most_open) open.pop_back();  // first, to free its chunks
      open.push_front(
          {dataset, H5Dataset(H5Oopen_by_addr(file->get(), addresses[dataset]), what, kBroken)});
    }
    return open.front().handle;
  }

  const fs::path path;
  std::vector<Hdf5Dataset> datasets;
  std::vector<std::string> left_out;
  Hdf5Layout layout;
  std::vector<haddr_t> addresses;  // not of one that is asked for by name: it stays open
  std::size_t most_open = kMostOpenDatasets;
  std::optional<H5File> file;  // used under an Hdf5Lock
  std::list<Open> open;        // the same; last used first
};

Hdf5Reader::Hdf5Reader(const fs::path& path) : impl_(std::make_unique<Impl>(path)) {
  impl_->walk();
}

Hdf5Reader::Hdf5Reader(const fs::path& path, const std::string& name)
    : impl_(std::make_unique<Impl>(path)) {
  impl_->find(name);
}

Hdf5Reader::~Hdf5Reader() = default;
Hdf5Reader::Hdf5Reader(Hdf5Reader&&) noexcept = default;
Hdf5Reader& Hdf5Reader::operator=(Hdf5Reader&&) noexcept = default;

const std::vector<Hdf5Dataset>& Hdf5Reader::datasets() const { return impl_->datasets; }

const std::vector<std::string>& Hdf5Reader::left_out() const { return impl_->left_out; }

const Hdf5Layout& Hdf5Reader::layout() const { return impl_->layout; }

void Hdf5Reader::read(std::size_t dataset, const Box& box, std::byte* out,
                      const std::string& what) const {
  const Hdf5Lock lock;
  read_hdf5_box(impl_->opened(dataset, what), impl_->datasets[dataset].dtype, box, out, what);
}

void Hdf5Reader::read(const Box& box, std::byte* out) const {
  if (box.empty()) return;
  read(0, box, out, fmt::format("read {}: dataset \"{}\"", impl_->path.string(), dataset().name));
}

std::vector<std::string> hdf5_dataset_names(const fs::path& file) {
  const Hdf5Lock lock;
  return root_datasets(open_hdf5_file(file, kLeastHdf5CacheBytes), file.string());
}

}  // namespace shardwise::detail
