#pragma once

#include <unistd.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// Which process works on an attempt. A number alone would not do: the system gives it to another
/// process one day, and another machine or container has its own.
struct LeaseOwner {
  std::int64_t pid = 0;
  std::uint64_t pid_namespace = 0;   ///< inode of /proc/self/ns/pid; 0 if it is not known
  std::uint64_t start = 0;           ///< in clock ticks since boot, /proc/<pid>/stat field 22
  std::uint64_t time_namespace = 0;  ///< of `start`: inode of /proc/self/ns/time, or 0
  std::uint64_t image = 0;           ///< another one after exec(), which keeps pid and start; or 0
  std::string boot;                  ///< the kernel's boot id
  std::string machine;               ///< of /etc/machine-id; empty if it is not known
  std::string host;                  ///< the machine's name
};

/// This process. Throws io if /proc does not say.
LeaseOwner this_process();

/// Content of a lease file; absent if the text is not one.
std::string print_lease(const LeaseOwner& owner);
std::optional<LeaseOwner> parse_lease(std::string_view text);

/// True if the owner is of this machine and pid namespace, so that its processes can be seen.
bool is_of_here(const LeaseOwner& owner);

/// True if the owner may still be at work. Nothing is known here about processes of another
/// machine, or of another pid namespace on this one: they may, unless their host is among the dead.
/// If the system does not say (no descriptor is free, no rights), it may, too.
bool may_be_alive(const LeaseOwner& owner, std::span<const std::string> dead_hosts = {});

/// Which process has made an object. A child that fork() makes has a copy of it; what that stands
/// for on the disk is its parent's to remove. Immutable.
class Maker {
 public:
  bool is_this_process() const { return pid_ == ::getpid(); }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace shardwise::detail
