#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"

namespace shardwise {

/// A tensor for a checkpoint that is made by hand.
struct HandMadeTensor {
  std::string name = {};
  DType dtype = DType::f32;
  Shape shape = {};
  std::vector<Box> pieces = {};      ///< must cover the shape
  std::vector<std::byte> data = {};  ///< the whole tensor, row-major
  Shape chunk = {};  ///< cut off to each piece's extents; empty: pieces are contiguous
  detail::StoredCodec codec = detail::StoredCodec::none;
};

/// A checkpoint put together byte by byte from docs/checkpoint_format.md, without the library's
/// writer and without HDF5: what stands around the data is filler with the right hash, so that
/// readers can be tested apart from the writer, and with files that no writer would make.
///
/// Change what you like between the constructor and write(); hashes, addresses and sizes are as
/// they were laid out until seal() states those of the current bytes. Thread-compatible.
class HandMadeCheckpoint {
 public:
  struct ShardFile {
    std::vector<std::byte> bytes;
    std::vector<detail::ChunkRecord> records;
    std::vector<std::uint64_t> decoded_hashes;  ///< of the chunks, in the order of the records
  };

  /// Lays the tensors' chunks out over `files` files, piece by piece in turn.
  explicit HandMadeCheckpoint(std::vector<HandMadeTensor> tensors, std::int64_t files = 1,
                              std::int64_t step = 100);

  /// Copies `records` and `decoded_hashes` into the files and states the tables' and structures'
  /// hashes in the files' descriptions; the pieces of each tensor become a list in the manifest.
  void seal();

  /// Seals nothing. Makes <root>/<name of the step> and returns it.
  std::filesystem::path write(const std::filesystem::path& root) const;

  detail::Manifest manifest;
  std::vector<ShardFile> files;
  std::vector<std::byte> index;

 private:
  std::vector<std::uint64_t> describe(std::size_t file) const;
  void describe_itself(std::size_t file);
  void add_chunk(const HandMadeTensor& tensor, const detail::PieceEntry& piece, std::int64_t chunk);
};

/// The manifest's text with one place replaced and the checksum made right again. Requires that
/// `from` is there.
std::string manifest_with(std::string text, std::string_view from, std::string_view to);

/// The text up to its checksum, and the right checksum after it.
std::string with_checksum(std::string text);

/// The bits of first, first + 1, ..: they compress well.
std::vector<std::byte> counting_values(DType dtype, const Shape& shape, std::uint64_t first = 1);

/// Values that do not compress and differ in every byte, as far as the type goes.
std::vector<std::byte> scattered_values(DType dtype, const Shape& shape, std::uint64_t first = 1);

/// The file's bytes.
std::vector<std::byte> file_bytes(const std::filesystem::path& path);

/// The bytes of each file of a folder, by its name.
std::map<std::string, std::vector<std::byte>> bytes_of_files(const std::filesystem::path& folder);

}  // namespace shardwise
