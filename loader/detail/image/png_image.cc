#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "shardwise/loader/detail/image/encoded_image.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Most bytes that one byte of deflate can unpack to.
constexpr std::uint64_t kMaxDeflateRatio = 1032;

/// libpng reports errors by a call that must not return: it jumps to the last run(). It jumps only
/// over C code and lambdas with nothing to destroy.
class PngImage final : public EncodedImage {
 public:
  PngImage(std::span<const std::byte> encoded, std::int64_t max_pixels);
  ~PngImage() override { png_destroy_read_struct(&png_, &info_, nullptr); }

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
  [[noreturn]] void fail() const {
    throw Error(ErrorCode::corrupt, fmt::format("damaged PNG: {}", message_.data()));
  }
  [[noreturn]] static void on_error(png_structp png, png_const_charp message);
  static void on_read(png_structp png, png_bytep out, std::size_t size);

  void check_encoded_bytes(int channels, int depth) const;
  void read_rows(int channels, std::byte* out);

  std::span<const std::byte> rest_;
  std::size_t encoded_bytes_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int color_ = 0;
  std::array<char, 160> message_{};
  std::jmp_buf jump_{};
};

void PngImage::on_error(png_structp png, png_const_charp message) {
  auto* self = static_cast<PngImage*>(png_get_error_ptr(png));
  std::snprintf(self->message_.data(), self->message_.size(), "%s", message);
  std::longjmp(self->jump_, 1);
}

void PngImage::on_read(png_structp png, png_bytep out, std::size_t size) {
  auto* self = static_cast<PngImage*>(png_get_io_ptr(png));
  if (size > self->rest_.size()) png_error(png, "it ends too early");
  std::memcpy(out, self->rest_.data(), size);
  self->rest_ = self->rest_.subspan(size);
}

PngImage::PngImage(std::span<const std::byte> encoded, std::int64_t max_pixels)
    : rest_(encoded), encoded_bytes_(encoded.size()) {
  png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &PngImage::on_error,
                                [](png_structp, png_const_charp) {});
  if (png_ != nullptr) info_ = png_create_info_struct(png_);
  if (info_ == nullptr) {
    png_destroy_read_struct(&png_, nullptr, nullptr);
    throw std::bad_alloc();
  }
  int depth = 0;
  png_uint_32 height = 0, width = 0;
  try {
    run([this] {
      png_set_read_fn(png_, this, &PngImage::on_read);
      png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
      // Texts, profiles and the like are skipped, not unpacked.
      png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
      png_read_info(png_, info_);
    });
    png_get_IHDR(png_, info_, &width, &height, &depth, &color_, nullptr, nullptr, nullptr);
    size_ = {height, width};
    check_pixels(size_, max_pixels);
    check_encoded_bytes(png_get_channels(png_, info_), depth);
  } catch (...) {
    png_destroy_read_struct(&png_, &info_, nullptr);
    throw;
  }
}

// Called before memory is taken for the pixels.
void PngImage::check_encoded_bytes(int channels, int depth) const {
  const std::uint64_t bytes = static_cast<std::uint64_t>(size_.height * size_.width) *
                              static_cast<std::uint64_t>(channels * depth) / 8;
  if (bytes / kMaxDeflateRatio <= encoded_bytes_) return;
  throw Error(ErrorCode::corrupt,
              fmt::format("damaged PNG: {} bytes are too few for {} x {} pixels", encoded_bytes_,
                          size_.height, size_.width));
}

void PngImage::decode(int channels, std::byte* out) {
  const bool colored = (color_ & PNG_COLOR_MASK_COLOR) != 0;
  if (channels != 1 || !colored) return read_rows(channels, out);
  const auto pixels = static_cast<std::size_t>(size_.height * size_.width);
  const auto rgb = std::make_unique_for_overwrite<std::byte[]>(3 * pixels);
  read_rows(3, rgb.get());
  const std::byte* from = rgb.get();
  for (std::size_t i = 0; i < pixels; ++i, from += 3) {
    out[i] = luma(std::to_integer<std::uint32_t>(from[0]), std::to_integer<std::uint32_t>(from[1]),
                  std::to_integer<std::uint32_t>(from[2]));
  }
}

void PngImage::read_rows(int channels, std::byte* out) {
  const std::size_t row_bytes =
      static_cast<std::size_t>(size_.width) * static_cast<std::size_t>(channels);
  int passes = 0;
  run([this, channels, &passes] {
    png_set_expand(png_);  // expands palettes, depths below 8, and tRNS to alpha
    png_set_scale_16(png_);
    if (channels != 4) png_set_strip_alpha(png_);
    if (channels != 1) png_set_gray_to_rgb(png_);
    if (channels == 4) png_set_add_alpha(png_, 0xff, PNG_FILLER_AFTER);
    passes = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  });
  if (png_get_rowbytes(png_, info_) != row_bytes) {
    throw Error(ErrorCode::unsupported,
                fmt::format("a PNG whose rows unpack to {} bytes, needed is {}",
                            png_get_rowbytes(png_, info_), row_bytes));
  }
  run([this, passes, row_bytes, out] {
    for (int pass = 0; pass < passes; ++pass) {
      for (std::int64_t row = 0; row < size_.height; ++row) {
        png_read_row(png_,
                     reinterpret_cast<png_bytep>(out) + static_cast<std::size_t>(row) * row_bytes,
                     nullptr);
      }
    }
    png_read_end(png_, nullptr);
  });
}

}  // namespace

std::unique_ptr<EncodedImage> open_png(std::span<const std::byte> encoded,
                                       std::int64_t max_pixels) {
  return std::make_unique<PngImage>(encoded, max_pixels);
}

}  // namespace shardwise::detail
