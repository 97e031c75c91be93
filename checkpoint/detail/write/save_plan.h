#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/detail/format/piece_rule.h"
#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/parallel.h"

namespace shardwise::detail {

/// An exception of a caller's own function. It passes through a save unchanged, so it must not look
/// like one of our errors on the way.
struct CallerError {
  std::exception_ptr cause;
};

/// Calls a function of the caller's; throws its exception as a CallerError.
template <class Call>
void call_caller(Call&& call) {
  try {
    call();
  } catch (...) {
    throw CallerError{std::current_exception()};
  }
}

/// Writers [first, end): those that this process stands for.
struct WriterRange {
  std::int64_t first = 0, end = 1;
};

/// The writers of a rank, if each rank has as many (SaveOptions::writers).
inline WriterRange writers_of(int rank, std::int64_t writers) {
  return {rank * writers, (rank + 1) * writers};
}

/// The part of a save that a process is going to write, decided before the first byte.
struct SavePlan {
  std::vector<TensorSource> sources;  ///< sorted by name, each with a sharding or boxes
  std::vector<TensorEntry> tensors;   ///< for each source; with the pieces of this process
  WriterMap writers;                  ///< of all processes
  std::vector<FileEntry> files;       ///< of this process's writers that have something to write
  std::vector<Effort> efforts;        ///< for each file, for each source
  bool adaptive = false;              ///< compression yields to a disk that waits for it
  std::int64_t chunks = 0;            ///< of these files
  std::size_t logical_bytes = 0;      ///< of these files

  /// Their bytes on the disk if all is written and none of it shrinks better than twice as well as
  /// its samples.
  std::size_t least_bytes = 0;

  Effort effort(std::int64_t file, std::size_t tensor) const {
    return efforts[static_cast<std::size_t>(file) * tensors.size() + tensor];
  }
};

/// The reader's own words about a source's tensor. Requires that check_sources passed.
inline const TensorInfo& info_of(const TensorSource& source) {
  return source.reader->tensors()[source.tensor];
}

/// Throws invalid_argument if a name is empty, too long, repeated or not UTF-8 or holds a NUL, a
/// source has no reader or one without that tensor, or a sharding does not fit its shape
/// or does not allow it (a strict policy), or a box leaves it or is empty.
void check_sources(std::span<const TensorSource> sources);

/// How many devices a job has: `devices`, or, if that is 0, as many as the sources' meshes name.
/// Throws invalid_argument if a mesh has a device beyond them.
std::int64_t devices_of(std::span<const TensorSource> sources, std::int64_t devices);

/// Device d belongs to writer d * count / devices_of(sources, devices), which see.
WriterMap writers_for(std::span<const TensorSource> sources, std::int64_t count,
                      std::int64_t devices = 0);

/// Cuts the tensors into pieces and chunks, and chooses the codec of each tensor in each file by
/// samples of its elements. Considers only pieces that the writers in `mine` store. Requires that
/// check_sources passed. Throws CallerError.
SavePlan plan_save(std::vector<TensorSource> sources, Codec codec, const Executor& executor,
                   const WriterMap& writers = WriterMap(), WriterRange mine = {});

}  // namespace shardwise::detail
