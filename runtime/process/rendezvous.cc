#include "shardwise/runtime/process/rendezvous.h"

#include <fmt/format.h>

#include <exception>
#include <string_view>
#include <utility>

namespace shardwise {

namespace {

std::string reason(const std::string& subject, std::string_view text) {
  return subject.empty() ? std::string(text) : fmt::format("{}: {}", subject, text);
}

}  // namespace

Bytes GroupRendezvous::agree(const Work& work, const Merge& merge) const {
  try {
    std::vector<Bytes> all;
    if (work) all = group_.gather(work());
    Bytes said;
    if (rank() == 0) said = merge(std::move(all));
    return group_.broadcast(std::move(said));
  } catch (const std::exception& e) {
    group_.abort(reason(subject_, e.what()));
    throw;
  } catch (...) {
    group_.abort(reason(subject_, "a function threw something that is no exception"));
    throw;
  }
}

}  // namespace shardwise
