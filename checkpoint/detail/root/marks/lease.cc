#include "shardwise/checkpoint/detail/root/marks/lease.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <sstream>

#include "shardwise/checkpoint/detail/format/json_text.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

// Reads to the end. Absent if that fails.
std::optional<std::string> read_all(int fd) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const ssize_t got = ::read(fd, part.data(), part.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
}

// The text of a file of the system: empty if it is not there. Absent if it cannot be read, for
// example if no descriptor is free: then nobody knows.
std::optional<std::string> system_file(const std::string& path) {
  const auto gone = [] { return errno == ENOENT || errno == ENOTDIR || errno == ESRCH; };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return gone() ? std::optional<std::string>("") : std::nullopt;
  std::optional<std::string> text = read_all(fd);
  if (!text && gone()) text = "";
  ::close(fd);
  return text;
}

// The start in a /proc/<pid>/stat; absent if the process has ended and nobody has asked how.
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

std::optional<std::string> stat_of(std::int64_t pid) {
  return system_file(fmt::format("/proc/{}/stat", pid));
}

std::optional<std::string> line_of(const char* path) {
  std::optional<std::string> text = system_file(path);
  if (text) text->resize(std::min(text->size(), text->find('\n')));
  return text;
}

std::optional<std::string> boot_id() { return line_of("/proc/sys/kernel/random/boot_id"); }

// Empty if there is no such file, as in many containers.
std::optional<std::string> machine_id() { return line_of("/etc/machine-id"); }

std::uint64_t inode_of(const char* path) {
  struct stat status {};
  return ::stat(path, &status) == 0 ? status.st_ino : 0;
}

// Containers on one machine have their own process numbers, though boot and host may be the same.
std::uint64_t pid_namespace() { return inode_of("/proc/self/ns/pid"); }
std::uint64_t time_namespace() { return inode_of("/proc/self/ns/time"); }

// From the 16 random bytes that the kernel gives to each program that it starts; a child by fork()
// has its parent's. A few bits of their hash tell nothing of them.
std::uint64_t image() {
  // The kernel gives an address as a number.
  const auto* const bytes =
      reinterpret_cast<const std::byte*>(  // NOLINT(performance-no-int-to-ptr)
          ::getauxval(AT_RANDOM));
  return bytes == nullptr ? 0 : hash64(bytes, 16) >> 32;
}

// True if the owner, a process of this pid namespace since the machine's last start, may run.
bool may_run(const LeaseOwner& owner) {
  const std::optional<std::string> stat = stat_of(owner.pid);
  if (!stat || stat->empty()) {
    // /proc may hide other users' processes.
    return owner.pid > 0 && (::kill(static_cast<pid_t>(owner.pid), 0) == 0 || errno == EPERM);
  }
  const std::optional<std::uint64_t> start = parse_start(*stat);
  if (!start) return false;
  // Another namespace counts from another instant: there is a process of that number, no more.
  if (owner.time_namespace != time_namespace()) return true;
  const bool replaced =
      owner.pid == ::getpid() && owner.image != 0 && image() != 0 && owner.image != image();
  return *start == owner.start && !replaced;
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
                   .time_namespace = time_namespace(),
                   .image = image(),
                   .boot = boot_id().value_or(""),
                   .machine = machine_id().value_or(""),
                   .host = host_name()};
  const std::optional<std::uint64_t> start = parse_start(stat_of(owner.pid).value_or(""));
  if (!start || owner.boot.empty()) {
    throw Error(ErrorCode::io, "make a lease: /proc does not tell this process's start time");
  }
  owner.start = *start;
  return owner;
}

std::string print_lease(const LeaseOwner& owner) {
  std::string text = fmt::format(
      R"({{"pid":{},"pid_namespace":{},"start":{},"time_namespace":{},"image":{},"boot":)",
      owner.pid, owner.pid_namespace, owner.start, owner.time_namespace, owner.image);
  append_json(text, owner.boot);
  text += ",\"machine\":";
  append_json(text, owner.machine);
  text += ",\"host\":";
  append_json(text, owner.host);
  return text + "}\n";
}

std::optional<LeaseOwner> parse_lease(std::string_view text) {
  try {
    const JsonDocument document(text, kMaxNesting);
    const JsonFields lease(document.root(), {.what = "lease"});
    const auto number = [&](const char* key) {
      return static_cast<std::uint64_t>(lease.integer_or(key, 0));
    };
    return LeaseOwner{.pid = lease.integer("pid"),
                      .pid_namespace = number("pid_namespace"),
                      .start = static_cast<std::uint64_t>(lease.integer("start")),
                      .time_namespace = number("time_namespace"),
                      .image = number("image"),
                      .boot = std::string(lease.text("boot")),
                      .machine = std::string(lease.text_or("machine", "")),
                      .host = std::string(lease.text("host"))};
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_of_here(const LeaseOwner& owner) {
  const std::optional<std::string> boot = boot_id(), machine = machine_id();
  const bool same_boot = boot && owner.boot == *boot;
  // Machines may have equal names, and the first pid namespace has the same inode on all of them.
  const bool other_machine = !same_boot && machine && owner.machine != *machine;
  return !other_machine && owner.host == host_name() && owner.pid_namespace == pid_namespace();
}

bool may_be_alive(const LeaseOwner& owner, std::span<const std::string> dead_hosts) {
  if (!is_of_here(owner)) {
    return std::find(dead_hosts.begin(), dead_hosts.end(), owner.host) == dead_hosts.end();
  }
  const std::optional<std::string> boot = boot_id(), machine = machine_id();
  if (boot && owner.boot == *boot) return may_run(owner);
  return !boot || !machine;  // else it was of an earlier start of this machine
}

}  // namespace shardwise::detail
