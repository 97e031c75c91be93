#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace shardwise::tools {

/// Bytes of a line like "VmHWM:   1234 kB" of a file under /proc; absent without one.
std::optional<std::size_t> proc_bytes(const char* path, const std::string& key);

/// Makes the system touch this much of its free memory. A virtual machine may have given it back to
/// its host, and getting it again takes as long as reading from a disk.
void touch_free_memory(std::size_t size_bytes);

/// How much the process's memory has grown since construction. Only memory that is touched for the
/// first time counts: measure before any is reused. Thread-compatible.
class PeakMemory {
 public:
  PeakMemory();

  /// Absent if the system does not let us measure it.
  std::optional<std::size_t> growth_bytes() const;

 private:
  std::optional<std::size_t> before_;
};

}  // namespace shardwise::tools
