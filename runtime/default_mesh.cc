#include "shardwise/runtime/default_mesh.h"

#include <mutex>
#include <utility>

namespace shardwise {
namespace {

struct Default {
  std::mutex mutex;
  std::optional<Mesh> mesh;
};

Default& the_default() {
  static Default value;
  return value;
}

}  // namespace

std::optional<Mesh> default_mesh() {
  const std::lock_guard lock(the_default().mutex);
  return the_default().mesh;
}

void set_default_mesh(std::optional<Mesh> mesh) {
  const std::lock_guard lock(the_default().mutex);
  the_default().mesh = std::move(mesh);
}

}  // namespace shardwise
