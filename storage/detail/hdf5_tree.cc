#include "shardwise/storage/detail/hdf5_tree.h"

#include <fmt/format.h>

#include <algorithm>
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
  Hdf5Tree::Dataset info;
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
    found_.push_back({{name, found.element->dtype, found.shape, found.bytes}, address});
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

}  // namespace

struct Hdf5Tree::Impl {
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
    std::size_t cache_bytes = 0;
    {
      const H5File once = open_hdf5_file(path, kLeastHdf5CacheBytes);
      Hdf5Walk walk(path, once);
      walk.run();
      for (FoundDataset& found : walk.take_found()) {
        addresses.push_back(found.address);
        datasets.push_back(std::move(found.info));
      }
      left_out = walk.take_left_out();
      cache_bytes = std::max(walk.largest_compressed_chunk(), kLeastHdf5CacheBytes);
      most_open = std::clamp<std::size_t>(kMostCacheBytes / cache_bytes, 1, kMostOpenDatasets);
    }
    file.emplace(open_hdf5_file(path, cache_bytes));
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
  std::vector<Dataset> datasets;
  std::vector<std::string> left_out;
  std::vector<haddr_t> addresses;
  std::size_t most_open = kMostOpenDatasets;
  std::optional<H5File> file;  // used under an Hdf5Lock
  std::list<Open> open;        // the same; last used first
};

Hdf5Tree::Hdf5Tree(const fs::path& path) : impl_(std::make_unique<Impl>(path)) { impl_->walk(); }

Hdf5Tree::~Hdf5Tree() = default;

const std::vector<Hdf5Tree::Dataset>& Hdf5Tree::datasets() const { return impl_->datasets; }

const std::vector<std::string>& Hdf5Tree::left_out() const { return impl_->left_out; }

void Hdf5Tree::read(std::size_t dataset, const Box& box, std::byte* out,
                    const std::string& what) const {
  const Hdf5Lock lock;
  read_hdf5_box(impl_->opened(dataset, what), impl_->datasets[dataset].dtype, box, out, what);
}

}  // namespace shardwise::detail
