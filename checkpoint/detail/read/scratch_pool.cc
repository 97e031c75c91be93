#include "shardwise/checkpoint/detail/read/scratch_pool.h"

#include <utility>

namespace shardwise::detail {
namespace {

// Scratch for larger chunks than any of ours is not kept.
constexpr std::size_t kKeptBytes = std::size_t{4} << 20;

}  // namespace

ScratchPool::Loan::Loan(ScratchPool& pool) : pool_(pool) {
  {
    const MutexLock lock(pool_.mutex_);
    if (!pool_.free_.empty()) {
      scratch_ = std::move(pool_.free_.back());
      pool_.free_.pop_back();
    }
  }
  if (!scratch_) scratch_ = std::make_unique<DecodeScratch>();
}

ScratchPool::Loan::~Loan() {
  if (scratch_->chunk.capacity() > kKeptBytes) return;
  const MutexLock lock(pool_.mutex_);
  pool_.free_.push_back(std::move(scratch_));
}

}  // namespace shardwise::detail
