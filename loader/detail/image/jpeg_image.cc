#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <new>
#include <vector>

// Included after <cstdio>, which it needs.
#include <jpeglib.h>
// Included after <jpeglib.h>, which it needs.
#include <jerror.h>

#include "shardwise/loader/detail/image/encoded_image.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Each scan of a progressive JPEG costs work for all its pixels, and may take only a few bytes.
// Encoders write about ten.
constexpr int kMaxScans = 500;

/// True for a warning after which pixels are made up. Others (surplus bytes, odd headers) are
/// common in data sets and harmless.
bool is_damage(int code) {
  switch (code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC:
      return true;
    default:
      return false;
  }
}

bool is_unsupported(int code) {
  switch (code) {
    case JERR_BAD_PRECISION:
    case JERR_SOF_UNSUPPORTED:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_ARITH_NOTIMPL:
    case JERR_CCIR601_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
      return true;
    default:
      return false;
  }
}

/// As PngImage: libjpeg's errors jump to the last run().
class JpegImage final : public EncodedImage {
 public:
  JpegImage(std::span<const std::byte> encoded, std::int64_t max_pixels);
  ~JpegImage() override { jpeg_destroy_decompress(&jpeg_); }

  void decode(int channels, std::byte* out) override;

 private:
  template <class Body>
  void run(Body body) {
    if (!try_run(body)) fail();
  }
  template <class Body>
  bool try_run(Body& body) {
    if (setjmp(jump_) != 0) return false;
    body();
    return true;
  }
  [[noreturn]] void fail() const;
  [[noreturn]] static void on_error(j_common_ptr jpeg);
  static void on_message(j_common_ptr jpeg, int level);
  static void on_progress(j_common_ptr jpeg);

  void decode_cmyk(int channels, std::byte* out);

  jpeg_decompress_struct jpeg_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  int error_code_ = 0;
  std::array<char, JMSG_LENGTH_MAX> message_{};
  std::jmp_buf jump_{};
};

void JpegImage::fail() const {
  if (error_code_ == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
  if (is_unsupported(error_code_)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("a JPEG of a kind that libjpeg does not read: {}", message_.data()));
  }
  throw Error(ErrorCode::corrupt, fmt::format("damaged JPEG: {}", message_.data()));
}

void JpegImage::on_error(j_common_ptr jpeg) {
  auto* self = static_cast<JpegImage*>(jpeg->client_data);
  self->error_code_ = jpeg->err->msg_code;
  (*jpeg->err->format_message)(jpeg, self->message_.data());
  std::longjmp(self->jump_, 1);
}

void JpegImage::on_message(j_common_ptr jpeg, int level) {
  if (level < 0 && is_damage(jpeg->err->msg_code)) on_error(jpeg);
}

void JpegImage::on_progress(j_common_ptr jpeg) {
  auto* self = static_cast<JpegImage*>(jpeg->client_data);
  if (self->jpeg_.input_scan_number <= kMaxScans) return;
  std::snprintf(self->message_.data(), self->message_.size(), "more than %d scans", kMaxScans);
  std::longjmp(self->jump_, 1);
}

JpegImage::JpegImage(std::span<const std::byte> encoded, std::int64_t max_pixels) {
  jpeg_.err = jpeg_std_error(&errors_);
  errors_.error_exit = &JpegImage::on_error;
  errors_.emit_message = &JpegImage::on_message;
  jpeg_.client_data = this;
  try {
    run([this, encoded] {
      jpeg_CreateDecompress(&jpeg_, JPEG_LIB_VERSION, sizeof jpeg_);
      progress_.progress_monitor = &JpegImage::on_progress;
      jpeg_.progress = &progress_;
      jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(encoded.data()),
                   static_cast<unsigned long>(encoded.size()));
      jpeg_read_header(&jpeg_, TRUE);
    });
    size_ = {jpeg_.image_height, jpeg_.image_width};
    check_pixels(size_, max_pixels);
  } catch (...) {
    jpeg_destroy_decompress(&jpeg_);
    throw;
  }
}

void JpegImage::decode(int channels, std::byte* out) {
  const J_COLOR_SPACE colors = jpeg_.jpeg_color_space;
  if (colors == JCS_CMYK || colors == JCS_YCCK) return decode_cmyk(channels, out);
  jpeg_.out_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_EXT_RGBA;
  run([this, channels, out] {
    jpeg_start_decompress(&jpeg_);
    const std::size_t row_bytes =
        std::size_t{jpeg_.output_width} * static_cast<std::size_t>(channels);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      auto* row = reinterpret_cast<JSAMPROW>(out) + jpeg_.output_scanline * row_bytes;
      jpeg_read_scanlines(&jpeg_, &row, 1);
    }
    jpeg_finish_decompress(&jpeg_);
  });
}

// Adobe's programs store each ink inverted, and mark the file as theirs.
void JpegImage::decode_cmyk(int channels, std::byte* out) {
  jpeg_.out_color_space = JCS_CMYK;
  std::vector<JSAMPLE> inks(std::size_t{jpeg_.image_width} * 4);
  JSAMPLE* const row = inks.data();
  const unsigned flip = jpeg_.saw_Adobe_marker != 0 ? 0 : 255;
  run([this, channels, out, row, flip] {
    jpeg_start_decompress(&jpeg_);
    std::byte* to = out;
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW rows = row;
      jpeg_read_scanlines(&jpeg_, &rows, 1);
      for (std::size_t x = 0; x < jpeg_.output_width; ++x, to += channels) {
        std::uint32_t color[3];
        const std::uint32_t light = row[4 * x + 3] ^ flip;
        for (std::size_t i = 0; i < 3; ++i)
          color[i] = ((row[4 * x + i] ^ flip) * light + 127) / 255;
        if (channels == 1) {
          to[0] = luma(color[0], color[1], color[2]);
          continue;
        }
        for (std::size_t i = 0; i < 3; ++i) to[i] = static_cast<std::byte>(color[i]);
        if (channels == 4) to[3] = std::byte{0xff};
      }
    }
    jpeg_finish_decompress(&jpeg_);
  });
}

}  // namespace

std::unique_ptr<EncodedImage> open_jpeg(std::span<const std::byte> encoded,
                                        std::int64_t max_pixels) {
  return std::make_unique<JpegImage>(encoded, max_pixels);
}

}  // namespace shardwise::detail
