#include "shardwise/checkpoint/detail/codec/codec.h"

#include <fmt/core.h>

// For ZSTD_c_literalCompressionMode, which makes Huffman-only frames, and the stable buffers, which
// save two copies. The frames that come out are ordinary ones.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/codec/zstd/frame_writer.h"
#include "shardwise/checkpoint/detail/codec/zstd/plane_coder.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Below this gain a tensor is stored as it is: reading it then costs a copy less.
constexpr double kLeastGain = 0.03;

// Matches must gain so much over Huffman coding alone: they take twice its time and more.
constexpr double kMatchesGain = 0.01;

// Far below zstd's fastest: it gives up looking for matches at once, and only Huffman-codes the
// bytes, which the literal compression mode forces (negative levels leave it out).
constexpr int kNoMatches = -1000;

// A block of its own costs a plane 3 bytes and, if it is coded, its table; shorter planes share.
constexpr std::size_t kLeastPlane = 1024;

// Shorter planes are zstd's: the tables of a PlaneCoder would take longer than they save.
constexpr std::size_t kLeastCodedPlane = std::size_t{16} << 10;

// This number of bytes of a plane says whether Huffman coding can gain anything there.
constexpr std::size_t kProbeBytes = 4096;
constexpr std::size_t kProbeRun = 256;

// The squares of the counts: bytes of equal frequency give the first sum, within a percent or so;
// 1.2 times it stands for a saving of about 2 percent.
constexpr std::size_t kEvenSquares = kProbeBytes * kProbeBytes / 256 + kProbeBytes;
constexpr std::size_t kSkewedSquares = kEvenSquares + kEvenSquares / 5;

// Memory that runs out says nothing about the bytes.
void check_memory(std::size_t result) {
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
}

std::size_t check(std::size_t result, const char* what) {
  check_memory(result);
  if (ZSTD_isError(result)) {
    throw Error(ErrorCode::unsupported,
                fmt::format("compress a chunk: {}: {}", what, ZSTD_getErrorName(result)));
  }
  return result;
}

std::string version_text(unsigned number) {
  return fmt::format("{}.{}.{}", number / 10'000, number / 100 % 100, number % 100);
}

/// True if some values of byte b of the elements are clearly more frequent than others, by a
/// sample.
bool is_skewed(std::span<const std::byte> chunk, std::size_t element_bytes, std::size_t b) {
  const std::size_t plane = chunk.size() / element_bytes;
  if (plane < 2 * kProbeBytes) return true;
  std::array<std::uint32_t, 256> counts{};
  const std::size_t stride = plane / (kProbeBytes / kProbeRun);
  for (std::size_t run = 0; run < kProbeBytes / kProbeRun; ++run) {
    const std::byte* const from = chunk.data() + run * stride * element_bytes + b;
    for (std::size_t i = 0; i < kProbeRun; ++i) {
      ++counts[std::to_integer<std::size_t>(from[i * element_bytes])];
    }
  }
  std::size_t squares = 0;
  for (const std::size_t count : counts) squares += count * count;
  return squares > kSkewedSquares;
}

}  // namespace

void check_zstd_version(unsigned found) {
  if (found == ZSTD_VERSION_NUMBER) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("compress chunks: found zstd {}, needed {}, which this library was "
                          "compiled with",
                          version_text(found), version_text(ZSTD_VERSION_NUMBER)));
}

struct Encoder::Impl {
  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  PlaneCoder coder;
  std::vector<std::byte> shuffled;
  std::vector<std::byte*> rooms, planes;

  ~Impl() { ZSTD_freeCCtx(zstd); }

  void reset(bool huffman) {
    check(ZSTD_CCtx_reset(zstd, ZSTD_reset_session_and_parameters), "reset");
    check(ZSTD_CCtx_setParameter(zstd, ZSTD_c_compressionLevel, huffman ? kNoMatches : 1), "level");
    check(ZSTD_CCtx_setParameter(zstd, ZSTD_c_literalCompressionMode,
                                 huffman ? ZSTD_lcm_huffman : ZSTD_lcm_auto),
          "literal compression mode");
  }

