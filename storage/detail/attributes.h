#pragma once

namespace shardwise::detail {

/// Whether two open files have the same owner, group, rights, extended attributes (ACLs and
/// security labels are some), flags (chattr) and project. False if the system does not say.
bool have_same_attributes(int a, int b);

}  // namespace shardwise::detail
