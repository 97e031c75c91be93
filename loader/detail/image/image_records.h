#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/detail/image/encoded_image.h"
#include "shardwise/loader/detail/image/resize.h"
#include "shardwise/loader/detail/scratch_memory.h"
#include "shardwise/loader/sources/images.h"

namespace shardwise::detail {

/// The place of a source's encoded images. Thread-safe.
class ImageStore {
 public:
  virtual ~ImageStore() = default;

  virtual std::int64_t size() const = 0;

  /// As Tagged::tag.
  virtual std::uint64_t tag() const { return 0; }

  /// As ImageSource::record_name.
  virtual std::string_view name(std::int64_t record) const = 0;

  /// The record's place, for messages.
  virtual std::string place(std::int64_t record) const = 0;

  /// True if it has an image: in a tar, a record may lack it.
  virtual bool has_image(std::int64_t) const { return true; }

  /// Throws corrupt if the record lacks a label that others have.
  virtual void check_label(std::int64_t) const {}

  /// The size when it was listed; 0 without an image.
  virtual std::uint64_t size_bytes(std::int64_t record) const = 0;

  /// All bytes of the image, in `scratch`. Throws not_found, io, corrupt, and unsupported for more
  /// than `most_bytes`.
  virtual std::span<const std::byte> read(std::int64_t record, std::uint64_t most_bytes,
                                          ScratchMemory& scratch) const = 0;

  /// Reads bytes [offset, offset + out.size()) of the image, or as many as there are, and returns
  /// their number.
  virtual std::size_t read_part(std::int64_t record, std::uint64_t offset,
                                std::span<std::byte> out) const = 0;

  /// Size of the record's member for ImageOptions::byte_fields[number], in bytes.
  virtual std::int64_t byte_length(std::int64_t record, std::size_t number) const = 0;

  /// Reads bytes [offset, offset + out.size()) of that member. Throws corrupt if it is cut short.
  virtual void read_bytes(std::int64_t record, std::size_t number, std::int64_t offset,
                          std::span<std::byte> out) const = 0;
};

/// The images found in a folder or archive.
struct FoundImages {
  std::unique_ptr<const ImageStore> store;
  std::vector<std::int64_t> labels;  ///< per record, or empty
  std::vector<std::string> class_names;
  std::vector<std::int64_t> most_bytes;  ///< per byte field
};

/// Throws invalid_argument.
void check_options(const ImageOptions& options);

/// The source of the images found; reads the first image if the options give no size. `what` names
/// the folder or archive in messages.
std::shared_ptr<const ImageSource> make_image_source(FoundImages found, const ImageOptions& options,
                                                     const std::string& what);

/// The kind of a file, by its name.
enum class ImageName { image, other_image, no_image };

/// Decides by the extension; unsupported formats are other_image. Names that begin with a dot are
/// no_image.
ImageName classify(std::string_view base_name);

/// Numbers the classes in the order of their names: `classes` has one name per record, in any
/// order.
void number_classes(const std::vector<std::string_view>& classes, FoundImages& found);

}  // namespace shardwise::detail
