#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class CheckpointManager;
namespace detail {
struct Internals;
struct StoredCheckpoint;
}  // namespace detail

/// Where a box of a tensor is wanted: row-major, native endian.
struct BoxTarget {
  std::size_t tensor;  ///< number in CheckpointReader::tensors()
  Box box;
  std::span<std::byte> out;  ///< of exactly its size
};

/// A chunk of a tensor as a checkpoint has it.
struct StoredChunk {
  Box box;             ///< its elements, global
  Shape extents;       ///< with the padding of a chunk that reaches over its piece
  std::uint64_t hash;  ///< XXH3-64 of the decoded bytes of these extents
  bool operator==(const StoredChunk&) const = default;
};

/// Reads any box of any tensor of one committed checkpoint, however its writer had it cut, without
/// HDF5 or a mesh. Every chunk that is read is compared with its hash before it is decoded. On
/// disk: docs/checkpoint_format.md.
/// Thread-safe: all methods may run together. They block on the disk, so call none from inside a
/// parallel_for body. Every method may throw io, and corrupt naming file, tensor, chunk and global
/// box; the reader stays usable for the rest.
class CheckpointReader final : public BoxReader {
 public:
  /// Reads the manifest and, of 64 shard files at most, their chunk tables, not the data; of more
  /// files each is opened when something is read of it. Throws not_found if `directory` is not
  /// there or holds no manifest (an attempt that was not committed, say), unsupported for a format
  /// newer than this library's, corrupt.
  explicit CheckpointReader(const std::filesystem::path& directory,
                            const ReadOptions& options = {});
  explicit CheckpointReader(const CheckpointManager&) = delete;          // which step? latest()
  explicit CheckpointReader(const std::optional<LatestStep>&) = delete;  // latest->step.directory
  ~CheckpointReader() override;
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const std::filesystem::path& directory() const;
  std::int64_t step() const;  ///< -1: it was saved as no step of a root

  /// As in SaveOptions. objects_json is empty if no objects were saved.
  const std::string& user_json() const;
  const std::string& objects_json() const;
  Metrics metrics() const;
  std::string metadata() const = delete;   // metrics(), user_json(), or tensor(name)
  std::string user_data() const = delete;  // user_json()

  bool has_index() const;  ///< an index.h5 shows all tensors to other HDF5 tools

  std::span<const TensorInfo> tensors() const override;  ///< sorted by name
  bool contains(std::string_view name) const;

  /// Throws no_such_name, suggesting the nearest names.
  const TensorInfo& tensor(std::string_view name) const;

  /// Fills `out` with the elements of `box`, row-major, native endian. Throws no_such_name, or
  /// invalid_argument if box leaves the tensor or out is not exactly its size; out is then
  /// unspecified.
  void read(std::string_view name, const Box& box, std::span<std::byte> out) const;

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;
  void read(std::string_view name, std::span<std::byte> out) const;  ///< all of a tensor

  /// The same for a vector, array or span of elements: all of a tensor, or a box of it. Throws as
  /// above, and invalid_argument if the tensor is not of their dtype.
  ///   reader.read("w", values);
  template <ElementRange R>
  void read(std::string_view name, R&& out) const {
    check_read(name, {}, dtype_of_elements<R>());
    read(name, std::as_writable_bytes(std::span(out)));
  }
  template <ElementRange R>
  void read(std::string_view name, const Box& box, R&& out) const {
    check_read(name, box, dtype_of_elements<R>());
    read(name, box, std::as_writable_bytes(std::span(out)));
  }

  /// The same in a new vector.
  ///   const std::vector<float> w = reader.read<float>("w");
  ///   const std::vector<float> rows = reader.read<float>("w", Box({0, 0}, {2, 4}));
  void read(std::string_view) const = delete;  // read<float>(name)
  template <class T>
  void read(std::string_view, T*) const = delete;  // read(name, std::span(data, count))
  template <TensorElement T>
  std::vector<T> read(std::string_view name) const {
    return read<T>(name, Box::whole(tensor(name).shape));
  }
  template <TensorElement T>
  std::vector<T> read(std::string_view name, const Box& box) const {
    check_read(name, box, dtype_of<T>());
    return filled_vector<T>(as_size(box.num_elements()),
                            [&](std::span<std::byte> out) { read(name, box, out); });
  }

  /// Several boxes; each chunk that any of them needs is read once.
  void read(std::span<const BoxTarget> targets) const;

  /// The chunks of a tensor, in no particular order. Throws no_such_name.
  std::vector<StoredChunk> chunks(std::size_t tensor) const;

  /// One array, as it is stored, under any sharding.
  ShardedArray restore(Devices& devices, std::string_view name, const Sharding& sharding) const;

  /// Several arrays. First compares all names, dtypes and shapes with the checkpoint's, and meshes
  /// with the number of devices, and throws one invalid_argument that lists every mismatch; then
  /// reads each chunk that any device needs once. Throws not_found if a mesh names a device that
  /// is not there, resource_exhausted if a device's memory does not suffice.
  std::vector<ShardedArray> restore(Devices& devices, std::span<const TensorRequest> requests,
                                    const RestoreOptions& options = {}) const;

  /// The same by name, each as it is stored.
  ///   const auto arrays = reader.restore(devices, {{"w", rows}});
  ///   arrays.at("w").shape();                                        // [12, 4]
  std::map<std::string, ShardedArray> restore(Devices& devices,
                                              const std::map<std::string, Sharding>& shardings,
                                              const RestoreOptions& options = {}) const;

  /// Tensors of a traced program (runtime/tensor.h), by name, in place: all handles of one have the
  /// new value. What is on the devices or marked is read as it is cut; the others are read whole
  /// and wait on the host, as new tensors do. Throws as above, before any tensor has changed, and
  /// as Tensor::set_value().
  ///   reader.restore(devices, params);
  template <ProgramTensor T>
  void restore(Devices& devices, const std::map<std::string, T>& tensors) const {
    std::vector<TensorRequest> requests;
    std::vector<T> placed, others;
    std::vector<std::vector<std::byte>> values;
    for (const auto& [name, tensor] : tensors) {
      if (const auto spec = tensor.placement()) {
        requests.push_back({name, *spec});
        placed.push_back(tensor);
      } else {
        values.push_back(whole_tensor(name, {tensor.dtype(), tensor.shape()}));
        others.push_back(tensor);
      }
    }
    std::vector<ShardedArray> arrays = restore(devices, requests);
    for (std::size_t i = 0; i < placed.size(); ++i) placed[i].set_value(std::move(arrays[i]));
    for (std::size_t i = 0; i < others.size(); ++i) others[i].set_value(std::move(values[i]));
  }

  ReadStats stats() const;
  bool pinned() const;  ///< whether retention leaves the checkpoint alone (ReadOptions::pin)

 private:
  friend struct detail::Internals;
  std::vector<ShardedArray> restore_with_missing(Devices& devices,
                                                 std::span<const TensorRequest> requests,
                                                 const RestoreOptions& options) const;
  std::vector<std::byte> whole_tensor(const std::string& name, const ArraySpec& needed) const;
  void check_read(std::string_view name, const std::optional<Box>& box, DType needed) const;
  CheckpointReader(const std::filesystem::path& directory, const ReadOptions& options,
                   bool as_needed);
  explicit CheckpointReader(detail::StoredCheckpoint checkpoint);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
