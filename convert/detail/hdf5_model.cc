#include "shardwise/convert/detail/hdf5_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/hdf5.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;
using H5Object = H5Handle<H5Oclose>;

constexpr ErrorCode kBroken = ErrorCode::corrupt;

// What a file may have: groups that are linked often make a small file endless.
constexpr std::size_t kMostDepth = 64, kMostLinks = std::size_t{1} << 18;
constexpr std::size_t kMostNameBytes = std::size_t{64} << 20;

// A compressed chunk is decoded as a whole.
constexpr std::size_t kMostChunkBytes = std::size_t{1} << 30;

// Decoded chunks that each open dataset keeps.
constexpr std::size_t kLeastCacheBytes = std::size_t{1} << 20;
constexpr std::size_t kMostCacheBytes = std::size_t{64} << 20;
constexpr std::size_t kMostOpenDatasets = 4;

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

struct FoundDataset {
  TensorInfo info;
  haddr_t address;
};

std::string_view name_of(H5T_class_t kind) {
  switch (kind) {
    case H5T_STRING:
      return "strings";
    case H5T_COMPOUND:
      return "records";
    case H5T_REFERENCE:
      return "references";
    case H5T_ENUM:
      return "an enumeration";
    case H5T_VLEN:
      return "lists";
    case H5T_ARRAY:
      return "arrays";
    case H5T_OPAQUE:
      return "raw bytes";
    default:
      return "numbers of a type that shardwise has not";
  }
}

/// What the datasets of a file are, found from its root by links that lead to objects of the file
/// itself. Objects are opened by their addresses, so no name leads to another file. Under an
/// Hdf5Lock.
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
    Links links{{}, kMostLinks - links_, nullptr};
    hsize_t at = 0;
    const herr_t status =
        H5Literate(group.get(), H5_INDEX_NAME, H5_ITER_INC, &at, add_link, &links);
    if (links.error) std::rethrow_exception(links.error);
    check_hdf5(status, what("group " + shown(prefix)), kBroken);
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
    if (type != H5I_GROUP) return;  // a named type, which has no elements
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
    TensorInfo info{.name = name, .shape = {}};
    const std::string whole = what("dataset " + shown(name));
    // The layout comes first: to tell the shape, the library opens a virtual dataset's files.
    const H5Properties made(H5Dget_create_plist(dataset.get()), whole, kBroken);
    if (H5Pget_layout(made.get()) == H5D_VIRTUAL || H5Pget_external_count(made.get()) != 0) {
      return leave_out(name, "its elements are in other files");
    }
    const H5Type type(H5Dget_type(dataset.get()), whole, kBroken);
    const std::optional<Hdf5Element> element = hdf5_element(type);
    if (!element) return leave_out(name, fmt::format("{}", name_of(H5Tget_class(type.get()))));
    info.dtype = element->dtype;
    const H5Space space(H5Dget_space(dataset.get()), whole, kBroken);
    const int rank = H5Sget_simple_extent_ndims(space.get());
    if (H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
      return leave_out(name, "it has no shape");
    }
    if (rank < 0 || rank > static_cast<int>(kMaxRank)) {
      return leave_out(name, fmt::format("it has {} dims, at most {} here", rank, kMaxRank));
    }
    std::array<hsize_t, kMaxRank> extents{};
    check_hdf5(H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr), whole, kBroken);
    std::size_t bytes = size_bytes(info.dtype);
    bool fits = true;
    for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d) {
      fits = fits && std::in_range<std::int64_t>(extents[d]);
      if (fits) info.shape.push_back(static_cast<std::int64_t>(extents[d]));
      fits = fits && !__builtin_mul_overflow(bytes, extents[d], &bytes);
    }
    if (!fits || !std::in_range<std::int64_t>(bytes)) {
      throw Error(kBroken, whole + ": its shape has 2^63 bytes or more");
    }
    if (!check_filters(made, info, name)) return;
    info.logical_bytes = bytes;
    found_.push_back({std::move(info), address});
  }

  /// False if it was left out.
  bool check_filters(const H5Properties& made, const TensorInfo& info, const std::string& name) {
    const int filters = H5Pget_nfilters(made.get());
    for (int i = 0; i < filters; ++i) {
      unsigned flags = 0, config = 0;
      std::size_t values = 0;
      const H5Z_filter_t filter = H5Pget_filter2(made.get(), static_cast<unsigned>(i), &flags,
                                                 &values, nullptr, 0, nullptr, &config);
      if (filter >= 0 && H5Zfilter_avail(filter) > 0) continue;
      leave_out(name, fmt::format("its filter number {} is not installed for HDF5", filter));
      return false;
    }
    if (filters <= 0 || H5Pget_layout(made.get()) != H5D_CHUNKED) return true;
    std::array<hsize_t, kMaxRank> chunk{};
    check_hdf5(H5Pget_chunk(made.get(), static_cast<int>(kMaxRank), chunk.data()),
               what("dataset " + shown(name)), kBroken);
    std::size_t bytes = size_bytes(info.dtype);
    bool fits = true;
    for (std::size_t d = 0; d < info.shape.size(); ++d) {
      fits = fits && !__builtin_mul_overflow(bytes, chunk[d], &bytes);
    }
    if (!fits || bytes > kMostChunkBytes) {
      leave_out(name, fmt::format("its chunks have more than {} bytes", kMostChunkBytes));
      return false;
    }
    largest_chunk_ = std::max(largest_chunk_, bytes);
    return true;
  }

  const fs::path& path_;
  const H5File& file_;
  std::vector<haddr_t> above_;  // the groups that the walk is in
  std::size_t links_ = 0, name_bytes_ = 0, largest_chunk_ = 0;
  std::vector<FoundDataset> found_;
  std::vector<std::string> left_out_;
};

