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
  std::uint64_t offset = 0, size_bytes = 0;
  bool is_there = false;  // if not, the record lacks this part
};

/// The parts of a member's name that determine its kind. They may hold any bytes.
struct MemberName {
  std::string_view folder;     // the last one; empty: none
  std::string_view key;        // the folders and the last part up to its first dot
  std::string_view base;       // the last part
  std::string_view extension;  // of the last part: all after its first dot
};

MemberName parts_of(std::string_view name) {
  MemberName parts;
  const std::size_t slash = name.rfind('/');
  const std::size_t begin = slash == std::string_view::npos ? 0 : slash + 1;
  parts.base = name.substr(begin);
  const std::size_t dot = std::min(parts.base.find('.'), parts.base.size());
  parts.key = name.substr(0, begin + dot);
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

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool equal_but_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

// The part of an extension before `ending`, if it is `ending` or ends with a dot and `ending`.
std::optional<std::string_view> prefix_of(std::string_view extension, std::string_view ending) {
  if (extension.size() < ending.size()) return std::nullopt;
  const std::string_view prefix = extension.substr(0, extension.size() - ending.size());
  if (!equal_but_case(extension.substr(prefix.size()), ending)) return std::nullopt;
  if (!prefix.empty() && prefix.back() != '.') return std::nullopt;
  return prefix;
}

// Members that WebDataset skips: names without a dot or that begin with one, and its own "__x__".
bool is_part(const MemberName& name) {
  const std::string_view first = name.key.substr(0, name.key.find('/'));
  const bool is_meta = first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
  return !is_meta && !name.base.starts_with('.') && name.base.find('.') != name.base.npos;
}

const std::string kImageEndings[] = {"png", "jpg", "jpeg"};
const std::string kLabelEnding = "cls";

constexpr std::size_t kNoMember = std::string_view::npos;

class TarStore final : public detail::ImageStore {
 public:
  TarStore(std::unique_ptr<const InputFile> file, const std::vector<std::string>& byte_fields)
      : file_(std::move(file)), byte_fields_(byte_fields) {}

  const InputFile& file() const { return *file_; }

  /// `first`: the image, or another member of a record that lacks one. `bytes`: the members of the
  /// byte fields.
  void add(const TarMember& first, bool has_image, bool has_label,
           std::span<const MemberBytes> bytes) {
    names_.add(first.name);
    images_.push_back({first.offset, has_image ? first.size_bytes : 0, has_image});
    has_label_.push_back(has_label);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(images_.size()); }
  std::uint64_t tag() const override { return file_->tag(); }
  std::string_view name(std::int64_t record) const override { return names_[as_size(record)]; }
  std::string place(std::int64_t record) const override {
    return fmt::format("{}: member {} at offset {}", file_->path(), shown_name(name(record)),
                       images_[as_size(record)].offset);
  }
  bool has_image(std::int64_t record) const override { return images_[as_size(record)].is_there; }
  bool has_any_label() const {
    return std::find(has_label_.begin(), has_label_.end(), true) != has_label_.end();
  }

  /// Throws corrupt if each record lacks a part that others have.
  void check_any_whole() const;
  void check_label(std::int64_t record) const override {
    if (!has_label_[as_size(record)]) fail_without(record, "label (.cls)");
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
    return static_cast<std::int64_t>(bytes_of(record, number).size_bytes);
  }
  void read_bytes(std::int64_t record, std::size_t number, std::int64_t offset,
                  std::span<std::byte> out) const override;

 private:
  [[noreturn]] void fail_without(std::int64_t record, const std::string& part) const {
    throw Error(ErrorCode::corrupt,
                fmt::format("read image: {}: no {} right next to it", place(record), part));
  }
  const MemberBytes& bytes_of(std::int64_t record, std::size_t number) const {
    const MemberBytes& bytes = bytes_[as_size(record) * byte_fields_.size() + number];
    if (!bytes.is_there) fail_without(record, fmt::format("\".{}\"", byte_fields_[number]));
    return bytes;
  }
  void read_all(std::int64_t record, std::uint64_t offset, std::span<std::byte> out) const;

  std::unique_ptr<const InputFile> file_;
  std::vector<std::string> byte_fields_;
  NameList names_;
  std::vector<MemberBytes> images_;
  std::vector<bool> has_label_;
  std::vector<MemberBytes> bytes_;  // per record, per byte field
};

void TarStore::check_any_whole() const {
  const auto is_there = [](const MemberBytes& part) { return part.is_there; };
  const bool has_images = std::any_of(images_.begin(), images_.end(), is_there);
  const bool has_labels = has_any_label();
  for (std::size_t i = 0; i < images_.size(); ++i) {
    const auto bytes = bytes_.begin() + static_cast<std::ptrdiff_t>(i * byte_fields_.size());
    if ((images_[i].is_there || !has_images) && (has_label_[i] || !has_labels) &&
        std::all_of(bytes, bytes + std::ssize(byte_fields_), is_there)) {
      return;
    }
  }
  if (images_.empty()) return;
  std::string parts = has_images ? "an image" : "";
  if (has_labels) parts += fmt::format("{}a label (.cls)", parts.empty() ? "" : ", ");
  for (const std::string& field : byte_fields_) {
    parts += fmt::format("{}\".{}\"", parts.empty() ? "" : ", ", field);
  }
  throw Error(
      ErrorCode::corrupt,
      fmt::format("open image tar {}: found {} records, each without a part that is needed: "
                  "{}, right next to each other",
                  file_->path(), images_.size(), parts));
}

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
  if (!image.is_there) fail_without(record, "image (.png, .jpg or .jpeg)");
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
  const MemberBytes& bytes = bytes_of(record, number);
  read_all(record, bytes.offset + static_cast<std::uint64_t>(offset), out);
}

