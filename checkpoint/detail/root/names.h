#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::detail {

// The hidden names in a root: docs/checkpoint_format.md, heading "Directory layout".

/// The meaning of a hidden name of ours.
enum class HiddenKind { attempt, lease, unfinished_lease, pin, trash, aside, writer };

struct HiddenName {
  HiddenKind kind;
  /// The common part of the names of an attempt and its leases; of a pin, a mark and of trash the
  /// checkpoint's name.
  std::string stem;
};

/// Absent for names that are not ours.
std::optional<HiddenName> parse_hidden_name(std::string_view name);

/// ".step-00000101.<id>", the stem of the names below.
std::string attempt_stem(std::int64_t step, std::string_view id);

/// ".shardwise.<name>.<id>", of a checkpoint of any name.
std::string attempt_stem(std::string_view name, std::string_view id);
std::string attempt_name(std::string_view stem);
std::string lease_name(std::string_view stem);
std::string unfinished_lease_name(std::string_view stem);
std::string pin_name(std::string_view name, std::string_view id);
std::string trash_name(std::string_view name, std::string_view id);

/// ".aside-step-00000101", of a step that is set aside (set_aside.h).
std::string aside_name(std::string_view name);

/// ".writer.<id>", of a manager that saves in the root (writer_lease.h).
std::string writer_name(std::string_view id);

/// ".repair-<name>.<id>", in a checkpoint: a file that is being made again, or the one that was in
/// its place.
std::string repair_name(std::string_view name, std::string_view id);
bool is_repair_name(std::string_view name);

/// 32 hex digits that nobody has had before.
std::string new_id();

}  // namespace shardwise::detail
