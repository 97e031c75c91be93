#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"

namespace shardwise {

/// How an image gets the size that is wanted.
enum class ImageResize {
  stretch,  ///< all of it, whatever its proportions
  crop      ///< the short side fits, of the long one both ends are cut off
};

/// Whether records have a field "label".
enum class ImageLabels {
  automatic,  ///< where there are class folders, or members .cls
  none        ///< no; images are taken wherever they lie
};

struct ImageOptions {
  /// What every image is scaled to, bit for bit as BILINEAR of Pillow 9.5 to 12.0 does (a triangle
  /// filter, antialiased), each channel by itself. Both 0: all images must have the size of the
  /// first; another is an error when it is read.
  std::int64_t height = 0, width = 0;

  /// 1 (luma), 3 (red, green, blue) or 4 (and alpha, 255 where an image has none): images of other
  /// kinds are converted. Alpha that is not wanted is dropped, 16 bits are rounded to 8, the inks
  /// of a CMYK JPEG become light. Profiles and a camera's orientation are not applied.
  std::int64_t channels = 3;

  ImageResize resize = ImageResize::stretch;
  ImageLabels labels = ImageLabels::automatic;

  /// An image with more is refused before memory is taken for it.
  std::int64_t max_pixels = std::int64_t{1} << 26;

  /// Of a tar: extensions of members (without the dot) that become fields of that name: u8 [most
  /// bytes], ragged, the bytes as they are. Records are then files of equal stem.
  std::vector<std::string> byte_fields = {};

  /// Told now and then, while a folder or archive is listed, how many entries have come; what it
  /// throws ends the listing.
  std::function<void(std::int64_t entries)> progress = {};
};

/// Images, and which class each belongs to: fields "image", u8 [height, width, channels], and,
/// where there are labels, "label", i64 [].
///
/// A record's file is read and decoded in read(), once for all boxes, and not at all where only
/// labels are asked for. PNG and JPEG are told by their first bytes, not by their names. The
/// fingerprint is of names, sizes, labels and samples of the encoded files; nothing is decoded
/// for it.
///
/// Thread-safe.
class ImageSource : public Source {
 public:
  /// By label; none where there are no labels or they come from members .cls.
  virtual const std::vector<std::string>& class_names() const = 0;

  /// The record's file: its path below the folder, its name in the tar.
  virtual std::string record_name(std::int64_t record) const = 0;
};

/// Images in a folder. Its sub-folders are the classes, numbered in the order of their names; a
/// class has all images below its folder, in the order of their folders' names and then their own,
/// as torchvision's ImageFolder has them. A folder without sub-folders that hold images is a list
/// of images without labels. An image is what ends in .png, .jpg or .jpeg, in either case; other
/// files, images beside class folders, and what begins with a dot are passed over.
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
/// an index; images are read in place, nothing is unpacked, and names are never used as
/// paths.
///
/// With members .cls, or byte_fields: files that follow one another and are equal up to the first
/// dot of their last name make one record (WebDataset): its image, and its label as a decimal
/// number. Else the class of an image is the last folder in its name, numbered in the order of
/// these names, and an archive without folders has no labels.
///
/// Throws as open_image_folder, and corrupt, naming member and offset, for an archive that is
/// damaged, cut off or joined to another, for a record without its image or label, or with two.
std::shared_ptr<const ImageSource> open_image_tar(const std::filesystem::path& path,
                                                  const ImageOptions& options = {});

}  // namespace shardwise
