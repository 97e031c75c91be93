#include "bench/machine.h"

#include <fmt/core.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "bench/peak_memory.h"
#include "output.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

constexpr std::int64_t kMostDevices = std::int64_t{1} << 20;

}  // namespace

nlohmann::ordered_json machine_json() {
  const auto pages = static_cast<std::size_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L));
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return {{"cores", std::thread::hardware_concurrency()}, {"memory_bytes", pages * page_bytes}};
}

std::int64_t devices_for(const Mesh& mesh) {
  const std::int64_t last = mesh.devices().nth_smallest(mesh.size() - 1);
  if (last >= kMostDevices) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mesh \"{}\" has device {}; needed are devices below {}",
                            mesh.to_string(), last, kMostDevices));
  }
  return last + 1;
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

void check_memory(std::size_t needed_bytes) {
  const auto available = proc_bytes("/proc/meminfo", "MemAvailable:");
  if (!available || *available >= needed_bytes) return;
  throw Error(ErrorCode::resource_exhausted,
              fmt::format("bench: {} of memory are available, {} are needed",
                          human_bytes(*available), human_bytes(needed_bytes)));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double gb_per_s(std::size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

}  // namespace shardwise::tools
