#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {

/// How the host memory of a save is divided, within its budget.
struct StagingSizes {
  std::int64_t workers = 0;  ///< how many may gather and compress at once
  std::size_t buffer_bytes = 0;
  std::size_t buffers = 0;  ///< of those some are being filled and some written

  bool operator==(const StagingSizes&) const = default;
};

/// The least budget there can be: one worker, and two buffers of one chunk each.
inline constexpr std::size_t kLeastBudgetBytes = std::size_t{8} << 20;

/// Sizes for writing about `data_bytes`. Throws invalid_argument if the budget is too small.
StagingSizes staging_sizes(std::size_t budget_bytes, int threads, std::size_t data_bytes);

/// A fixed number of page-aligned buffers, used again and again: memory that the system has yet to
/// find costs a save more than writing it. An increment touches few of them. Thread-compatible.
class StagingPool {
 public:
  explicit StagingPool(const StagingSizes& sizes);

  const StagingSizes& sizes() const { return sizes_; }
  std::size_t held_bytes() const { return sizes_.buffers * sizes_.buffer_bytes; }
  std::byte* buffer(std::size_t number) { return memory_.get() + number * sizes_.buffer_bytes; }

 private:
  StagingSizes sizes_;
  PageMemory memory_;
};

}  // namespace shardwise::detail
