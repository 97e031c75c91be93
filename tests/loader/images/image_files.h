#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "loader/idx_files.h"
#include "shardwise/loader/source.h"

namespace shardwise {

/// Content of a PNG. Samples have the file's depth, `channels` of them a pixel, row-major.
struct PngContent {
  std::uint32_t height, width;
  int color_type;  ///< of png.h: 0 grey, 2 colour, 3 palette, 4 grey and alpha, 6 colour and alpha
  int depth = 8;
  std::vector<std::uint16_t> samples = {};
  bool interlaced = false;
  std::vector<std::array<std::uint8_t, 3>> palette = {};
  std::vector<std::uint8_t> palette_alpha = {};  ///< tRNS of a palette
  std::vector<std::uint16_t> transparent = {};   ///< tRNS of grey or colour: 1 or 3 samples
};

int png_channels(int color_type);

/// Written by libpng.
Bytes make_png(const PngContent& content);

/// One of 8 bits, of 1, 3 or 4 channels.
Bytes make_png(std::uint32_t height, std::uint32_t width, int channels, const Bytes& pixels);

/// Content of a JPEG: bytes, `channels` of them a pixel: 1 grey, 3 colour, 4 inks.
struct JpegContent {
  std::uint32_t height, width;
  int channels;
  Bytes pixels;
  int quality = 90;
  bool progressive = false;
  bool adobe = true;    ///< of inks: with Adobe's marker
  bool as_rgb = false;  ///< colour is stored as it is
  unsigned restart_interval = 0;
};

/// Written by libjpeg.
Bytes make_jpeg(const JpegContent& content);

/// Decodes by libjpeg alone: `channels` 1 or 3; 4 are inks.
Bytes plain_jpeg_pixels(const Bytes& jpeg, int channels);

/// Pixels that differ from their neighbours.
Bytes pattern_pixels(std::size_t height, std::size_t width, std::size_t channels);

/// Pixels that change slowly, as a JPEG likes them.
Bytes smooth_pixels(std::size_t height, std::size_t width, std::size_t channels);

/// A member of a tar archive, as a test wants it, wrong or right.
struct TarEntry {
  std::string name;
  Bytes data = {};
  char type = '0';
  std::string size_field = {};  ///< instead of the right one
  std::string magic = std::string("ustar\0", 6) + "00";
  std::string prefix = {};
};

Bytes tar_header(const TarEntry& entry);
Bytes tar_entry(const TarEntry& entry);

/// "LENGTH KEY=VALUE\n"; the length counts all of it.
std::string pax_record(std::string_view key, std::string_view value);

/// The entries, and two blocks of zeros.
Bytes make_tar(const std::vector<TarEntry>& entries);

Bytes to_bytes(std::string_view text);

/// All of a record's field.
Bytes read_field(const Source& source, std::string_view field, std::int64_t record);
std::int64_t read_label(const Source& source, std::int64_t record);

}  // namespace shardwise