  // Planes without skew, mantissas mostly, are stored as they are without a look at each byte,
  // which would take a fifth of all the time. Those before the first one with skew are shuffled to
  // where they stay.
  std::size_t code_planes(std::span<const std::byte> chunk, std::size_t element_bytes,
                          std::span<std::byte> out) {
    std::size_t raw = 0;
    while (raw < element_bytes && !is_skewed(chunk, element_bytes, raw)) ++raw;
    if (raw == element_bytes) return 0;

    FrameWriter frame(out);
    frame.begin(chunk.size());
    const std::size_t plane_bytes = chunk.size() / element_bytes;
    rooms.clear();  // of the raw planes, block by block
    for (std::size_t b = 0; b < raw; ++b) {
      for (std::size_t at = 0; at < plane_bytes; at += kZstdBlockBytes) {
        rooms.push_back(frame.add_raw_room(std::min(kZstdBlockBytes, plane_bytes - at), false));
      }
    }
    if (frame.size() == 0) return 0;
    shuffled.resize(chunk.size());
    planes.resize(element_bytes);
    const std::size_t blocks_of_plane = (plane_bytes + kZstdBlockBytes - 1) / kZstdBlockBytes;
    for (std::size_t i = 0; i < blocks_of_plane; ++i) {
      const std::size_t at = i * kZstdBlockBytes,
                        count = std::min(kZstdBlockBytes, plane_bytes - at);
      for (std::size_t b = 0; b < element_bytes; ++b) {
        planes[b] = b < raw ? rooms[b * blocks_of_plane + i] : &shuffled[b * plane_bytes + at];
      }
      shuffle(chunk.subspan(at * element_bytes, count * element_bytes), element_bytes, planes);
    }
    for (std::size_t b = raw; b < element_bytes; ++b) {
      const auto plane = std::span<const std::byte>(shuffled).subspan(b * plane_bytes, plane_bytes);
      const bool last = b + 1 == element_bytes;
      if (b == raw || is_skewed(chunk, element_bytes, b)) {
        coder.add(plane, last, frame);
      } else {
        frame.add_raw(plane, last);
      }
    }
    return frame.size();
  }
};

Encoder::Encoder() : impl_(std::make_unique<Impl>()) {
  check_zstd_version(ZSTD_versionNumber());
  if (impl_->zstd == nullptr) throw std::bad_alloc();
}

Encoder::~Encoder() = default;

std::size_t Encoder::held_bytes() const {
  return impl_->shuffled.capacity() + impl_->coder.held_bytes();
}

std::size_t Encoder::encode(std::span<const std::byte> chunk, std::size_t element_bytes,
                            Effort effort, std::span<std::byte> out) {
  if (chunk.empty()) return 0;
  // Room for one byte less than the chunk: what does not fit there has not shrunk.
  out = out.first(std::min(out.size(), chunk.size() - 1));
  const std::size_t plane = chunk.size() / element_bytes;
  if (effort == Effort::huffman_only && plane >= kLeastCodedPlane) {
    return impl_->code_planes(chunk, element_bytes, out);
  }

  impl_->shuffled.resize(chunk.size());
  shuffle(chunk, element_bytes, impl_->shuffled);
  ZSTD_CCtx* zstd = impl_->zstd;
  impl_->reset(effort != Effort::matches);
  check(ZSTD_CCtx_setParameter(zstd, ZSTD_c_stableInBuffer, 1), "stable input");
  check(ZSTD_CCtx_setParameter(zstd, ZSTD_c_stableOutBuffer, 1), "stable output");
  check(ZSTD_CCtx_setPledgedSrcSize(zstd, chunk.size()), "content size");

  // Each byte plane begins a new block. Blocks of 128 KiB that straddle planes would mix the skewed
  // bytes of the exponent with random ones: the same ratio is lost that the shuffle has won, and
  // what could be stored as it is gets Huffman-coded (measured on f32: 1.187 against 1.198, and
  // decoding at 2.3 against 3.1 GB/s).
  ZSTD_inBuffer in{impl_->shuffled.data(), 0, 0};
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  for (std::size_t b = 0; b < element_bytes; ++b) {
    const bool last = b + 1 == element_bytes;
    in.size = last ? chunk.size() : (b + 1) * plane;
    if (!last && plane < kLeastPlane) continue;
    const std::size_t left = ZSTD_compressStream2(zstd, &to, &in, last ? ZSTD_e_end : ZSTD_e_flush);
    if (ZSTD_isError(left) && ZSTD_getErrorCode(left) != ZSTD_error_dstSize_tooSmall) {
      check(left, "zstd");
    }
    if (left != 0) return 0;
  }
  return to.pos;
}

