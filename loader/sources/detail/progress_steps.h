#pragma once

#include <cstdint>

#include "shardwise/loader/sources/file_options.h"

namespace shardwise::detail {

/// Calls an IndexProgress every 64 MiB and at the end. Thread-compatible.
class ProgressSteps {
 public:
  /// Both must outlive it.
  ProgressSteps(const IndexProgress& progress, std::uint64_t all_bytes)
      : progress_(progress), all_bytes_(all_bytes) {}

  void at(std::uint64_t done_bytes) {
    if (done_bytes < next_) return;
    next_ = done_bytes + kStepBytes;
    if (progress_) progress_(done_bytes, all_bytes_);
  }

  void finish() const {
    if (progress_) progress_(all_bytes_, all_bytes_);
  }

 private:
  static constexpr std::uint64_t kStepBytes = std::uint64_t{64} << 20;

  const IndexProgress& progress_;
  std::uint64_t all_bytes_, next_ = kStepBytes;
};

}  // namespace shardwise::detail
