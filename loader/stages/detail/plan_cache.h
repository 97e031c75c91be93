#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "shardwise/loader/stages/detail/best_fit.h"

namespace shardwise::detail {

/// The plans used last, by the number of their window of documents. Thread-safe.
class PlanCache {
 public:
  using Plan = std::shared_ptr<const PackPlan>;

  /// Holds plans of at most `most_bytes` in all, but always the last one.
  explicit PlanCache(std::size_t most_bytes) : most_bytes_(most_bytes) {}

  /// Null if the plan is not held.
  Plan find(std::int64_t window);

  /// Does nothing if the window's plan is held.
  void add(std::int64_t window, const Plan& plan);

  std::size_t bytes() const;

 private:
  struct Entry {
    std::int64_t window;
    Plan plan;
  };
  const std::size_t most_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> used_;  // the last used first
  std::unordered_map<std::int64_t, std::list<Entry>::iterator> entries_;
  std::size_t bytes_ = 0;
};

}  // namespace shardwise::detail
