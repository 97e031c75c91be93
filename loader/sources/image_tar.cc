#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/loader/detail/files/name_list.h"
#include "shardwise/loader/detail/files/tar_index.h"
#include "shardwise/loader/detail/image/image_records.h"
#include "shardwise/loader/sources/images.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

using detail::FoundImages;
using detail::ImageName;
using detail::InputFile;
using detail::NameList;
using detail::ScratchMemory;
using detail::shown_name;
using detail::TarIndex;
using detail::TarMember;

struct MemberBytes {
  std::uint64_t offset, size_bytes;
};

/// The parts of a member's name that say what it is. They may hold any bytes.
struct MemberName {
  std::string_view folder;     // the last one; empty: none
  std::string_view stem;       // the folders and the last part up to its first dot
  std::string_view base;       // the last part
  std::string_view extension;  // of the last part: all after its first dot
};

MemberName parts_of(std::string_view name) {
  MemberName parts;
  const std::size_t slash = name.rfind('/');
  const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  parts.base = name.substr(begin);
  const std::size_t dot = std::min(parts.base.find('.'), parts.base.size());
  parts.stem = name.substr(0, begin + dot);
  parts.extension = parts.base.substr(std::min(dot + 1, parts.base.size()));
  std::string_view folders = name.substr(0, begin);
  while (!folders.empty() && parts.folder.empty()) {
    folders.remove_suffix(1);
    const std::size_t last = folders.rfind('/');
    const std::string_view part = folders.substr(last == std::string_view::npos ? 0 : last + 1);
    if (part != ".") parts.folder = part;
    folders = folders.substr(0, folders.size() - part.size());
  }
  return parts;
}

bool equal_but_case(std::string_view a, std::string_view lower_case) {
  return std::equal(a.begin(), a.end(), lower_case.begin(), lower_case.end(), [](char x, char y) {
    return (x >= 'A' && x <= 'Z' ? static_cast<char>(x - 'A' + 'a') : x) == y;
  });
}

class TarStore final : public detail::ImageStore {
 public:
  TarStore(std::unique_ptr<const InputFile> file, std::size_t byte_fields)
      : file_(std::move(file)), byte_fields_(byte_fields) {}

  const InputFile& file() const { return *file_; }

  /// `bytes`: the members of the byte fields.
  void add(const TarMember& image, std::span<const MemberBytes> bytes) {
    names_.add(image.name);
    images_.push_back({image.offset, image.size_bytes});
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(images_.size()); }
  std::string_view name(std::int64_t record) const override { return names_[as_size(record)]; }
  std::string place(std::int64_t record) const override {
    return fmt::format("{}: member {} at offset {}", file_->path(), shown_name(name(record)),
                       images_[as_size(record)].offset);
  }
  std::uint64_t size_bytes(std::int64_t record) const override {
    return images_[as_size(record)].size_bytes;
  }
  std::span<const std::byte> read(std::int64_t record, std::uint64_t most_bytes,
                                  ScratchMemory& scratch) const override;
  std::size_t read_part(std::int64_t record, std::uint64_t offset,
                        std::span<std::byte> out) const override {
    const MemberBytes& image = images_[as_size(record)];
    const std::uint64_t rest = image.size_bytes - std::min(offset, image.size_bytes);
    return file_->read_at(
        image.offset + offset,
        out.first(static_cast<std::size_t>(std::min<std::uint64_t>(rest, out.size()))));
  }
  std::int64_t byte_length(std::int64_t record, std::size_t number) const override {
    return static_cast<std::int64_t>(bytes_[as_size(record) * byte_fields_ + number].size_bytes);
  }
  void read_bytes(std::int64_t record, std::size_t number, std::int64_t offset,
                  std::span<std::byte> out) const override;

 private:
  void read_all(std::int64_t record, std::uint64_t offset, std::span<std::byte> out) const;

  std::unique_ptr<const InputFile> file_;
  std::size_t byte_fields_;
  NameList names_;
  std::vector<MemberBytes> images_;
  std::vector<MemberBytes> bytes_;  // per record, per byte field
};

void TarStore::read_all(std::int64_t record, std::uint64_t offset, std::span<std::byte> out) const {
  const std::size_t count = file_->read_at(offset, out);
  if (count == out.size()) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format("read image: {}: record of member {}: {} bytes at offset {}, needed is {}: the "
                  "file was cut short since it was opened",
                  file_->path(), shown_name(name(record)), count, offset, out.size()));
}

