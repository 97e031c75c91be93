// Files of the format idx: refused with an Error, or read.

#include <string_view>

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/sources/detail/open_files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shardwise::check_source({reinterpret_cast<const char*>(data), size},
                          [](auto file, std::size_t hold_bytes) {
                            return shardwise::detail::open_idx(std::move(file), "x", hold_bytes);
                          });
  return 0;
}
