#include "shardwise/runtime/process/rendezvous.h"

#include <fmt/format.h>

#include <exception>
#include <utility>

namespace shardwise {

Bytes GroupRendezvous::agree(const Work& work, const Merge& merge) const {
  try {
    std::vector<Bytes> all;
    if (work) all = group_.gather(work());
    Bytes said;
    if (rank() == 0) said = merge(std::move(all));
    return group_.broadcast(std::move(said));
  } catch (const std::exception& e) {
    group_.abort(fmt::format("{}: {}", subject_, e.what()));
    throw;
  } catch (...) {
    group_.abort(fmt::format("{}: a function threw something that is no exception", subject_));
    throw;
  }
}

}  // namespace shardwise
