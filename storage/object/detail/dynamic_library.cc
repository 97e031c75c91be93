#include "shardwise/storage/object/detail/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

DynamicLibrary::DynamicLibrary(const char* name, std::string_view needed)
    : name_(name), needed_(needed), library_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
  if (library_ != nullptr) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("load {}: found {}, needed {}", name_, dlerror(), needed_));
}

void* DynamicLibrary::address_of(const char* name) const {
  void* const address = dlsym(library_, name);
  if (address != nullptr) return address;
  throw Error(ErrorCode::unsupported,
              fmt::format("load {}: found a library without {}, needed {}", name_, name, needed_));
}

}  // namespace shardwise::detail