std::span<const std::byte> TarStore::read(std::int64_t record, std::uint64_t most_bytes,
                                          ScratchMemory& scratch) const {
  const MemberBytes& image = images_[as_size(record)];
  if (image.size_bytes > most_bytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("read image: {}: {} bytes, needed is at most {} (by max_pixels)",
                            place(record), image.size_bytes, most_bytes));
  }
  const auto size = static_cast<std::size_t>(image.size_bytes);
  const std::span<std::byte> bytes(scratch.take(size), size);
  read_all(record, image.offset, bytes);
  return bytes;
}

void TarStore::read_bytes(std::int64_t record, std::size_t number, std::int64_t offset,
                          std::span<std::byte> out) const {
  const MemberBytes& bytes = bytes_[as_size(record) * byte_fields_ + number];
  read_all(record, bytes.offset + static_cast<std::uint64_t>(offset), out);
}

/// Makes records from the members of an archive.
class TarRecords {
 public:
  TarRecords(std::unique_ptr<const InputFile> file, const TarIndex& index,
             const ImageOptions& options)
      : index_(index),
        options_(options),
        store_(std::make_unique<TarStore>(std::move(file), options.byte_fields.size())) {
    found_.most_bytes.assign(options.byte_fields.size(), 0);
  }

  FoundImages run() {
    if (!options_.byte_fields.empty() || (options_.labels == ImageLabels::automatic && has_cls())) {
      group_by_stem();
    } else {
      take_images();
    }
    found_.store = std::move(store_);
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(ErrorCode code, const TarMember& member, const std::string& found) const {
    throw Error(code,
                fmt::format("open image tar {}: member {} at offset {}: {}", store_->file().path(),
                            shown_name(member.name), member.header_offset, found));
  }

  bool has_cls() const;
  void take_images();
  void group_by_stem();
  void take_group(std::size_t begin, std::size_t end);
  void take_member(std::size_t number, std::optional<std::size_t>& place) const;
  void check_is_file(const TarMember& member) const;
  std::int64_t read_label(const TarMember& member) const;

  const TarIndex& index_;
  const ImageOptions& options_;
  std::unique_ptr<TarStore> store_;
  FoundImages found_;
};

bool TarRecords::has_cls() const {
  for (std::size_t i = 0; i < index_.size(); ++i) {
    const MemberName name = parts_of(index_[i].name);
    if (!name.base.starts_with('.') && equal_but_case(name.extension, "cls")) return true;
  }
  return false;
}

void TarRecords::check_is_file(const TarMember& member) const {
  if (member.is_link) fail(ErrorCode::unsupported, member, "a link to a file, needed is the file");
}

void TarRecords::take_images() {
  std::vector<std::string_view> classes;
  std::optional<TarMember> without_folder;
  for (std::size_t i = 0; i < index_.size(); ++i) {
    const TarMember member = index_[i];
    const MemberName name = parts_of(member.name);
    const ImageName kind = detail::classify(name.base);
    if (kind == ImageName::no_image) continue;
    if (kind == ImageName::other_image) {
      fail(ErrorCode::unsupported, member, "an image of another format, needed is PNG or JPEG");
    }
    check_is_file(member);
    store_->add(member, {});
    if (options_.labels == ImageLabels::none) continue;
    classes.push_back(name.folder);
    if (name.folder.empty() && !without_folder) without_folder = member;
  }
  const bool any_class =
      std::any_of(classes.begin(), classes.end(), [](auto name) { return !name.empty(); });
  if (!any_class) return;
  if (without_folder) {
    fail(ErrorCode::corrupt, *without_folder,
         "an image in no folder, needed is its class's: others are in folders");
  }
  detail::number_classes(classes, found_);
}

void TarRecords::group_by_stem() {
  for (std::size_t begin = 0, end = 0; begin < index_.size(); begin = end) {
    const std::string_view stem = parts_of(index_[begin].name).stem;
    for (end = begin + 1; end < index_.size() && parts_of(index_[end].name).stem == stem;) ++end;
    take_group(begin, end);
  }
}

void TarRecords::take_member(std::size_t number, std::optional<std::size_t>& place) const {
  check_is_file(index_[number]);
  if (place) {
    fail(ErrorCode::corrupt, index_[number],
         fmt::format("comes after {} for the same part of the record, needed is one",
                     shown_name(index_[*place].name)));
  }
  place = number;
}

// Members with the same stem. They are no record if none is of a kind that we read (a lone
// "meta.json").
void TarRecords::take_group(std::size_t begin, std::size_t end) {
  std::optional<std::size_t> image, label;
  std::vector<std::optional<std::size_t>> bytes(options_.byte_fields.size());
  for (std::size_t i = begin; i < end; ++i) {
    const MemberName name = parts_of(index_[i].name);
    if (name.base.starts_with('.')) continue;
    for (std::size_t field = 0; field < bytes.size(); ++field) {
      if (name.extension == options_.byte_fields[field]) take_member(i, bytes[field]);
    }
    if (options_.labels == ImageLabels::automatic && equal_but_case(name.extension, "cls")) {
      take_member(i, label);
    } else if (equal_but_case(name.extension, "png") || equal_but_case(name.extension, "jpg") ||
               equal_but_case(name.extension, "jpeg")) {
      take_member(i, image);
    }
  }
  if (!image) {
    if (label) fail(ErrorCode::corrupt, index_[*label], "a label without an image right beside it");
    for (const auto& field : bytes) {
      if (field) fail(ErrorCode::corrupt, index_[*field], "no image right beside it");
    }
    return;
  }
  const TarMember member = index_[*image];
  // The first record decides whether there are labels.
  const bool has_labels = store_->size() == 0 ? label.has_value() : !found_.labels.empty();
  if (label.has_value() != has_labels) {
    fail(ErrorCode::corrupt, label ? index_[*label] : member,
         label ? "a label where the first record has none" : "an image without a label (.cls)");
  }
  std::vector<MemberBytes> places;
  places.reserve(bytes.size());
  for (std::size_t field = 0; field < bytes.size(); ++field) {
    if (!bytes[field]) {
      fail(ErrorCode::corrupt, member,
           fmt::format("an image without a \".{}\" right beside it", options_.byte_fields[field]));
    }
    const TarMember part = index_[*bytes[field]];
    places.push_back({part.offset, part.size_bytes});
    found_.most_bytes[field] =
        std::max(found_.most_bytes[field], static_cast<std::int64_t>(part.size_bytes));
  }
  store_->add(member, places);
  if (label) found_.labels.push_back(read_label(index_[*label]));
}

std::int64_t TarRecords::read_label(const TarMember& member) const {
  std::array<char, 64> text{};
  if (member.size_bytes > text.size()) {
    fail(ErrorCode::corrupt, member,
         fmt::format("a label of {} bytes, needed is a decimal number", member.size_bytes));
  }
  const auto size = static_cast<std::size_t>(member.size_bytes);
  const std::size_t count =
      store_->file().read_at(member.offset, std::as_writable_bytes(std::span(text).first(size)));
  const std::string_view number = trim({text.data(), count});
  std::int64_t label = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), label);
  if (error != std::errc() || end != number.data() + number.size()) {
    fail(ErrorCode::corrupt, member,
         fmt::format("a label that reads {}, needed is a decimal number", shown_name(number)));
  }
  return label;
}

