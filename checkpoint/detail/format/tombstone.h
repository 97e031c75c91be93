#pragma once

#include <string>
#include <string_view>

namespace shardwise::detail {

// In a bucket, a removed or given-up checkpoint keeps an object in the place of its manifest, so
// that no late request of its writer can publish it: docs/object_stores.md, heading "Removal".

inline constexpr std::string_view kTombstone = "shardwise tombstone ";

/// The object's bytes; `id` is 32 hex digits, the remover's own.
inline std::string print_tombstone(std::string_view id) {
  return std::string(kTombstone) + std::string(id) + "\n";
}

/// True for the first bytes of one, as no manifest begins.
inline bool is_tombstone(std::string_view text) { return text.starts_with(kTombstone); }

}  // namespace shardwise::detail
