#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class FileSystem;

/// How chunks are stored. Any reader reads any of them.
enum class Codec {
  /// As `zstd` for tensors whose sample shrinks; in a save of more than 64 MiB chunks are stored as
  /// they are while the disk waits for data: hardly slower than `none`, whatever the disk. Which
  /// chunks those are depends on time; the others give the same bytes on every run.
  automatic,

  zstd,  ///< byte shuffle, then zstd; chunks that do not shrink are stored as they are
  none,
};

/// "auto", "zstd", "none"; parse_codec throws invalid_argument listing them.
std::string_view name(Codec codec);
Codec parse_codec(std::string_view text);

/// A tensor to be saved: which one of a reader's, under which name, and how it is cut on disk. The
/// reader must work until the save has ended; a host_source's memory until save_async has returned.
/// Copies share the reader. Thread-compatible.
struct TensorSource {
  std::string name;
  std::shared_ptr<const BoxReader> reader;
  std::size_t tensor = 0;  ///< its number in reader->tensors(), which says dtype and shape

  /// The pieces on disk are its distinct boxes; a tensor below 64 KiB, or without it, is one piece.
  std::optional<Sharding> sharding = {};

  /// If no sharding says what this process has: the pieces that it writes, as they are; those of
  /// all processes are each element once. SaveOptions::writers is 1 then.
  std::optional<std::vector<Box>> boxes = {};
};

/// Shares the array: no copy, and no one can write under it.
TensorSource tensor_source(std::string name, ShardedArray array);

/// A tensor of a traced program (runtime/tensor.h), and several by name. Like a host_source as long
/// as a tensor is on the host. Throws what its array() throws.
///   manager.save(step, tensor_sources(params));
template <class T>
concept ProgramTensor = requires(const T& tensor) {
  { tensor.array() } -> std::same_as<const ShardedArray&>;
  tensor.on_host();
  tensor.placement();
};
template <ProgramTensor T>
TensorSource tensor_source(std::string name, const T& tensor) {
  const auto host = tensor.on_host();
  if (!host) return tensor_source(std::move(name), ShardedArray(tensor.array()));
  const ArraySpec spec{tensor.dtype(), tensor.shape()};
  TensorSource source = host_source(std::move(name), spec, *host);
  source.sharding.reset();
  return source;
}
template <ProgramTensor T>
std::vector<TensorSource> tensor_sources(const std::map<std::string, T>& tensors) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) sources.push_back(tensor_source(name, tensor));
  return sources;
}

template <ElementRange R>
void tensor_source(std::string, R&&) = delete;  // host_source(name, shape, values)

/// A tensor in memory of the caller's, row-major, native endian. The caller keeps it there and
/// unchanged until save() returns, which writes from it, or until save_async() returns, which has
/// copied it by then. The manager holds the copies of one save in addition to memory_budget_bytes
/// (in whole pages from 64 KiB on), and keeps their memory for its next save: from the second one
/// on the caller waits as long as about one memcpy. Throws invalid_argument if `bytes` is not
/// exactly the tensor's size.
TensorSource host_source(std::string name, ArraySpec spec, std::span<const std::byte> bytes);

/// The same of a vector, array or span of elements. Throws invalid_argument if they are not of the
/// spec's dtype.
template <ElementRange R>
TensorSource host_source(std::string name, ArraySpec spec, R&& values) {
  check_dtype("save: tensor \"" + name + '"', dtype_of_elements<R>(), spec.dtype);
  return host_source(std::move(name), std::move(spec), std::as_bytes(std::span(values)));
}

/// A tensor of this shape that is not cut: it has no sharding. Its dtype is that of the elements.
///   host_source("w", {12, 4}, std::span<const float>(values));
///   host_source("b", values);
///   host_source("step", step);
template <ElementRange R>
TensorSource host_source(std::string name, const Shape& shape, R&& values) {
  TensorSource source = host_source(std::move(name), ArraySpec{dtype_of_elements<R>(), shape},
                                    std::as_bytes(std::span(values)));
  source.sharding.reset();
  return source;
}

template <ElementRange R>  // of one dim
TensorSource host_source(std::string name, R&& values) {
  return host_source(std::move(name), Shape{std::ssize(std::span(values))}, values);
}

template <TensorElement T>  // a scalar
TensorSource host_source(std::string name, T& value) {
  return host_source(std::move(name), Shape{}, std::span(&value, 1));
}

/// A box of a tensor in memory of the caller's, row-major, native endian.
struct HostShard {
  HostShard(const Box& its_box, std::span<const std::byte> its_bytes)
      : box(its_box), bytes(its_bytes) {}

  /// Elements, whose dtype is compared with the tensor's.
  template <ElementRange R>
  HostShard(const Box& its_box, R&& values)
      : box(its_box), bytes(std::as_bytes(std::span(values))), dtype(dtype_of_elements<R>()) {}

  Box box;
  std::span<const std::byte> bytes;
  std::optional<DType> dtype = {};
};

/// A tensor with some boxes in this process's memory, such as those of its devices. The save writes
/// the boxes that the sharding gives to this process. The memory stays as host_source says. Throws
/// invalid_argument if boxes leave the tensor or overlap, or bytes or dtype do not fit; the save
/// throws it if it needs elements that no shard has.
TensorSource shards_source(std::string name, ArraySpec spec, const std::vector<HostShard>& shards);