CodecChoice CodecChooser::choose(Codec wanted, std::span<const std::byte> sample,
                                 std::size_t element_bytes) {
  if (wanted == Codec::none) return {};
  out_.resize(sample.size());
  const auto size_with = [&](Effort effort) {
    const std::size_t size = encoder_.encode(sample, element_bytes, effort, out_);
    return size == 0 ? sample.size() : size;
  };
  const std::size_t huffman = size_with(Effort::huffman_only);
  const std::size_t matches = size_with(Effort::matches);

  const auto smaller = [](std::size_t a, std::size_t b, double gain) {
    return static_cast<double>(a) < (1 - gain) * static_cast<double>(b);
  };
  CodecChoice choice{StoredCodec::zstd, smaller(matches, huffman, kMatchesGain)
                                            ? Effort::matches
                                            : Effort::huffman_only};
  if (wanted == Codec::automatic &&
      !smaller(std::min(huffman, matches), sample.size(), kLeastGain)) {
    choice.codec = StoredCodec::none;
  }
  if (choice.codec == StoredCodec::zstd && !sample.empty()) {
    choice.stored_part =
        static_cast<double>(std::min(huffman, matches)) / static_cast<double>(sample.size());
  }
  return choice;
}

struct Decoder::Impl {
  ZSTD_DCtx* zstd = ZSTD_createDCtx();
  std::vector<std::byte> shuffled;

  ~Impl() { ZSTD_freeDCtx(zstd); }
};

Decoder::Decoder() : impl_(std::make_unique<Impl>()) {
  if (impl_->zstd == nullptr) throw std::bad_alloc();
}

Decoder::~Decoder() = default;

std::size_t Decoder::held_bytes() const { return impl_->shuffled.capacity(); }

std::span<const std::byte> Decoder::decompress(std::span<const std::byte> stored,
                                               std::size_t chunk_bytes) {
  const unsigned long long content = ZSTD_getFrameContentSize(stored.data(), stored.size());
  if (content == ZSTD_CONTENTSIZE_ERROR) {
    throw Error(ErrorCode::corrupt, "its bytes are not a zstd frame");
  }
  if (content == ZSTD_CONTENTSIZE_UNKNOWN) {
    throw Error(ErrorCode::corrupt, "its zstd frame does not state its content size");
  }
  if (content != chunk_bytes) {
    throw Error(ErrorCode::corrupt, fmt::format("its zstd frame holds {} bytes, the chunk has {}",
                                                content, chunk_bytes));
  }
  const std::size_t frame = ZSTD_findFrameCompressedSize(stored.data(), stored.size());
  if (ZSTD_isError(frame)) {
    throw Error(ErrorCode::corrupt,
                fmt::format("its zstd frame is damaged: {}", ZSTD_getErrorName(frame)));
  }
  if (frame != stored.size()) {
    throw Error(ErrorCode::corrupt, fmt::format("its zstd frame ends after {} of {} stored bytes",
                                                frame, stored.size()));
  }
  impl_->shuffled.resize(chunk_bytes);
  const std::size_t size = ZSTD_decompressDCtx(impl_->zstd, impl_->shuffled.data(), chunk_bytes,
                                               stored.data(), stored.size());
  check_memory(size);
  if (ZSTD_isError(size) || size != chunk_bytes) {
    throw Error(ErrorCode::corrupt,
                fmt::format("its zstd frame is damaged: {}",
                            ZSTD_isError(size) ? ZSTD_getErrorName(size) : "it ends early"));
  }
  return impl_->shuffled;
}

}  // namespace shardwise::detail
