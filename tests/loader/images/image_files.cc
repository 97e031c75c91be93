#include "loader/images/image_files.h"

#include <png.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

// After <cstdio>, which it needs.
#include <jpeglib.h>

namespace shardwise {
namespace {

constexpr std::size_t kBlock = 512;

[[noreturn]] void fail_jpeg(j_common_ptr jpeg) {
  char message[JMSG_LENGTH_MAX];
  (*jpeg->err->format_message)(jpeg, message);
  std::fprintf(stderr, "libjpeg in a test: %s\n", message);
  std::abort();
}

// A row of samples as a PNG has it: high bits first.
std::vector<png_byte> packed_row(const PngContent& content, std::size_t row) {
  const std::size_t count =
      content.width * static_cast<std::size_t>(png_channels(content.color_type));
  const auto depth = static_cast<std::size_t>(content.depth);
  std::vector<png_byte> bytes((count * depth + 7) / 8);
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned sample = content.samples[row * count + i];
    if (depth == 16) {
      bytes[2 * i] = static_cast<png_byte>(sample >> 8);
      bytes[2 * i + 1] = static_cast<png_byte>(sample & 0xff);
    } else {
      const std::size_t bit = i * depth;
      bytes[bit / 8] = static_cast<png_byte>(bytes[bit / 8] | sample << (8 - depth - bit % 8));
    }
  }
  return bytes;
}

void write_transparency(png_structp png, png_infop info, const PngContent& content) {
  if (!content.palette_alpha.empty()) {
    png_set_tRNS(png, info, content.palette_alpha.data(),
                 static_cast<int>(content.palette_alpha.size()), nullptr);
  }
  if (content.transparent.empty()) return;
  png_color_16 color{};
  color.gray = color.red = content.transparent[0];
  if (content.transparent.size() == 3) {
    color.green = content.transparent[1];
    color.blue = content.transparent[2];
  }
  png_set_tRNS(png, info, nullptr, 0, &color);
}

}  // namespace

int png_channels(int color_type) {
  constexpr std::array kChannels{1, 0, 3, 1, 2, 0, 4};
  return kChannels[static_cast<std::size_t>(color_type)];
}

Bytes make_png(const PngContent& content) {
  Bytes out;
  png_structp png = png_create_write_struct(
      PNG_LIBPNG_VER_STRING, nullptr,
      [](png_structp, png_const_charp message) {
        std::fprintf(stderr, "libpng in a test: %s\n", message);
        std::abort();
      },
      nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp writer, png_bytep data, png_size_t size) {
        auto* bytes = static_cast<Bytes*>(png_get_io_ptr(writer));
        const auto* from = reinterpret_cast<const std::byte*>(data);
        bytes->insert(bytes->end(), from, from + size);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, content.width, content.height, content.depth, content.color_type,
               content.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> colors;
  for (const auto& color : content.palette) colors.push_back({color[0], color[1], color[2]});
  if (!colors.empty()) png_set_PLTE(png, info, colors.data(), static_cast<int>(colors.size()));
  write_transparency(png, info, content);
  png_write_info(png, info);
  const int passes = content.interlaced ? png_set_interlace_handling(png) : 1;
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t row = 0; row < content.height; ++row) {
      png_write_row(png, packed_row(content, row).data());
    }
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return out;
}

Bytes make_png(std::uint32_t height, std::uint32_t width, int channels, const Bytes& pixels) {
  PngContent content{height, width, channels == 1 ? 0 : channels == 3 ? 2 : 6};
  for (const std::byte byte : pixels) {
    content.samples.push_back(std::to_integer<std::uint16_t>(byte));
  }
  return make_png(content);
}

