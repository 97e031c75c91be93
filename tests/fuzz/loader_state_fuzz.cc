// Files that a run leaves for the next one. States of loaders: refused, or the same after a
// turn through their text. Caches of filters, as they are and with the right hash after them:
// refused with an Error, passed over, or the bits of all records.

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/stages/detail/filter_cache.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

void check_state(std::string_view text) {
  try {
    const LoaderState state = loader_state_from_json(text);
    const std::string again = to_json(state);
    require(again.size() <= 256, "size", again);
    require(loader_state_from_json(again) == state, "other state", again);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::invalid_argument, "code", error.what());
    require_readable(error);
  }
}

void check_cache(std::string_view content) {
  try {
    const auto words =
        detail::read_filter_cache(*file_of(content), {.source = 1, .predicate = 2, .size = 100});
    require(!words || words->size() == 2, "words", content);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::corrupt, "code", error.what());
    require_readable(error);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shardwise;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_state(text);
  check_cache(text);
  const std::uint64_t hash = hash64(text);
  check_cache(std::string(text) + std::string(reinterpret_cast<const char*>(&hash), sizeof(hash)));
  return 0;
}
