#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace shardwise::detail {

/// A shared library that is opened when its first user needs it, and never closed: programs without
/// URLs load neither it nor its dependencies. Immutable.
class DynamicLibrary {
 public:
  /// Throws unsupported with `needed`, which says who needs what: "libcurl (Debian's libcurl4) for
  /// s3:// URLs".
  DynamicLibrary(const char* name, std::string_view needed);

  /// Sets `function` to the library's. Throws unsupported if it has none of that name.
  template <class Function>
  void find(Function& function, const char* name) const {
    static_assert(std::is_pointer_v<Function>);
    function = reinterpret_cast<Function>(address_of(name));
  }

 private:
  void* address_of(const char* name) const;

  std::string name_, needed_;
  void* library_;
};

}  // namespace shardwise::detail
