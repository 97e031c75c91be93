#include "shardwise/loader/detail/image/image_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "shardwise/loader/detail/image/orientation.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr std::int64_t kSampledImages = 64;
constexpr std::size_t kSampledBytesPerImage = std::size_t{4} << 10;
// Most memory that a thread keeps between images.
constexpr std::size_t kKeptScratchBytes = std::size_t{32} << 20;

struct ImageScratch {
  ScratchMemory encoded, decoded, scaled, result;

  void keep_at_most(std::size_t size_bytes) {
    for (ScratchMemory* memory : {&encoded, &decoded, &scaled, &result}) {
      memory->keep_at_most(size_bytes);
    }
  }
};

ImageScratch& thread_image_scratch() {
  thread_local ImageScratch scratch;
  return scratch;
}

// A PNG has at most 8 bytes per pixel, and some bytes besides pixels.
std::uint64_t most_encoded_bytes(std::int64_t max_pixels) {
  return static_cast<std::uint64_t>(max_pixels) * 8 + (std::uint64_t{16} << 20);
}

std::unique_ptr<EncodedImage> open_as_wanted(std::span<const std::byte> encoded,
                                             std::int64_t max_pixels, bool exif_transpose) {
  std::unique_ptr<EncodedImage> image = open_image(encoded, max_pixels);
  return exif_transpose ? upright(std::move(image), exif_orientation(encoded)) : std::move(image);
}

class ImageRecords final : public ImageSource, public Tagged {
 public:
  /// `size`: of the images, if there are any.
  ImageRecords(FoundImages found, const ImageOptions& options,
               const std::optional<ImageSize>& size);