/// Makes records from the members of an archive.
class TarRecords {
 public:
  TarRecords(std::unique_ptr<const InputFile> file, const TarIndex& index,
             const ImageOptions& options)
      : index_(index),
        options_(options),
        store_(std::make_unique<TarStore>(std::move(file), options.byte_fields)) {
    found_.most_bytes.assign(options.byte_fields.size(), 0);
  }

  FoundImages run() {
    if (!options_.byte_fields.empty() || (options_.labels == ImageLabels::automatic && has_cls())) {
      group_by_key();
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
  void group_by_key();
  template <typename Take>
  void each_group(const Take& take) const;
  std::optional<std::size_t> find_named_part(std::span<const std::size_t> group,
                                             std::span<const std::string> endings) const;
  void take_group(std::span<const std::size_t> group);
  std::optional<std::string_view> common_prefix(std::span<const std::size_t> group) const;
  std::optional<std::size_t> find_part(std::span<const std::size_t> group, std::string_view prefix,
                                       std::span<const std::string> endings) const;
  void check_is_file(const TarMember& member) const;
  std::int64_t read_label(const TarMember& member) const;

  const TarIndex& index_;
  const ImageOptions& options_;
  std::unique_ptr<TarStore> store_;
  FoundImages found_;
  bool has_plain_images_ = false, has_plain_labels_ = false;  // directly after the common prefix
};

bool TarRecords::has_cls() const {
  for (std::size_t i = 0; i < index_.size(); ++i) {
    const MemberName name = parts_of(index_[i].name);
    if (is_part(name) && prefix_of(name.extension, "cls")) return true;
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
    store_->add(member, true, true, {});
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

// A key's members follow one another. Members that are no part of a record do not separate them.
// Continues as long as `take` returns true.
template <typename Take>
void TarRecords::each_group(const Take& take) const {
  std::vector<std::size_t> group;
  std::string_view key;
  for (std::size_t i = 0; i < index_.size(); ++i) {
    const MemberName name = parts_of(index_[i].name);
    if (!is_part(name)) continue;
    if (!group.empty() && name.key != key) {
      if (!take(std::span<const std::size_t>(group))) return;
      group.clear();
    }
    key = name.key;
    group.push_back(i);
  }
  if (!group.empty()) take(std::span<const std::size_t>(group));
}

void TarRecords::group_by_key() {
  has_plain_labels_ = options_.labels != ImageLabels::automatic;
  each_group([&](std::span<const std::size_t> group) {
    const std::optional<std::string_view> prefix = common_prefix(group);
    if (!prefix) return true;
    has_plain_images_ = has_plain_images_ || find_part(group, *prefix, kImageEndings);
    has_plain_labels_ = has_plain_labels_ || find_part(group, *prefix, {&kLabelEnding, 1});
    return !has_plain_images_ || !has_plain_labels_;
  });
  each_group([&](std::span<const std::size_t> group) {
    take_group(group);
    return true;
  });
  if (!store_->has_any_label()) found_.labels.clear();
  store_->check_any_whole();
}

// The common prefix of the endings of the record's parts: empty, or "1." in "a.1.png" and
// "a.1.cls". Absent if the members are not a record, since all are of unknown kinds (a lone
// "meta.json").
std::optional<std::string_view> TarRecords::common_prefix(
    std::span<const std::size_t> group) const {
  std::optional<std::string_view> common;
  std::size_t first = 0, other = kNoMember;
  std::ptrdiff_t fewest_dots = 0;
  const auto take = [&](std::size_t number, std::string_view ending) {
    const auto prefix = prefix_of(parts_of(index_[number].name).extension, ending);
    if (!prefix) return;
    const std::ptrdiff_t dots = std::count(prefix->begin(), prefix->end(), '.');
    if (!common || dots < fewest_dots) {
      common = prefix;
      fewest_dots = dots;
      first = number;
      other = kNoMember;
    } else if (dots == fewest_dots && *prefix != *common && other == kNoMember) {
      other = number;
    }
  };
  for (const std::size_t number : group) {
    for (const std::string& ending : kImageEndings) take(number, ending);
    if (options_.labels == ImageLabels::automatic) take(number, kLabelEnding);
    for (const std::string& ending : options_.byte_fields) take(number, ending);
  }
  if (other != kNoMember) {
    fail(ErrorCode::corrupt, index_[other],
         fmt::format("is of the same record as {}, since a record's name ends at the first dot, "
                     "needed is one of each part",
                     shown_name(index_[first].name)));
  }
  return common;
}

std::optional<std::size_t> TarRecords::find_part(std::span<const std::size_t> group,
                                                 std::string_view prefix,
                                                 std::span<const std::string> endings) const {
  std::optional<std::size_t> found;
  for (const std::size_t number : group) {
    const std::string_view extension = parts_of(index_[number].name).extension;
    const bool is_one = std::any_of(endings.begin(), endings.end(), [&](const auto& ending) {
      return equal_but_case(extension, std::string(prefix) + ending);
    });
    if (!is_one) continue;
    check_is_file(index_[number]);
    if (found) {
      fail(ErrorCode::corrupt, index_[number],
           fmt::format("comes after {} for the same part of the record, needed is one",
                       shown_name(index_[*found].name)));
    }
    found = number;
  }
  return found;
}

// If no record of the archive has such a part by its ending alone: the only part with a name before
// its ending, as in "a.input.png" and "a.cls", that is not a byte field.
std::optional<std::size_t> TarRecords::find_named_part(std::span<const std::size_t> group,
                                                       std::span<const std::string> endings) const {
  std::optional<std::size_t> found;
  for (const std::size_t number : group) {
    const std::string_view extension = parts_of(index_[number].name).extension;
    const auto ends = [&](const std::string& ending) { return prefix_of(extension, ending); };
    const auto is_field = [&](const std::string& field) { return extension == field; };
    if (std::none_of(endings.begin(), endings.end(), ends) ||
        std::any_of(options_.byte_fields.begin(), options_.byte_fields.end(), is_field)) {
      continue;
    }
    if (found) return std::nullopt;
    found = number;
  }
  if (found) check_is_file(index_[*found]);
  return found;
}

void TarRecords::take_group(std::span<const std::size_t> group) {
  const std::optional<std::string_view> prefix = common_prefix(group);
  if (!prefix) return;
  const auto image = has_plain_images_ ? find_part(group, *prefix, kImageEndings)
                                       : find_named_part(group, kImageEndings);
  const auto find_label = [&](std::span<const std::string> endings) {
    return has_plain_labels_ ? find_part(group, *prefix, endings) : find_named_part(group, endings);
  };
  const auto label =
      options_.labels == ImageLabels::automatic ? find_label({&kLabelEnding, 1}) : std::nullopt;
  std::vector<MemberBytes> bytes(options_.byte_fields.size());
  for (std::size_t field = 0; field < bytes.size(); ++field) {
    const auto part = find_part(group, *prefix, {&options_.byte_fields[field], 1});
    if (!part) continue;
    const TarMember member = index_[*part];
    bytes[field] = {member.offset, member.size_bytes, true};
    found_.most_bytes[field] =
        std::max(found_.most_bytes[field], static_cast<std::int64_t>(member.size_bytes));
  }
  store_->add(index_[image.value_or(group.front())], image.has_value(), label.has_value(), bytes);
  found_.labels.push_back(label ? read_label(index_[*label]) : 0);
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
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("open image tar: byte field \"{}\" {}, needed are distinct names other than "
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
