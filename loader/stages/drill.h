#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A fault of one record.
struct DrillFault {
  enum class Kind {
    corrupt,    ///< reading it throws corrupt
    io,         ///< ... io
    exception,  ///< ... a std::runtime_error, as a transform may
    slow,       ///< reading it takes 100 ms longer
    kill,       ///< the process gets SIGKILL
  };
  Kind kind;
  std::int64_t record;

  bool operator==(const DrillFault&) const = default;
};

/// Reads "corrupt:17,slow:20,kill:900". Throws invalid_argument, listing the known kinds.
std::vector<DrillFault> parse_drill(std::string_view text);

/// The same records, but some fail whenever they are read: a rehearsal of what a job then does, say
/// with BadRecords::substitute, or if it is killed and resumed. The run stays the same: a loader
/// accepts its states with and without the drill. Throws invalid_argument if the source is null or
/// has no such record.
///
///   const auto trial = drill(source, parse_drill("corrupt:3,io:5"));
///   trial->fingerprint() == source->fingerprint();
std::shared_ptr<const Source> drill(std::shared_ptr<const Source> source,
                                    std::vector<DrillFault> faults);

}  // namespace shardwise