  std::int64_t size() const override { return found_.store->size(); }
  std::uint64_t tag() const override { return found_.store->tag(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override;
  std::uint64_t fingerprint() const override;
  std::string describe(std::int64_t) const override {
    if (!has_image_) return "samples";
    return fmt::format("images({}{}{})", to_string(fields_[0].shape),
                       resize_ == ImageResize::crop && !fixed_size_ ? ", cropped" : "",
                       exif_transpose_ ? ", upright" : "");
  }
  const std::vector<std::string>& class_names() const override { return found_.class_names; }
  std::string record_name(std::int64_t record) const override {
    return std::string(found_.store->name(record));
  }

 private:
  // Order of fields: the image and the label, if any, and the byte fields.
  std::size_t first_byte_field() const {
    return (has_image_ ? 1U : 0U) + (found_.labels.empty() ? 0U : 1U);
  }
  bool is_image(std::size_t field) const { return has_image_ && field == 0; }
  void read_image(std::int64_t record, std::span<const FieldBox> boxes,
                  ImageScratch& scratch) const;
  void decode_to(EncodedImage& image, ImageScratch& scratch, std::byte* out) const;
  void read_bytes(std::int64_t record, std::size_t number, const BoxView& to) const;

  FoundImages found_;
  bool has_image_;
  int channels_;
  ImageResize resize_;
  bool exif_transpose_;
  bool fixed_size_;
  std::int64_t max_pixels_;
  ImageSize size_;
  Box whole_;
  std::vector<Field> fields_;
};

ImageRecords::ImageRecords(FoundImages found, const ImageOptions& options,
                           const std::optional<ImageSize>& size)
    : found_(std::move(found)),
      has_image_(size.has_value()),
      channels_(static_cast<int>(options.channels)),
      resize_(options.resize),
      exif_transpose_(options.exif_transpose),
      fixed_size_(options.height == 0),
      max_pixels_(options.max_pixels),
      size_(size.value_or(ImageSize())) {
  fields_.reserve(2 + options.byte_fields.size());
  if (has_image_) {
    fields_.push_back({"image", DType::u8, {size_.height, size_.width, options.channels}});
    whole_ = Box::whole(fields_[0].shape);
  }
  if (!found_.labels.empty()) fields_.push_back({"label", DType::i64, {}});
  for (std::size_t i = 0; i < options.byte_fields.size(); ++i) {
    fields_.push_back({options.byte_fields[i], DType::u8, {found_.most_bytes[i]}, true});
  }
}

void ImageRecords::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  bool wants_image = false;
  for (const FieldBox& box : boxes) {
    if (is_image(box.field)) {
      wants_image = true;
    } else if (box.field < first_byte_field()) {
      found_.store->check_label(sample.record);
      std::memcpy(box.to.data, &found_.labels[as_size(sample.record)], sizeof(std::int64_t));
    } else {
      read_bytes(sample.record, box.field - first_byte_field(), box.to);
    }
  }
  if (!wants_image) return;
  ImageScratch& scratch = thread_image_scratch();
  read_image(sample.record, boxes, scratch);
  scratch.keep_at_most(kKeptScratchBytes);
}

void ImageRecords::read_image(std::int64_t record, std::span<const FieldBox> boxes,
                              ImageScratch& scratch) const {
  const std::span<const std::byte> encoded =
      found_.store->read(record, most_encoded_bytes(max_pixels_), scratch.encoded);
  // A box that is the whole image is written straight to its target.
  const auto wants_whole = [&](const FieldBox& box) {
    return box.field == 0 && box.to.box == whole_;
  };
  const auto direct = std::find_if(boxes.begin(), boxes.end(), wants_whole);
  std::byte* const pixels =
      direct != boxes.end() ? direct->to.data : scratch.result.take(num_bytes(fields_[0].shape, 1));
  try {
    const auto image = open_as_wanted(encoded, max_pixels_, exif_transpose_);
    decode_to(*image, scratch, pixels);
  } catch (const Error& error) {
    throw Error(error,
                fmt::format("read image: {}: {}", found_.store->place(record), error.what()));
  }
  for (auto box = boxes.begin(); box != boxes.end(); ++box) {
    if (box->field != 0 || box == direct) continue;
    copy_box(box->to.box, 1, {pixels, whole_}, box->to);
  }
}

void ImageRecords::decode_to(EncodedImage& image, ImageScratch& scratch, std::byte* out) const {
  const ImageSize found = image.size();
  if (found == size_) return image.decode(channels_, out);
  if (fixed_size_) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} x {} pixels, needed is the first image's {} x {}, or a height and width "
                    "to scale to",
                    found.height, found.width, size_.height, size_.width));
  }
  const auto bytes = static_cast<std::size_t>(found.height * found.width * channels_);
  std::byte* const decoded = scratch.decoded.take(bytes);
  image.decode(channels_, decoded);
  const ScaledPart part = resize_ == ImageResize::crop ? cropped(found, size_) : stretched(size_);
  resize_image(decoded, found, channels_, part, max_pixels_, scratch.scaled, out);
}

void ImageRecords::read_bytes(std::int64_t record, std::size_t number, const BoxView& to) const {
  const std::int64_t begin = to.box.begin(0), end = to.box.end(0);
  const std::int64_t there =
      std::clamp(found_.store->byte_length(record, number), begin, end) - begin;
  if (there > 0) found_.store->read_bytes(record, number, begin, {to.data, as_size(there)});
  std::fill_n(to.data + there, end - begin - there, std::byte{0});
}

std::int64_t ImageRecords::length(const Sample& sample, std::size_t field) const {
  if (field < first_byte_field()) return Source::length(sample, field);
  return found_.store->byte_length(sample.record, field - first_byte_field());
}

