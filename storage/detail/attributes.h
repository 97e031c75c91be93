#pragma once

namespace shardwise::detail {

/// True if two open files have the same owner, group, rights, extended attributes
/// (including ACLs and security labels), flags (chattr) and project. False if the system does not
/// say.
bool have_same_attributes(int a, int b);

}  // namespace shardwise::detail