Bytes make_jpeg(const JpegContent& content) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  errors.error_exit = &fail_jpeg;
  jpeg_CreateCompress(&jpeg, JPEG_LIB_VERSION, sizeof jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_height = content.height;
  jpeg.image_width = content.width;
  jpeg.input_components = content.channels;
  jpeg.in_color_space = content.channels == 1   ? JCS_GRAYSCALE
                        : content.channels == 3 ? JCS_RGB
                                                : JCS_CMYK;
  jpeg_set_defaults(&jpeg);
  if (content.as_rgb) jpeg_set_colorspace(&jpeg, JCS_RGB);
  if (content.channels == 4 && !content.adobe) jpeg.write_Adobe_marker = FALSE;
  jpeg_set_quality(&jpeg, content.quality, TRUE);
  jpeg.restart_interval = content.restart_interval;
  if (content.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  Bytes pixels = content.pixels;
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = reinterpret_cast<JSAMPROW>(pixels.data()) +
                std::size_t{jpeg.next_scanline} * content.width *
                    static_cast<std::size_t>(content.channels);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  const auto* from = reinterpret_cast<const std::byte*>(memory);
  Bytes out(from, from + size);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  return out;
}

Bytes plain_jpeg_pixels(const Bytes& encoded, int channels) {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  errors.error_exit = &fail_jpeg;
  jpeg_CreateDecompress(&jpeg, JPEG_LIB_VERSION, sizeof jpeg);
  jpeg_mem_src(&jpeg, reinterpret_cast<const unsigned char*>(encoded.data()),
               static_cast<unsigned long>(encoded.size()));
  jpeg_read_header(&jpeg, TRUE);
  jpeg.out_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  jpeg_start_decompress(&jpeg);
  const std::size_t row_bytes = std::size_t{jpeg.output_width} * static_cast<std::size_t>(channels);
  Bytes out(row_bytes * jpeg.output_height);
  while (jpeg.output_scanline < jpeg.output_height) {
    auto* row = reinterpret_cast<JSAMPROW>(out.data()) + jpeg.output_scanline * row_bytes;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  jpeg_destroy_decompress(&jpeg);
  return out;
}

Bytes pattern_pixels(std::size_t height, std::size_t width, std::size_t channels) {
  Bytes pixels(height * width * channels);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<std::byte>((i * i * 7 + i * 131 + i / (width * channels) * 29) % 251);
  }
  return pixels;
}

Bytes smooth_pixels(std::size_t height, std::size_t width, std::size_t channels) {
  Bytes pixels;
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      for (std::size_t c = 0; c < channels; ++c) {
        pixels.push_back(static_cast<std::byte>((40 * c + 3 * x + (5 - c) * y) % 256));
      }
    }
  }
  return pixels;
}

Bytes tar_header(const TarEntry& entry) {
  std::string block(kBlock, '\0');
  const auto put = [&](std::size_t at, std::string_view text, std::size_t most) {
    block.replace(at, std::min(text.size(), most), text.substr(0, most));
  };
  char size[16];
  std::snprintf(size, sizeof size, "%011zo", entry.data.size());
  put(0, entry.name, 100);
  put(100, "0000644", 7);
  put(108, "0000000", 7);
  put(116, "0000000", 7);
  put(124, entry.size_field.empty() ? std::string_view(size) : std::string_view(entry.size_field),
      12);
  put(136, "00000000000", 11);
  put(148, "        ", 8);
  block[156] = entry.type;
  put(257, entry.magic, 8);
  put(345, entry.prefix, 155);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  std::snprintf(size, sizeof size, "%06o", sum);
  put(148, {size, 7}, 7);
  return to_bytes(block);
}

Bytes tar_entry(const TarEntry& entry) {
  Bytes all = tar_header(entry) + entry.data;
  all.resize((all.size() + kBlock - 1) / kBlock * kBlock);
  return all;
}

std::string pax_record(std::string_view key, std::string_view value) {
  const std::size_t rest = key.size() + value.size() + 3;
  std::size_t length = rest + 1;
  while (std::to_string(length).size() + rest != length) ++length;
  return std::to_string(length) + ' ' + std::string(key) + '=' + std::string(value) + '\n';
}

Bytes make_tar(const std::vector<TarEntry>& entries) {
  Bytes all;
  for (const TarEntry& entry : entries) all = all + tar_entry(entry);
  all.resize(all.size() + 2 * kBlock);
  return all;
}

Bytes to_bytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(data, data + text.size());
}

Bytes read_field(const Source& source, std::string_view field, std::int64_t record) {
  const std::size_t number = source.field_index(field);
  const Field& type = source.fields()[number];
  Bytes all(num_bytes(type.shape, size_bytes(type.dtype)));
  source.read_box(number, record, {all.data(), Box::whole(type.shape)});
  return all;
}

std::int64_t read_label(const Source& source, std::int64_t record) {
  std::int64_t label = -1;
  const Bytes all = read_field(source, "label", record);
  std::memcpy(&label, all.data(), sizeof label);
  return label;
}

}  // namespace shardwise
