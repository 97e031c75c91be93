#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "shardwise/loader/source.h"

namespace shardwise {

/// What goes wrong with a record.
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

/// "corrupt:17,slow:20,kill:900". Throws invalid_argument, listing the kinds there are.
std::vector<DrillFault> parse_drill(std::string_view text);

/// The same records, of which some go wrong whenever they are read: a rehearsal of what a job does
/// then, with BadRecords::substitute say, or when it is killed and goes on. The run stays what it
/// is: its states are taken with and without the drill. Throws invalid_argument where the source is
/// null or has no such record.
///
///   const auto trial = drill(source, parse_drill("corrupt:3,io:5"));
///   trial->fingerprint() == source->fingerprint();
std::shared_ptr<const Source> drill(std::shared_ptr<const Source> source,
                                    std::vector<DrillFault> faults);

}  // namespace shardwise
