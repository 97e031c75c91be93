#include "shardwise/checkpoint/detail/root/lease.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

std::string system_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Of a /proc/<pid>/stat; absent where the process has ended and nobody has asked how.
std::optional<std::uint64_t> parse_start(const std::string& stat) {
  // Field 2 is the command in brackets and may hold anything, so count from its end.
  const std::size_t bracket = stat.rfind(')');
  if (bracket == std::string::npos) return std::nullopt;
  std::istringstream fields(stat.substr(bracket + 1));
  std::string state, skipped;
  fields >> state;
  for (int field = 4; field < 22; ++field) fields >> skipped;
  std::uint64_t start = 0;
  if (!(fields >> start) || state == "Z" || state == "X") return std::nullopt;
  return start;
}

std::string stat_of(std::int64_t pid) { return system_file(fmt::format("/proc/{}/stat", pid)); }

// Whether the process that began then still runs.
bool is_running(std::int64_t pid, std::uint64_t start) {
  const std::string stat = stat_of(pid);
  if (!stat.empty()) return parse_start(stat) == start;
  // /proc may hide other users' processes.
  return pid > 0 && (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

std::string line_of(const char* path) {
  std::string line = system_file(path);
  return line.substr(0, line.find('\n'));
}

std::string boot_id() { return line_of("/proc/sys/kernel/random/boot_id"); }

// Empty where there is none, as in many containers.
std::string machine_id() { return line_of("/etc/machine-id"); }

// Containers on one machine have their own process numbers, though boot and host may be the same.
std::uint64_t pid_namespace() {
  struct stat status {};
  return ::stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

// As JSON can hold it.
std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  std::string host = name.data();
  for (char& c : host) {
    if (c < ' ' || c > '~') c = '?';
  }
  return host;
}

}  // namespace

LeaseOwner this_process() {
  LeaseOwner owner{.pid = ::getpid(),
                   .pid_namespace = pid_namespace(),
                   .start = 0,
                   .boot = boot_id(),
                   .machine = machine_id(),
                   .host = host_name()};
  const std::optional<std::uint64_t> start = parse_start(stat_of(owner.pid));
  if (!start || owner.boot.empty()) {
    throw Error(ErrorCode::io, "make a lease: /proc does not tell this process's start time");
  }
  owner.start = *start;
  return owner;
}

std::string print_lease(const LeaseOwner& owner) {
  nlohmann::ordered_json lease;
  lease["pid"] = owner.pid;
  lease["pid_namespace"] = owner.pid_namespace;
  lease["start"] = owner.start;
  lease["boot"] = owner.boot;
  lease["machine"] = owner.machine;
  lease["host"] = owner.host;
  return lease.dump() + "\n";
}

std::optional<LeaseOwner> parse_lease(std::string_view text) {
  const nlohmann::json lease = nlohmann::json::parse(text, nullptr, false);
  if (!lease.is_object()) return std::nullopt;
  try {
    return LeaseOwner{.pid = lease.at("pid").get<std::int64_t>(),
                      .pid_namespace = lease.value("pid_namespace", std::uint64_t{0}),
                      .start = lease.at("start").get<std::uint64_t>(),
                      .boot = lease.at("boot").get<std::string>(),
                      .machine = lease.value("machine", std::string()),
                      .host = lease.at("host").get<std::string>()};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

bool may_be_alive(const LeaseOwner& owner, std::span<const std::string> dead_hosts) {
  const bool same_boot = owner.boot == boot_id();
  // Machines may have equal names, and the first pid namespace has the same inode on all of them.
  const bool same_machine = same_boot || owner.machine == machine_id();
  if (!same_machine || owner.host != host_name() || owner.pid_namespace != pid_namespace()) {
    return std::find(dead_hosts.begin(), dead_hosts.end(), owner.host) == dead_hosts.end();
  }
  return same_boot && is_running(owner.pid, owner.start);
}

}  // namespace shardwise::detail
