#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/save.h"

namespace shardwise::detail {

/// How hard zstd tries. After byte shuffle, floating-point data has skewed bytes but no repeats:
/// Huffman coding alone beats level 1 in ratio and speed (research: 1.195 at 2.2 times the speed).
/// Repetitive data (integers, masks) wants matches.
enum class Effort {
  huffman_only,
  matches,
  zstd_huffman,  ///< huffman_only without our own PlaneCoder: for tests and benches
};

/// The treatment of a tensor: decided once, by a sample.
struct CodecChoice {
  StoredCodec codec = StoredCodec::none;
  Effort effort = Effort::huffman_only;
  double stored_part = 1;  ///< of the sample's bytes
};

/// The encoder uses parameters of zstd whose meaning is promised for one version only. Throws
/// unsupported, naming both, unless the process's zstd (its ZSTD_versionNumber()) is the one that
/// this library was compiled with.
void check_zstd_version(unsigned found);

/// Compression state of one worker. Thread-compatible.
class Encoder {
 public:
  Encoder();  ///< calls check_zstd_version()
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  /// Shuffles and compresses a chunk into `out`, which has room for at least chunk.size() bytes.
  /// Returns the compressed size, or 0 if it would not shrink (out's content is then unspecified
  /// and the chunk is stored as it is, with filter mask 3).
  std::size_t encode(std::span<const std::byte> chunk, std::size_t element_bytes, Effort effort,
                     std::span<std::byte> out);

  /// Memory that is kept for the next chunk, zstd's own left out.
  std::size_t held_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Chooses by samples, and keeps its memory for the next one. Thread-compatible.
class CodecChooser {
 public:
  /// Tries both efforts on the sample (some whole elements, up to a few 100 KiB): Huffman coding
  /// alone unless matches are 1 percent smaller; none if neither saves 3 percent and `wanted` is
  /// automatic.
  CodecChoice choose(Codec wanted, std::span<const std::byte> sample, std::size_t element_bytes);

  std::size_t held_bytes() const { return encoder_.held_bytes() + out_.capacity(); }

 private:
  Encoder encoder_;
  std::vector<std::byte> out_;
};

/// Decompression state of one worker. Thread-compatible.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  /// A chunk's bytes, shuffled, from one zstd frame of them; valid until the next call. Throws
  /// corrupt if the frame is damaged or its content is not exactly chunk_bytes; the frame's own
  /// claim is checked before anything is decoded.
  std::span<const std::byte> decompress(std::span<const std::byte> stored, std::size_t chunk_bytes);

  /// Memory that is kept for the next chunk, zstd's own left out.
  std::size_t held_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Byte shuffle: byte b of element i goes to b * count + i. Whole elements only; the SIMD target is
/// chosen at run time (Highway).
void shuffle(std::span<const std::byte> in, std::size_t element_bytes, std::span<std::byte> out);

/// The same with each plane at a place of its own.
void shuffle(std::span<const std::byte> in, std::size_t element_bytes,
             std::span<std::byte* const> planes);

/// The inverse, for the elements from number `first` on that `out` has room for.
void unshuffle(std::span<const std::byte> in, std::size_t element_bytes, std::size_t first,
               std::span<std::byte> out);

}  // namespace shardwise::detail
