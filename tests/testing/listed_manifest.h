#pragma once

#include <string>

#include "shardwise/checkpoint/detail/format/manifest.h"

namespace shardwise {

/// The text of a manifest in version 1, which lists every piece: builds before version 2 wrote it,
/// and all builds read it.
std::string print_listed_manifest(const detail::Manifest& manifest);

}  // namespace shardwise
