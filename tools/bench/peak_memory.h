#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace shardwise::tools {

/// What a line like "VmHWM:   1234 kB" of a file under /proc says, in bytes; absent without one.
std::optional<std::size_t> proc_bytes(const char* path, const std::string& key);

/// Has the system touch so much of its free memory, which a virtual machine may have given back to
/// its host: to get it again takes as long as reading it from a disk.
void touch_free_memory(std::size_t size_bytes);

/// How far the process's memory grows beyond what it was at construction. Only memory that is
/// touched for the first time counts: measure before any is reused. Thread-compatible.
class PeakMemory {
 public:
  PeakMemory();

  /// Absent where the system does not let us measure it.
  std::optional<std::size_t> growth_bytes() const;

 private:
  std::optional<std::size_t> before_;
};

}  // namespace shardwise::tools
