#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// How to bring an image to the wanted size.
enum class ImageResize {
  stretch,  ///< all of it, whatever its proportions
  crop      ///< the short side fits, both ends of the long side are cut off
};

/// The source of the field "label".
enum class ImageLabels {
  automatic,  ///< if there are class folders, or members .cls
  none        ///< no field; images come from all folders
};

struct ImageOptions {
  /// The size that every image is scaled to, bit for bit as BILINEAR of Pillow 9.5 to 12.0 (a
  /// triangle filter, antialiased), each channel by itself. Both 0: all images must have the size
  /// of the first; reading an image of another size is an error.
  std::int64_t height = 0, width = 0;

  /// 1 (luma), 3 (red, green, blue) or 4 (and alpha, 255 if an image has none): other images are
  /// converted. Unwanted alpha is dropped, 16 bits are rounded to 8, and the inks of a CMYK JPEG
  /// become light. Colour profiles are not applied.
  std::int64_t channels = 3;

  /// Turn an image upright by the camera orientation in its EXIF data, before it is scaled, as
  /// Pillow's ImageOps.exif_transpose. If false, its pixels stay as in the file, as torchvision,
  /// TensorFlow and Pillow read them.
  bool exif_transpose = false;

  ImageResize resize = ImageResize::stretch;
  ImageLabels labels = ImageLabels::automatic;

  /// An image with more pixels is refused before memory is taken for it.
  std::int64_t max_pixels = std::int64_t{1} << 26;

  /// For a tar: extensions of members (without the dot) that become fields of that name: u8 [most
  /// bytes], ragged, the bytes as they are. A record is then the files of equal stem.
  std::vector<std::string> byte_fields = {};

  /// Called now and then while a folder or archive is listed, with the number of entries so far. An
  /// exception from it ends the listing.
  std::function<void(std::int64_t entries)> progress = {};
};

/// Images and their classes: fields "image", u8 [height, width, channels], and, if there are
/// labels, "label", i64 [].
///
/// A record's file is read and decoded in read(), once for all boxes, and not at all if only labels
/// are requested. PNG and JPEG are recognised by their first bytes, not by their names. The
/// fingerprint is made of names, sizes, labels and samples of the encoded files; nothing is decoded
/// for it.
///
/// Thread-safe.
class ImageSource : public Source {
 public:
  /// The names by label; empty if there are no labels or they come from members .cls.
  virtual const std::vector<std::string>& class_names() const = 0;

  /// The record's file: its path below the folder, or its name in the tar.
  virtual std::string record_name(std::int64_t record) const = 0;
};

/// Images in a folder. Its sub-folders are the classes, numbered in the order of their names. A
/// class has all images below its folder, in the order of their folders' names and then their own,
/// as in torchvision's ImageFolder. If no sub-folder holds images, the folder is a list of images
/// without labels. An image is a file whose name ends in .png, .jpg or .jpeg, in either case; other
/// files, images next to class folders, and names that begin with a dot are skipped.
///
/// Throws not_found (no folder, no image, a class without one), unsupported (images of another
/// format: .bmp, .gif, .webp and the like), io, invalid_argument (options). Reading throws corrupt,
/// unsupported, not_found or io, naming the file.
///
///   const auto images = open_image_folder("train", {.height = 64, .width = 64});
///   images->size();                   // 2
///   images->class_names()[1];         // "dog"
std::shared_ptr<const ImageSource> open_image_folder(const std::filesystem::path& folder,
                                                     const ImageOptions& options = {});

/// Images in a plain tar archive (ustar, GNU, pax), in its order. One pass over its headers makes
/// an index. Images are read in place, nothing is unpacked, and names are never used as paths.
///
/// If there are members .cls, or byte_fields, consecutive files whose names are equal up to the
/// first dot of the last part make one record (WebDataset): its image, and its label as a decimal
/// number. Names that begin with a dot or have none are skipped, and the case of extensions does
/// not count. The parts of "a.1.png" and "a.1.cls" belong together, too, but "a.1.png" and
/// "a.2.png" in one record are an error. If a record lacks a part that others have, that is an
/// error when it is read; if no record has an image, there is no field "image". Else the class of
/// an image is the last folder in its name. Classes are numbered in the order of their names, and
/// an archive without folders has no labels.
///
/// Throws as open_image_folder, and corrupt, naming member and offset, for an archive that is
/// damaged, cut off or joined to another, for a record with two images or labels, and if no record
/// has all parts.
std::shared_ptr<const ImageSource> open_image_tar(const std::filesystem::path& path,
                                                  const ImageOptions& options = {});

}  // namespace shardwise