std::uint64_t ImageRecords::fingerprint() const {
  Hasher64 hasher;
  const auto add_bytes = [&](std::span<const std::byte> bytes) {
    hasher.update(bytes.data(), bytes.size());
  };
  const auto add = [&](auto value) { add_bytes(std::as_bytes(std::span(&value, 1))); };
  const auto add_text = [&](std::string_view text) {
    add(text.size());
    add_bytes(std::as_bytes(std::span(text)));
  };
  add(size());
  add(resize_ == ImageResize::crop && !fixed_size_ ? 1 : 0);
  for (const Field& field : fields_) {
    add_text(name(field.dtype));
    add(field.shape.size());
    for (const std::int64_t extent : field.shape) add(extent);
  }
  for (std::int64_t record = 0; record < size(); ++record) {
    add_text(found_.store->name(record));
    add(found_.store->size_bytes(record));
    if (!found_.labels.empty()) add(found_.labels[as_size(record)]);
  }
  std::array<std::byte, kSampledBytesPerImage> part;
  const std::int64_t samples = std::min(size(), kSampledImages);
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    // Samples are evenly spread, with the first and the last record among them, and come from all
    // over the records' bytes.
    const std::int64_t steps = std::max<std::int64_t>(samples - 1, 1);
    const std::int64_t record =
        (size() - 1) / steps * sample + (size() - 1) % steps * sample / steps;
    const std::uint64_t bytes = found_.store->size_bytes(record);
    const std::uint64_t room = bytes - std::min<std::uint64_t>(bytes, part.size());
    const std::uint64_t offset = room / kSampledImages * static_cast<std::uint64_t>(sample);
    add_bytes(std::span(part).first(found_.store->read_part(record, offset, part)));
  }
  return tagged_fingerprint(hasher.digest(), tag());
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

void check_options(const ImageOptions& options) {
  const auto fail = [](const std::string& found) {
    throw Error(ErrorCode::invalid_argument, "open images: " + found);
  };
  if (options.channels != 1 && options.channels != 3 && options.channels != 4) {
    fail(fmt::format("channels is {}, needed is 1, 3 or 4", options.channels));
  }
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 40;
  if (options.max_pixels < 1 || options.max_pixels > kMostPixels) {
    fail(fmt::format("max_pixels is {}, needed is 1 to {}", options.max_pixels, kMostPixels));
  }
  if (options.height == 0 && options.width == 0) return;
  if (options.height < 1 || options.width < 1 ||
      options.height > options.max_pixels / options.width) {
    fail(
        fmt::format("height is {} and width {}, needed are two of 1 or more with at most {} pixels "
                    "(max_pixels), or neither",
                    options.height, options.width, options.max_pixels));
  }
}

std::shared_ptr<const ImageSource> make_image_source(FoundImages found, const ImageOptions& options,
                                                     const std::string& what) {
  if (found.store->size() == 0) {
    throw Error(ErrorCode::not_found, what + ": no image in it, needed is .png, .jpg or .jpeg");
  }
  std::int64_t first = 0;
  while (first < found.store->size() && !found.store->has_image(first)) ++first;
  if (first == found.store->size()) {
    return std::make_shared<ImageRecords>(std::move(found), options, std::nullopt);
  }
  ImageSize size{options.height, options.width};
  if (options.height == 0) {
    const std::span<const std::byte> encoded = found.store->read(
        first, most_encoded_bytes(options.max_pixels), thread_image_scratch().encoded);
    try {
      size = open_as_wanted(encoded, options.max_pixels, options.exif_transpose)->size();
    } catch (const Error& error) {
      throw Error(error,
                  fmt::format("read image: {}: {}", found.store->place(first), error.what()));
    }
  }
  return std::make_shared<ImageRecords>(std::move(found), options, size);
}

ImageName classify(std::string_view base_name) {
  if (base_name.starts_with('.')) return ImageName::no_image;
  const std::size_t dot = base_name.rfind('.');
  if (dot == std::string_view::npos) return ImageName::no_image;
  std::string extension(base_name.substr(dot + 1));
  std::transform(extension.begin(), extension.end(), extension.begin(), lower);
  for (const char* image : {"png", "jpg", "jpeg"}) {
    if (extension == image) return ImageName::image;
  }
  for (const char* other : {"bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm", "avif", "heic"}) {
    if (extension == other) return ImageName::other_image;
  }
  return ImageName::no_image;
}

void number_classes(const std::vector<std::string_view>& classes, FoundImages& found) {
  std::vector<std::string_view> names = classes;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  found.class_names.assign(names.begin(), names.end());
  found.labels.reserve(classes.size());
  for (const std::string_view name : classes) {
    found.labels.push_back(std::lower_bound(names.begin(), names.end(), name) - names.begin());
  }
}

}  // namespace shardwise::detail
