// States of loaders: refused with an Error, or the same after a turn through their text.

#include "fuzz/source_fuzz.h"
#include "shardwise/loader/loader_options.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shardwise;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const LoaderState state = loader_state_from_json(text);
    const std::string again = to_json(state);
    require(again.size() <= 256, "size", again);
    require(loader_state_from_json(again) == state, "other state", again);
  } catch (const Error& error) {
    require(error.code() == ErrorCode::invalid_argument, "code", error.what());
    require_readable(error);
  }
  return 0;
}
