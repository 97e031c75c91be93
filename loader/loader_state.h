#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise {

/// Where a run of batches stands: all that a resume needs, whatever the mesh. Small, to be saved
/// with the model.
///
/// Value type, thread-compatible.
///
///   LoaderState state{.seed = 1, .next_batch = 40};
///   loader_state_from_json(to_json(state)) == state;
struct LoaderState {
  std::uint64_t seed = 0;
  std::int64_t next_batch = 0;    ///< counted from the start of the run, over all epochs
  std::uint64_t fingerprint = 0;  ///< of source, batch size, order and last batch; 0: not yet known

  bool operator==(const LoaderState&) const = default;
};

/// JSON text, as in {"seed":1,"next_batch":40,"fingerprint":"00000000000000ab"}.
std::string to_json(const LoaderState& state);

/// Reads what to_json writes; blanks and the order of the keys are free. Throws invalid_argument
/// for anything else, as a missing, repeated or unknown key, naming it.
LoaderState loader_state_from_json(std::string_view text);

}  // namespace shardwise
