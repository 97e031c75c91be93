#pragma once

#include <stdexcept>

namespace shardwise::tools {

/// Thrown for options that were read well but do not go together; ends the command with status 2.
class BadUsage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace shardwise::tools