H5File open_file(const fs::path& path, std::size_t cache_bytes) {
  const H5Properties access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  constexpr std::size_t kCacheSlots = 12421;  // a prime
  check_hdf5(H5Pset_cache(access.get(), 0, kCacheSlots, cache_bytes, 1), "set the chunk cache");
  return H5File(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()),
                fmt::format("read {}", path.string()), kBroken);
}

/// Thread-safe.
class Hdf5Tensors final : public BoxReader {
 public:
  Hdf5Tensors(fs::path path, std::unique_ptr<File> whole, std::vector<FoundDataset> datasets,
              std::size_t cache_bytes)
      : path_(std::move(path)), whole_(std::move(whole)), bytes_(whole_->size()) {
    for (FoundDataset& dataset : datasets) {
      addresses_.push_back(dataset.address);
      tensors_.push_back(std::move(dataset.info));
    }
    const Hdf5Lock lock;
    file_.emplace(open_file(path_, cache_bytes));
  }

  ~Hdf5Tensors() override {
    const Hdf5Lock lock;
    open_.clear();
    file_.reset();
  }

  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    if (box.empty()) return;
    const std::string what =
        fmt::format("tensor {} of {}", shown(tensors_[tensor].name), path_.string());
    const Hdf5Lock lock;
    read_hdf5_box(opened(tensor, what), tensors_[tensor].dtype, box, out.data(), what);
    // The library takes what is missing at a file's end for zeros.
    if (const std::uint64_t now = whole_->size(); now != bytes_) {
      throw Error(kBroken, fmt::format("{}: it has {} bytes now, it had {}", what, now, bytes_));
    }
  }

 private:
  struct Open {
    std::size_t tensor;
    H5Dataset dataset;
  };

  /// Under the lock. The ones used last stay open, with the chunks that they have decoded.
  const H5Dataset& opened(std::size_t tensor, const std::string& what) const {
    const auto found = std::ranges::find(open_, tensor, &Open::tensor);
    if (found != open_.end()) {
      open_.splice(open_.begin(), open_, found);
    } else {
      open_.push_front(
          {tensor, H5Dataset(H5Oopen_by_addr(file_->get(), addresses_[tensor]), what, kBroken)});
      if (open_.size() > kMostOpenDatasets) open_.pop_back();
    }
    return open_.front().dataset;
  }

  const fs::path path_;
  const std::unique_ptr<File> whole_;
  const std::uint64_t bytes_;  // of the file
  std::vector<TensorInfo> tensors_;
  std::vector<haddr_t> addresses_;
  std::optional<H5File> file_;      // used under an Hdf5Lock
  mutable std::list<Open> open_{};  // the same; last used first
};

}  // namespace

ModelSource open_hdf5_model(const fs::path& path, FileSystem& file_system) {
  std::unique_ptr<File> whole = open_linked(file_system, path);
  std::vector<FoundDataset> datasets;
  std::vector<std::string> left_out;
  std::size_t cache_bytes = 0;
  {
    const Hdf5Lock lock;
    const H5File file = open_file(path, kLeastCacheBytes);
    Hdf5Walk walk(path, file);
    walk.run();
    datasets = walk.take_found();
    left_out = walk.take_left_out();
    cache_bytes = std::clamp(walk.largest_compressed_chunk(), kLeastCacheBytes, kMostCacheBytes);
  }
  return {kHdf5,
          std::make_unique<Hdf5Tensors>(path, std::move(whole), std::move(datasets), cache_bytes),
          {},
          std::move(left_out)};
}

}  // namespace shardwise::detail
