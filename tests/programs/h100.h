#pragma once

#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {

/// The machine that plans are modelled on.
inline const Machine& h100() { return machines()[1]; }

}  // namespace shardwise
