#include "bench/peak_memory.h"

#include <sys/mman.h>

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

void touch_free_memory(std::size_t size_bytes) {
  void* const memory =
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return;
  madvise(memory, size_bytes, MADV_HUGEPAGE);  // in large pieces, like those given back
  constexpr std::size_t kPageBytes = 4096;
  for (std::size_t at = 0; at < size_bytes; at += kPageBytes) {
    static_cast<volatile char*>(memory)[at] = 1;
  }
  munmap(memory, size_bytes);
}

PeakMemory::PeakMemory() {
  // 5 sets the peak to the memory in use now (proc(5)).
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
