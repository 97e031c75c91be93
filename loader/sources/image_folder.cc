#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/loader/detail/files/name_list.h"
#include "shardwise/loader/detail/image/image_records.h"
#include "shardwise/loader/detail/remote/remote_file.h"
#include "shardwise/loader/detail/remote/remote_names.h"
#include "shardwise/loader/sources/images.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using detail::FoundImages;
using detail::ImageName;
using detail::InputFile;
using detail::NameList;
using detail::ScratchMemory;

constexpr std::int64_t kFolderProgressEvery = 1024;

struct ImageFile {
  std::string name;  // within its folder
  std::uint64_t size_bytes;
  std::string etag = {};  // of an object in a bucket
};

struct ImageSubfolder {
  std::string path;  // below the root, with a slash at its end; empty for the root
  std::vector<ImageFile> files;
};

class FolderStore final : public detail::ImageStore {
 public:
  explicit FolderStore(fs::path folder) : folder_(std::move(folder)) {}

  void add(const std::string& path, const ImageFile& file) {
    names_.add(path + file.name);
    sizes_.push_back(file.size_bytes);
    if (!is_in_bucket_) return;
    etags_.add(file.etag);
    hasher_.update(std::as_bytes(std::span(file.etag)).data(), file.etag.size() + 1);
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(sizes_.size()); }
  std::uint64_t tag() const override { return is_in_bucket_ ? hasher_.digest() : 0; }
  std::string_view name(std::int64_t record) const override { return names_[as_size(record)]; }
  std::string place(std::int64_t record) const override { return path(record).string(); }
  std::uint64_t size_bytes(std::int64_t record) const override { return sizes_[as_size(record)]; }

  std::span<const std::byte> read(std::int64_t record, std::uint64_t most_bytes,
                                  ScratchMemory& scratch) const override;
  std::size_t read_part(std::int64_t record, std::uint64_t offset,
                        std::span<std::byte> out) const override {
    return open(record).read_at(offset, out);
  }
  std::int64_t byte_length(std::int64_t, std::size_t) const override { return 0; }
  void read_bytes(std::int64_t, std::size_t, std::int64_t, std::span<std::byte>) const override {}

 private:
  fs::path path(std::int64_t record) const { return folder_ / names_[as_size(record)]; }
  InputFile open(std::int64_t record) const {
    if (!is_in_bucket_) return InputFile(path(record));
    return {path(record),
            {.size = sizes_[as_size(record)], .etag = std::string(etags_[as_size(record)])}};
  }

  fs::path folder_;
  bool is_in_bucket_ = in_bucket(folder_);
  NameList names_, etags_;
  Hasher64 hasher_;  // of the ETags
  std::vector<std::uint64_t> sizes_;
};

std::span<const std::byte> FolderStore::read(std::int64_t record, std::uint64_t most_bytes,
                                             ScratchMemory& scratch) const {
  const InputFile file = open(record);
  if (file.size_bytes() > most_bytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("read image: {}: {} bytes, needed is at most {} (by max_pixels)",
                            file.path(), file.size_bytes(), most_bytes));
  }
  const std::span<std::byte> bytes(scratch.take(file.size_bytes()), file.size_bytes());
  return bytes.first(file.read_at(0, bytes));  // fewer if the file was cut since
}

/// The content of one folder, by kind; names that begin with a dot are left out.
struct FolderListing {
  std::vector<ImageFile> images;
  std::vector<std::string> folders;
  std::string other_image;  // an image of a format that is not read, or empty
};

/// Lists a folder and all below it.
class FolderScan {
 public:
  FolderScan(const fs::path& root, const ImageOptions& options) : root_(root), options_(options) {}

  FoundImages run();

 private:
  [[noreturn]] void fail(ErrorCode code, const fs::path& path, const std::string& found) const {
    throw Error(code,
                fmt::format("open image folder {}: {}: {}", root_.string(), path.string(), found));
  }

  FolderListing list(const std::string& below);
  void list_bucket();
  void add_entry(const fs::directory_entry& entry, FolderListing& listing) const;
  void list_tree(const std::string& below, FolderListing listing, std::vector<ImageSubfolder>& out);
  void check_no_loop(const fs::path& folder) const;
  std::size_t put(std::vector<ImageSubfolder> folders, FolderStore& store) const;
  void put_classes(const std::vector<std::string>& classes, FolderStore& store, FoundImages& found);

  const fs::path& root_;
  const ImageOptions& options_;
  std::vector<fs::path> above_;  // the folders that are being listed
  std::int64_t entries_ = 0;
  std::set<std::string> known_;                  // folders of the bucket
  std::map<std::string, FolderListing> bucket_;  // all of it, by folder, if the root is in one
};

// `below` the root: empty, or it ends with a slash.
FolderListing FolderScan::list(const std::string& below) {
  if (in_bucket(root_)) return std::move(bucket_[below]);
  const fs::path folder = root_ / below;
  FolderListing listing;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    add_entry(*entry, listing);
    if (options_.progress && ++entries_ % kFolderProgressEvery == 0) options_.progress(entries_);
  }
  if (error) {
    const bool absent =
        error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
    fail(absent ? ErrorCode::not_found : ErrorCode::io, folder, error.message());
  }
  return listing;
}

