#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/codec.h"
#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/checkpoint/detail/write/chunk_layout.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/parallel.h"

namespace shardwise::detail {

/// Smaller pieces are stored unfiltered: their compression gains little. Smaller tensors are one
/// piece, whatever their sharding.
inline constexpr std::size_t kContiguousBelowBytes = std::size_t{64} << 10;

/// What a caller's own function threw. It passes through a save unchanged, so it must not look
/// like one of our errors on the way.
struct CallerError {
  std::exception_ptr cause;
};

/// Calls a function of the caller's; throws CallerError with what it throws.
template <class Call>
void call_caller(Call&& call) {
  try {
    call();
  } catch (...) {
    throw CallerError{std::current_exception()};
  }
}

/// What a save is going to write, decided before the first byte.
struct SavePlan {
  std::vector<TensorSource> sources;  ///< sorted by name, each with a sharding
  std::vector<TensorEntry> tensors;   ///< for each source
  std::vector<Effort> efforts;        ///< for each source
  bool adaptive = false;              ///< compression yields to a disk that waits for it
  std::int64_t files = 0;             ///< one for each writer that has something to write
  std::int64_t chunks = 0;            ///< of all files
  std::size_t logical_bytes = 0;
};

/// The reader's own words about a source's tensor. Requires that check_sources passed.
inline const TensorInfo& info_of(const TensorSource& source) {
  return source.reader->tensors()[source.tensor];
}

/// Throws invalid_argument where a name is empty, too long, repeated or not UTF-8 or holds a NUL, a
/// source has no reader or one without that tensor, or a sharding does not fit its shape
/// or, as where its policy is strict, does not allow it.
void check_sources(std::span<const TensorSource> sources);

/// Cuts the tensors into pieces and chunks, and chooses each one's codec by samples of it. Requires
/// that check_sources passed. Throws CallerError.
SavePlan plan_save(std::vector<TensorSource> sources, Codec codec, const Executor& executor,
                   std::int64_t writers = 1);

}  // namespace shardwise::detail
