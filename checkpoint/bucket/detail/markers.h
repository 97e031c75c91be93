#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/checkpoint/detail/format/step_name.h"

namespace shardwise::bucket_detail {

/// Who may write the keys of a generation, and how long from the time when the claim was put. It is
/// the object ".claim-step-00000100.g2" next to the generation's folder: docs/object_stores.md,
/// heading "In the bucket".
struct Claim {
  std::string id;             ///< 32 hex digits, the attempt's own
  std::string manifest_hash;  ///< 32 hex digits, of the manifest that will be committed
  std::int64_t seconds = 0;

  bool operator==(const Claim&) const = default;
};

inline constexpr std::size_t kMostClaimBytes = 256;
inline constexpr std::int64_t kMostClaimSeconds = std::int64_t{366} * 86'400;

std::string claim_name(const detail::StepName& name);
std::optional<detail::StepName> parse_claim_name(std::string_view name);

/// "shardwise claim <id> <manifest_hash> <seconds>\n"
std::string print_claim(const Claim& claim);

/// Absent for any other text.
std::optional<Claim> parse_claim(std::string_view text);

}  // namespace shardwise::bucket_detail
