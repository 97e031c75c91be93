#include "shardwise/bucket/detail/markers.h"

#include <fmt/format.h>

#include "shardwise/shard/text.h"
#include "shardwise/storage/hash.h"

namespace shardwise::bucket_detail {
namespace {

constexpr std::string_view kClaimName = ".claim-", kClaimText = "shardwise claim ";
constexpr std::size_t kIdDigits = 32;

/// Takes 32 hex digits and a space off the front.
bool take_digits(std::string_view& text, std::string& digits) {
  Hash128 number;
  if (text.size() <= kIdDigits || text[kIdDigits] != ' ' ||
      !from_hex(text.substr(0, kIdDigits), number)) {
    return false;
  }
  digits = text.substr(0, kIdDigits);
  text.remove_prefix(kIdDigits + 1);
  return true;
}

}  // namespace

std::string claim_name(const detail::StepName& name) {
  return std::string(kClaimName) + to_string(name);
}

std::optional<detail::StepName> parse_claim_name(std::string_view name) {
  if (!name.starts_with(kClaimName)) return std::nullopt;
  return detail::parse_step_name(name.substr(kClaimName.size()));
}

std::string print_claim(const Claim& claim) {
  return fmt::format("{}{} {} {}\n", kClaimText, claim.id, claim.manifest_hash, claim.seconds);
}

std::optional<Claim> parse_claim(std::string_view text) {
  if (!text.starts_with(kClaimText) || !text.ends_with('\n')) return std::nullopt;
  text.remove_prefix(kClaimText.size());
  text.remove_suffix(1);
  Claim claim;
  if (!take_digits(text, claim.id) || !take_digits(text, claim.manifest_hash)) return std::nullopt;
  const std::optional<std::int64_t> seconds = parse_count(text);
  if (!seconds || *seconds > kMostClaimSeconds) return std::nullopt;
  claim.seconds = *seconds;
  return claim;
}

}  // namespace shardwise::bucket_detail
