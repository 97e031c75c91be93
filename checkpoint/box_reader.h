#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// One tensor of a checkpoint, or of another BoxReader.
struct TensorInfo {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;

  /// How the writer had it cut; absent: not known.
  std::optional<Sharding> sharding = {};

  // Set for a checkpoint's tensors. With more than 64 shard files, which are opened as they are
  // read, pieces, chunks and stored bytes are 0: not known.
  std::int64_t pieces = 0;
  std::int64_t chunks = 0;
  std::size_t logical_bytes = 0;
  std::size_t stored_bytes = 0;

  /// Its own format's name of a dtype that this library lacks: such a tensor is listed, but nothing
  /// reads its elements, and `dtype` says nothing. Else empty.
  std::string foreign_dtype = {};
};

/// The dtype as a reader's format has it.
std::string_view dtype_name(const TensorInfo& tensor);

/// Throws unsupported, naming the tensor, if it has a foreign dtype.
void check_readable(const TensorInfo& tensor, std::string_view operation);

/// How far a save, restore, verify or reshard has come.
struct Progress {
  std::size_t done_bytes = 0;  ///< logical bytes
  std::size_t total_bytes = 0;
};

/// Called on any thread, one call at a time, now and then. What it throws ends the work.
using ProgressFunction = std::function<void(const Progress&)>;

/// Tensors that can be read box by box, wherever their elements are: in a checkpoint, in arrays, in
/// host memory, in a file of another format, or computed. Saves and reshards read from one.
/// Thread-safe: several threads call all methods at once.
///   class Squares : public BoxReader {  // 1,000 numbers that nobody has in memory
///    public:
///     std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }
///     void read(std::size_t, const Box& box, std::span<std::byte> out) const override {
///       for (std::int64_t i = box.begin(0); i < box.end(0); ++i) {
///         const std::int64_t value = i * i;
///         std::memcpy(out.data() + (i - box.begin(0)) * 8, &value, 8);
///       }
///     }
///
///    private:
///     TensorInfo info_{.name = "squares", .dtype = DType::i64, .shape = {1000}};
///   };
///   manager.save(1, {{"squares", std::make_shared<Squares>()}});
class BoxReader {
 public:
  virtual ~BoxReader() = default;

  /// Name, dtype and shape of each, and what else is known. Valid as long as the reader.
  virtual std::span<const TensorInfo> tensors() const = 0;

  /// Fills `out` with the elements of the box, row-major, native endian. `tensor` is a number in
  /// tensors(); the box is inside that tensor, and out has exactly its size. What it throws ends
  /// the save or reshard. Must not save with the manager that calls it, nor wait for or close it.
  virtual void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const = 0;

  /// The address of the box's elements if they lie row-major side by side in memory that stays
  /// valid and unchanged while the reader is in use, to be compressed or written from there without
  /// a copy; else null. Called and throws as read(), for boxes that are not empty.
  virtual const std::byte* contiguous(std::size_t /*tensor*/, const Box& /*box*/) const {
    return nullptr;
  }

  /// True if somebody may write to the bytes of contiguous() while they are in use. A save then
  /// hashes them again after it has written them, and fails if they have changed.
  virtual bool may_change() const { return false; }

 protected:
  BoxReader() = default;
  BoxReader(const BoxReader&) = default;
  BoxReader& operator=(const BoxReader&) = default;
};

/// Numbers of the tensors whose names one of the patterns is or matches ("*" stands for any
/// characters, "?" for one), ascending; of all if there are no patterns. Calls `missed` with a
/// pattern that matches none, which may throw.
std::vector<std::size_t> find_tensors(const BoxReader& reader,
                                      std::span<const std::string> patterns,
                                      const std::function<void(const std::string&)>& missed);

}  // namespace shardwise