/// A tensor whose boxes a function fills, as BoxReader::read() does. Throws invalid_argument if
/// there is no function.
TensorSource callback_tensor(std::string name, ArraySpec spec,
                             std::function<void(const Box&, std::span<std::byte>)> read);

/// The action if the step is already there.
enum class Existing {
  fail,     ///< throws already_exists before anything is written
  replace,  ///< writes a new generation; the old one stays valid until the new one is committed
  /// Writes nothing if a valid checkpoint is there (SaveStats::skipped). already_exists if
  /// something else is there, or if it comes during the save.
  skip,
};

/// "fail", "replace", "skip"; parse_existing throws invalid_argument listing them.
std::string_view name(Existing existing);
Existing parse_existing(std::string_view text);

/// How the tensors of one process are encoded and written.
struct EncodeOptions {
  Codec codec = Codec::zstd;  ///< shard files are the same bytes for any number of threads

  std::size_t memory_budget_bytes = std::size_t{256} << 20;  ///< as in SaveOptions
  int threads = 0;  ///< that gather, compress and hash; 0: as many as the machine has cores
  ProgressFunction progress = nullptr;

  /// A committed checkpoint on the same file system, of the step before, say: chunks that are the
  /// same there are not written again (WriteOptions::increments). Empty: all is written.
  std::filesystem::path unchanged_since = {};

  /// Reads and writes all files; null: posix_file_system().
  std::shared_ptr<FileSystem> file_system = nullptr;
};

/// Numbers that belong to a step, by name, such as {{"loss", 0.25}}.
using Metrics = std::map<std::string, double>;

/// The content of a checkpoint other than its tensors: the first three as in SaveOptions.
struct PublishOptions {
  std::string user_json = "{}";
  std::string objects_json = {};
  Metrics metrics = {};
  std::string process = "writer";  ///< what errors call one: "rank", if each rank of a job is one
};

namespace detail {
struct UserData {
  UserData() = default;
  template <class T>
  UserData(const T&) = delete;  // user_json
};
}  // namespace detail

/// The options of a manager's save.
struct SaveOptions {
  Codec codec = Codec::zstd;     ///< shard files are the same bytes for any number of threads
  std::string user_json = "{}";  ///< the caller's own; any JSON value

  /// Saved with the tensors, such as a job's tree of names and Python's objects; any JSON value.
  /// Empty: nothing.
  std::string objects_json = {};

  /// Kept in the objects, as member "metrics"; rank 0's count. KeepOptions::best ranks by one.
  Metrics metrics = {};
  Existing existing = Existing::fail;

  /// Most host bytes held at once beyond the tensors, copies of host sources and what describes
  /// them: 100 bytes for each chunk of 1 MiB, and 2.9 KB for each piece, most of them HDF5's own
  /// bytes of the file. The buffers are kept for the manager's next save. At least 8 MiB.
  std::size_t memory_budget_bytes = std::size_t{256} << 20;

  /// Shard files of each process that writes, at least 1: of n in all, device d of D belongs to
  /// writer d * n / D. What several writers hold is stored once, split between them by bytes. A
  /// writer with nothing to write makes no file.
  std::int64_t writers = 1;

  /// Must not save with the same manager, close it or wait for this save.
  ProgressFunction progress = nullptr;

  /// Cannot be given: the compiler then shows the right name, user_json.
  [[no_unique_address]] detail::UserData user_data = {};
};

/// The result of a save.
struct SaveStats {
  std::filesystem::path directory;

  /// Nothing was written: Existing::skip found the step there, in `directory`; or a save was under
  /// way (WriteOptions::when_busy), and `directory` is empty. All but the seconds is 0 then.
  bool skipped = false;

  /// Why it failed, with the rank: nothing was saved (OnSaveError::warn). `directory` is empty.
  std::string error;

  /// Saves in a row that failed before this one, and this one if it did, with OnSaveError::warn.
  std::int64_t failed_saves = 0;

  std::size_t logical_bytes = 0;
  std::size_t stored_bytes = 0;  ///< of chunks that were written, padding and index left out

  /// Logical bytes of chunks that had not changed and were not written (WriteOptions::increments).
  std::size_t unchanged_bytes = 0;
  std::size_t file_bytes = 0;
  std::int64_t chunks = 0;
  double blocked_seconds = 0;  ///< how long the caller of save or save_async waited
  double total_seconds = 0;    ///< until it was committed; before older checkpoints are removed

  /// Parts of total_seconds: until the plan was made; until the shard files were on the disk; the
  /// rest. A manager's save gives this process's, an attempt those of the slowest writer.
  double plan_seconds = 0, write_seconds = 0, publish_seconds = 0;

  /// Buffers and copies of host sources of this process; of an attempt, the most that a writer
  /// held.
  std::size_t memory_bytes = 0;
  std::size_t parity_bytes = 0;  ///< of this process: WriteOptions::parity_blocks

  /// Why older checkpoints or its own lease could not be removed after the commit, or its parity
  /// not be written: up to five reasons, and how many more. The next save tries again to remove.
  std::string cleanup_error;
};

}  // namespace shardwise
