#include "shardwise/runtime/program/detail/remote_copies.h"

#include <fmt/format.h>

#include <set>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

bool RemoteCopies::Key::operator<(const Key& other) const {
  const auto place = [](const Key& key) { return std::pair(key.transfer, key.source); };
  if (place(*this) != place(other)) return place(*this) < place(other);
  for (std::size_t d = 0; d < box.rank(); ++d) {
    const std::pair a(box.begin(d), box.end(d)), b(other.box.begin(d), other.box.end(d));
    if (a != b) return a < b;
  }
  return false;
}

RemoteCopies::RemoteCopies(std::span<const Transfer> transfers, const Devices& devices)
    : transfers_(transfers) {
  const ProcessGroup& group = devices.group();
  if (group.size() == 1) return;
  const auto bytes_of = [&](const Key& key) {
    return num_bytes(key.box.shape(), size_bytes(transfers[key.transfer].dtype));
  };
  // By the other process, in the order of keys, which is the same for both.
  std::map<int, std::set<Key>> to_send, to_get;
  for (std::size_t t = 0; t < transfers.size(); ++t) {
    for (const Copy& copy : transfers[t].plan->copies()) {
      const int source = devices.process_of(transfers[t].source_device(copy.source));
      const int target = devices.process_of(transfers[t].target_device(copy.target));
      if (source == target || copy.box.empty()) continue;
      if (source == group.rank()) to_send[target].insert({t, copy.source, copy.box});
      if (target == group.rank()) to_get[source].insert({t, copy.source, copy.box});
    }
  }
  std::vector<ProcessGroup::Outgoing> outgoing;
  for (const auto& [process, keys] : to_send) {
    Bytes& bytes = outgoing.emplace_back(ProcessGroup::Outgoing{process, {}}).bytes;
    for (const Key& key : keys) {
      const std::size_t at = bytes.size();
      bytes.resize(at + bytes_of(key));
      copy_box(key.box, size_bytes(transfers[key.transfer].dtype),
               transfers[key.transfer].memory(key.source), {bytes.data() + at, key.box});
    }
  }
  std::vector<int> from;
  from.reserve(to_get.size());
  for (const auto& [process, keys] : to_get) from.push_back(process);
  messages_ = group.exchange(std::move(outgoing), from);
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t at = 0;
    for (const Key& key : to_get[from[i]]) {
      fetched_.emplace(key, messages_[i].data() + at);
      at += bytes_of(key);
    }
    if (at == messages_[i].size()) continue;
    throw Error(ErrorCode::cancelled,
                fmt::format("move data between processes: process {} sent {} bytes, process {} "
                            "needs {}: both must move the same array in the same way",
                            from[i], messages_[i].size(), group.rank(), at));
  }
}

ConstBoxView RemoteCopies::from(std::size_t transfer, const Copy& copy) const {
  const auto found = fetched_.find({transfer, copy.source, copy.box});
  if (found == fetched_.end()) return transfers_[transfer].memory(copy.source);
  return {found->second, copy.box};
}

}  // namespace shardwise::detail
