#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/verify.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

std::string verdict(const VerifyReport& report) {
  if (report.ok()) {
    return "every value is as written";
  }
  const std::string unread = fmt::format("{} could not be read", report.unread.size());
  if (report.damage.empty()) return unread + ", so that nothing is proved";
  return fmt::format("{} damaged{}", report.damage.size(),
                     report.unread.empty() ? "" : ", " + unread);
}

std::string lines(const std::vector<Damage>& list, std::string_view what) {
  std::string text;
  for (const Damage& damage : list) {
    text += fmt::format("\n  {}{}{}{}", what, damage.file, damage.file.empty() ? "" : ": ",
                        damage.message);
  }
  return text;
}

}  // namespace

std::string to_string(const VerifyReport& report) {
  std::string text = fmt::format("{} ({} chunk{}, {} read)", verdict(report), report.chunks,
                                 report.chunks == 1 ? "" : "s", human_bytes(report.bytes));
  if (report.parity_files > 0) {
    text += fmt::format(
        "\n  parity: {} shard file{}, each survives the loss of any {} of 1 MiB",
        report.parity_files, report.parity_files == 1 ? "" : "s",
        report.parity_blocks == 1 ? "block" : fmt::format("{} blocks", report.parity_blocks));
  }
  return text + lines(report.damage, "") + lines(report.unread, "not read: ");
}

}  // namespace shardwise
