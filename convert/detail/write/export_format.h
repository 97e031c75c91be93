#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/detail/string_map.h"

namespace shardwise::detail {

/// The bytes of a file around the elements of its tensors, which follow one another. Functions are
/// called in the order of the file. Thread-compatible.
class FileFrame {
 public:
  virtual ~FileFrame() = default;

  /// Size of the whole file.
  virtual std::uint64_t bytes() const = 0;

  virtual std::string begin() { return {}; }
  virtual std::string before(std::size_t /*tensor*/) { return {}; }  ///< its number in the file

  /// `crc` is that of the tensor's elements, if the format needs one.
  virtual std::string after(std::size_t /*tensor*/, std::uint32_t /*crc*/) { return {}; }

  virtual std::string end() { return {}; }
};

/// How to write a format. Immutable.
class ExportFormat {
 public:
  virtual ~ExportFormat() = default;

  virtual std::string_view name() const = 0;    ///< as ModelReader::format()
  virtual std::string_view suffix() const = 0;  ///< ".npz"
  virtual bool needs_crc() const { return false; }
  virtual bool has_dtype(DType dtype) const = 0;

  /// The reason why the format cannot hold tensors of these names; empty if it can.
  virtual std::string problem_of(std::span<const TensorInfo> tensors) const = 0;

  /// Puts tensors, which are sorted by name, into the order of a file.
  virtual void order(std::span<const TensorInfo> /*all*/,
                     std::vector<std::size_t>& /*tensors*/) const {}

  /// `tensors` are the file's, in its order.
  virtual std::unique_ptr<FileFrame> frame(std::span<const TensorInfo> tensors,
                                           const StringMap& metadata) const = 0;
};

/// All formats; the first one is the default for folders.
std::span<const ExportFormat* const> export_formats();

/// True for the name of a file that an export writes next to others: a model or its index.
bool is_exported_name(std::string_view name);

const ExportFormat& safetensors_export();
const ExportFormat& npz_export();
const ExportFormat& hdf5_export();

}  // namespace shardwise::detail
