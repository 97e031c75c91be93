#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/root/marks/lease.h"

namespace shardwise::detail {

/// A file ".writer.<id>" in a root, as long as a manager saves there: it says which process that
/// is, and its time when that saved last. It is no data, so it is not synced; if none can be made,
/// nobody is told.
class WriterLease {
 public:
  explicit WriterLease(const std::filesystem::path& root);
  ~WriterLease();
  WriterLease(const WriterLease&) = delete;
  WriterLease& operator=(const WriterLease&) = delete;

  /// A step is saved.
  void renew() const;

  /// The other managers that save there and may be alive: "process 12 on host, last 2026-..". A
  /// process that cannot be seen from here counts as dead an hour after it has saved.
  std::vector<std::string> others() const;

 private:
  Maker maker_;
  const std::filesystem::path root_;
  std::string name_;  // empty: no lease
};

}  // namespace shardwise::detail