void FolderScan::list_bucket() {
  for (ObjectInfo& object : detail::objects_below(root_)) {
    const std::size_t slash = object.key.rfind('/');
    std::string folder = object.key.substr(0, slash == std::string::npos ? 0 : slash + 1);
    std::string name = object.key.substr(folder.size());
    if (object.key.starts_with('.') || object.key.find("/.") != std::string::npos) continue;
    const ImageName kind = detail::classify(name);
    if (kind == ImageName::other_image) bucket_[folder].other_image = name;
    if (kind == ImageName::image) {
      bucket_[folder].images.push_back({std::move(name), object.size, std::move(object.etag)});
    }
    // Each folder is in the list of the one above it.
    while (!folder.empty() && known_.insert(folder).second) {
      const std::size_t above = folder.rfind('/', folder.size() - 2);
      const std::size_t begin = above == std::string::npos ? 0 : above + 1;
      bucket_[folder.substr(0, begin)].folders.push_back(
          folder.substr(begin, folder.size() - begin - 1));
      folder.resize(begin);
    }
    if (options_.progress && ++entries_ % kFolderProgressEvery == 0) options_.progress(entries_);
  }
}

void FolderScan::add_entry(const fs::directory_entry& entry, FolderListing& listing) const {
  std::string name = entry.path().filename().string();
  if (name.starts_with('.')) return;
  std::error_code error;
  if (entry.is_directory(error)) {
    if (entry.is_symlink(error)) check_no_loop(entry.path());
    listing.folders.push_back(std::move(name));
    return;
  }
  const ImageName kind = detail::classify(name);
  if (kind == ImageName::no_image) return;
  if (kind == ImageName::other_image) {
    listing.other_image = std::move(name);
    return;
  }
  const bool is_file = entry.is_regular_file(error);
  const std::uint64_t size_bytes = is_file ? entry.file_size(error) : 0;
  if (error) {
    fail(error == std::errc::no_such_file_or_directory ? ErrorCode::not_found : ErrorCode::io,
         entry.path(), error.message());
  }
  if (!is_file) fail(ErrorCode::io, entry.path(), "not a regular file, nor a link to one");
  listing.images.push_back({std::move(name), size_bytes});
}

void FolderScan::check_no_loop(const fs::path& folder) const {
  for (const fs::path& above : above_) {
    std::error_code error;
    if (fs::equivalent(folder, above, error)) {
      fail(ErrorCode::unsupported, folder, "a link that leads back to a folder above it");
    }
  }
}

// `below` is empty, or ends with a slash.
void FolderScan::list_tree(const std::string& below, FolderListing listing,
                           std::vector<ImageSubfolder>& out) {
  const fs::path here = root_ / below;
  if (!listing.other_image.empty()) {
    fail(ErrorCode::unsupported, here / listing.other_image,
         "an image of another format, needed is PNG or JPEG");
  }
  if (!listing.images.empty()) out.push_back({below, std::move(listing.images)});
  above_.push_back(here);
  for (const std::string& folder : listing.folders) {
    list_tree(below + folder + '/', list(below + folder + '/'), out);
  }
  above_.pop_back();
}

// Returns the number of images in them.
std::size_t FolderScan::put(std::vector<ImageSubfolder> folders, FolderStore& store) const {
  // Sorts as Python sorts a list of paths, which have no slash at their ends.
  const auto by_path = [](const ImageSubfolder& a, const ImageSubfolder& b) {
    const std::string_view left(a.path), right(b.path);
    return left.substr(0, left.size() - !left.empty()) <
           right.substr(0, right.size() - !right.empty());
  };
  std::sort(folders.begin(), folders.end(), by_path);
  std::size_t count = 0;
  for (ImageSubfolder& folder : folders) {
    std::sort(folder.files.begin(), folder.files.end(),
              [](const ImageFile& a, const ImageFile& b) { return a.name < b.name; });
    for (const ImageFile& file : folder.files) store.add(folder.path, file);
    count += folder.files.size();
  }
  return count;
}

void FolderScan::put_classes(const std::vector<std::string>& classes, FolderStore& store,
                             FoundImages& found) {
  std::string without_images;
  for (const std::string& name : classes) {
    std::vector<ImageSubfolder> folders;
    list_tree(name + '/', list(name + '/'), folders);
    const std::size_t count = put(std::move(folders), store);
    if (count == 0 && without_images.empty()) without_images = name;
    found.labels.insert(found.labels.end(), count,
                        static_cast<std::int64_t>(found.class_names.size()));
    found.class_names.push_back(name);
  }
  if (found.labels.empty()) {
    found.class_names.clear();
  } else if (!without_images.empty()) {
    fail(ErrorCode::not_found, root_ / without_images,
         "a class folder without an image, needed is .png, .jpg or .jpeg");
  }
}

FoundImages FolderScan::run() {
  FoundImages found;
  auto store = std::make_unique<FolderStore>(root_);
  if (detail::is_remote(root_)) list_bucket();
  FolderListing top = list("");
  std::vector<ImageSubfolder> folders;
  if (options_.labels == ImageLabels::none) {
    list_tree("", std::move(top), folders);
  } else {
    std::sort(top.folders.begin(), top.folders.end());
    above_.push_back(root_);
    put_classes(top.folders, *store, found);
    above_.pop_back();
    top.folders.clear();
    if (found.labels.empty()) list_tree("", std::move(top), folders);
  }
  put(std::move(folders), *store);
  if (options_.progress) options_.progress(entries_);
  found.store = std::move(store);
  return found;
}

}  // namespace

std::shared_ptr<const ImageSource> open_image_folder(const std::filesystem::path& folder,
                                                     const ImageOptions& options) {
  detail::check_options(options);
  if (!options.byte_fields.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open image folder {}: byte field \"{}\"; only a tar has byte fields",
                            folder.string(), options.byte_fields[0]));
  }
  const fs::path root = in_bucket(folder) ? fs::path(path_of_url(folder.native())) : folder;
  return detail::make_image_source(FolderScan(root, options).run(), options,
                                   fmt::format("open image folder {}", folder.string()));
}

}  // namespace shardwise
