#include "shardwise/checkpoint/detail/root/names.h"

#include <fmt/format.h>

#include <random>

#include "shardwise/checkpoint/detail/format/step_name.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kTrash = ".trash-";
constexpr std::string_view kPin = ".pin-";
constexpr std::string_view kAside = ".aside-";
constexpr std::string_view kWriter = ".writer.";
constexpr std::string_view kRepair = ".repair-";
constexpr std::string_view kNamed = ".shardwise.";
constexpr std::size_t kIdDigits = 32;

bool is_id(std::string_view text) {
  return text.size() == kIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// ".step-00000101.<id>", ".shardwise.<name>.<id>"
bool is_stem(std::string_view text) {
  if (text.size() <= kIdDigits + 2 || text.front() != '.') return false;
  const std::string_view id = text.substr(text.size() - kIdDigits);
  if (!is_id(id) || text[text.size() - kIdDigits - 1] != '.') return false;
  const std::string_view of = text.substr(0, text.size() - kIdDigits - 1);
  if (of.starts_with(kNamed)) return of.size() > kNamed.size();
  const std::optional<StepName> step = parse_step_name(of.substr(1));
  return step && *step == StepName{.step = step->step};
}

}  // namespace

std::optional<HiddenName> parse_hidden_name(std::string_view name) {
  if (name.starts_with(kTrash)) {
    const std::size_t dot = name.rfind('.');
    if (dot < kTrash.size() || !is_id(name.substr(dot + 1))) return std::nullopt;
    return HiddenName{HiddenKind::trash,
                      std::string(name.substr(kTrash.size(), dot - kTrash.size()))};
  }
  if (name.starts_with(kPin)) {
    const std::size_t dot = name.rfind('.');
    if (dot < kPin.size() || !is_id(name.substr(dot + 1))) return std::nullopt;
    const std::string_view step = name.substr(kPin.size(), dot - kPin.size());
    if (!parse_step_name(step)) return std::nullopt;
    return HiddenName{HiddenKind::pin, std::string(step)};
  }
  if (name.starts_with(kAside)) {
    const std::string_view step = name.substr(kAside.size());
    if (!parse_step_name(step)) return std::nullopt;
    return HiddenName{HiddenKind::aside, std::string(step)};
  }
  if (name.starts_with(kWriter)) {
    const std::string_view id = name.substr(kWriter.size());
    if (!is_id(id)) return std::nullopt;
    return HiddenName{HiddenKind::writer, std::string(id)};
  }
  HiddenKind kind = HiddenKind::attempt;
  if (take_suffix(name, ".lease")) {
    kind = HiddenKind::lease;
  } else if (take_suffix(name, ".lease.new")) {
    kind = HiddenKind::unfinished_lease;
  } else if (!take_suffix(name, ".tmp")) {
    return std::nullopt;
  }
  if (!is_stem(name)) return std::nullopt;
  return HiddenName{kind, std::string(name)};
}

std::string attempt_stem(std::int64_t step, std::string_view id) {
  return fmt::format(".{}.{}", to_string(StepName{step, 1}), id);
}

std::string attempt_stem(std::string_view name, std::string_view id) {
  return fmt::format("{}{}.{}", kNamed, name, id);
}

std::string attempt_name(std::string_view stem) { return fmt::format("{}.tmp", stem); }
std::string lease_name(std::string_view stem) { return fmt::format("{}.lease", stem); }
std::string unfinished_lease_name(std::string_view stem) {
  return fmt::format("{}.lease.new", stem);
}

std::string pin_name(std::string_view name, std::string_view id) {
  return fmt::format("{}{}.{}", kPin, name, id);
}

std::string trash_name(std::string_view name, std::string_view id) {
  return fmt::format("{}{}.{}", kTrash, name, id);
}

std::string aside_name(std::string_view name) { return fmt::format("{}{}", kAside, name); }
std::string writer_name(std::string_view id) { return fmt::format("{}{}", kWriter, id); }

std::string repair_name(std::string_view name, std::string_view id) {
  return fmt::format("{}{}.{}", kRepair, name, id);
}

bool is_repair_name(std::string_view name) {
  return name.starts_with(kRepair) && name.size() > kIdDigits &&
         is_id(name.substr(name.size() - kIdDigits));
}

std::string new_id() {
  std::random_device random;
  std::string id;
  while (id.size() < kIdDigits) id += fmt::format("{:08x}", random());
  return id;
}

}  // namespace shardwise::detail
