#include "bench/peak_memory.h"

#include <algorithm>
#include <fstream>

namespace shardwise::tools {
namespace {

std::optional<std::size_t> peak_bytes() { return proc_bytes("/proc/self/status", "VmHWM:"); }

}  // namespace

std::optional<std::size_t> proc_bytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == key && file >> kib) return kib << 10;
  }
  return std::nullopt;
}

PeakMemory::PeakMemory() {
  // 5 sets the peak to what is in use now (proc(5)).
  std::ofstream reset("/proc/self/clear_refs");
  reset << 5 << std::flush;
  if (reset) before_ = peak_bytes();
}

std::optional<std::size_t> PeakMemory::growth_bytes() const {
  const auto now = peak_bytes();
  if (!before_ || !now) return std::nullopt;
  return *now - std::min(*before_, *now);
}

}  // namespace shardwise::tools
