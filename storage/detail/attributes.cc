#include "shardwise/storage/detail/attributes.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstddef>
#include <map>
#include <optional>
#include <string>

namespace shardwise::detail {
namespace {

using Attributes = std::map<std::string, std::string>;

// The result of a system call that takes a buffer and its size; absent if the call fails.
template <class Call>
std::optional<std::string> text_of_call(const Call& call) {
  const ssize_t size = call(nullptr, 0);
  if (size < 0) return std::nullopt;
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size > 0 && call(text.data(), text.size()) != size) return std::nullopt;
  return text;
}

// Absent if the attributes cannot be read.
std::optional<Attributes> attributes_of(int fd) {
  const auto names =
      text_of_call([fd](char* out, std::size_t size) { return ::flistxattr(fd, out, size); });
  if (!names) return errno == EOPNOTSUPP ? std::optional(Attributes()) : std::nullopt;
  Attributes attributes;
  for (std::size_t at = 0; at < names->size();) {
    const std::string name = names->c_str() + at;
    auto value = text_of_call(
        [&](char* out, std::size_t size) { return ::fgetxattr(fd, name.c_str(), out, size); });
    if (!value) return std::nullopt;
    attributes.emplace(name, std::move(*value));
    at += name.size() + 1;
  }
  return attributes;
}

// True if the ioctl gives the same value for both files, or fails for both.
template <class Value, class Same>
bool same_by_ioctl(int a, int b, unsigned long request, const Same& same) {
  Value of_a{}, of_b{};
  const bool has_a = ::ioctl(a, request, &of_a) == 0, has_b = ::ioctl(b, request, &of_b) == 0;
  return has_a == has_b && (!has_a || same(of_a, of_b));
}

}  // namespace

bool have_same_attributes(int a, int b) {
  struct stat of_a {
  }, of_b{};
  if (::fstat(a, &of_a) != 0 || ::fstat(b, &of_b) != 0) return false;
  if (of_a.st_uid != of_b.st_uid || of_a.st_gid != of_b.st_gid || of_a.st_mode != of_b.st_mode) {
    return false;
  }
  const std::optional<Attributes> attributes = attributes_of(a);
  if (!attributes || attributes != attributes_of(b)) return false;
  return same_by_ioctl<long>(a, b, FS_IOC_GETFLAGS, [](long x, long y) { return x == y; }) &&
         same_by_ioctl<fsxattr>(a, b, FS_IOC_FSGETXATTR, [](const fsxattr& x, const fsxattr& y) {
           return x.fsx_projid == y.fsx_projid;
         });
}

}  // namespace shardwise::detail