TarIndex index_of(const InputFile& file, const ImageOptions& options) {
  try {
    return detail::read_tar_index({file.size_bytes(),
                                   [&file](std::uint64_t offset, std::span<std::byte> out) {
                                     return file.read_at(static_cast<std::size_t>(offset), out);
                                   }},
                                  options.progress);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) throw;
    throw Error(error, fmt::format("open image tar {}: {}", file.path(), error.what()));
  }
}

void check_byte_fields(const ImageOptions& options) {
  std::vector<std::string> names = options.byte_fields;
  names.insert(names.end(), {"image", "label"});
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  const bool empty = names[0].empty();
  if (!empty && twice == names.end()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("open image tar: byte field \"{}\" {}, needed are distinct names beside "
                          "\"image\" and \"label\"",
                          empty ? std::string() : *twice, empty ? "is empty" : "comes twice"));
}

}  // namespace

std::shared_ptr<const ImageSource> open_image_tar(const std::filesystem::path& path,
                                                  const ImageOptions& options) {
  detail::check_options(options);
  check_byte_fields(options);
  auto file = std::make_unique<const InputFile>(path);
  const std::string what = fmt::format("open image tar {}", file->path());
  const TarIndex index = index_of(*file, options);
  return detail::make_image_source(TarRecords(std::move(file), index, options).run(), options,
                                   what);
}

}  // namespace shardwise
