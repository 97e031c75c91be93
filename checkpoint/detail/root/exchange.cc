#include "shardwise/checkpoint/detail/root/exchange.h"

#include "shardwise/shard/error.h"

namespace shardwise::detail {

void exchange_by_any_means(FileSystem& file_system, const std::filesystem::path& a,
                           const std::filesystem::path& b, const std::filesystem::path& aside) {
  try {
    return file_system.exchange(a, b);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
  }
  file_system.rename(b, aside);
  try {
    file_system.rename(a, b);
  } catch (...) {
    file_system.rename(aside, b);
    throw;
  }
  try {
    file_system.rename(aside, a);
  } catch (...) {
    file_system.rename(b, a);
    file_system.rename(aside, b);
    throw;
  }
}

}  // namespace shardwise::detail
