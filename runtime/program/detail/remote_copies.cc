#include "shardwise/runtime/program/detail/remote_copies.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "shardwise/runtime/process/detail/message.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

bool RemotePlan::Key::operator<(const Key& other) const {
  const auto place = [](const Key& key) { return std::pair(key.transfer, key.source); };
  if (place(*this) != place(other)) return place(*this) < place(other);
  for (std::size_t d = 0; d < box.rank(); ++d) {
    const std::pair a(box.begin(d), box.end(d)), b(other.box.begin(d), other.box.end(d));
    if (a != b) return a < b;
  }
  return false;
}

RemotePlan::RemotePlan(std::span<const Transfer> transfers, const Devices& devices) {
  const ProcessGroup& group = devices.group();
  if (group.size() == 1) return;
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
  const auto messages = [&](const std::map<int, std::set<Key>>& by_process) {
    std::vector<Message> list;
    for (const auto& [process, keys] : by_process) {
      Message message{process, {}, 0};
      for (const Key& key : keys) {
        const std::size_t element_bytes = size_bytes(transfers[key.transfer].dtype);
        // Reductions read elements in place, so each offset is a multiple of the element size.
        message.bytes = (message.bytes + element_bytes - 1) / element_bytes * element_bytes;
        message.parts.push_back({key, element_bytes, message.bytes});
        message.bytes += num_bytes(key.box.shape(), element_bytes);
      }
      list.push_back(std::move(message));
    }
    return list;
  };
  outgoing_ = messages(to_send);
  incoming_ = messages(to_get);
  for (std::size_t m = 0; m < incoming_.size(); ++m) {
    for (const Part& part : incoming_[m].parts) places_.emplace(part.key, Place{m, part.offset});
  }
}

const RemotePlan::Place* RemotePlan::find(std::size_t transfer, const Copy& copy) const {
  if (places_.empty()) return nullptr;
  const auto found = places_.find({transfer, copy.source, copy.box});
  return found == places_.end() ? nullptr : &found->second;
}

std::vector<std::byte> RemotePlan::pack(const Message& outgoing, const TransferMemory& memory) {
  std::vector<std::byte> bytes;
  bytes.reserve(outgoing.bytes + kMarkBytes);
  bytes.resize(outgoing.bytes);
  for (const Part& part : outgoing.parts) {
    copy_box(part.key.box, part.element_bytes, memory(part.key.transfer, part.key.source),
             {bytes.data() + part.offset, part.key.box});
  }
  return bytes;
}

void RemotePlan::check(const Message& incoming, std::size_t found_bytes, int own_rank) {
  if (found_bytes == incoming.bytes) return;
  throw Error(
      ErrorCode::cancelled,
      fmt::format("move data between processes: found {} bytes from process {}, needed {}, as "
                  "process {} moves the same array",
                  found_bytes, incoming.process, incoming.bytes, own_rank));
}

RemoteCopies::RemoteCopies(const RemotePlan& plan, const Devices& devices, std::uint64_t tag,
                           TransferMemory memory)
    : plan_(plan), memory_(std::move(memory)) {
  const ProcessGroup& group = devices.group();
  if (group.size() == 1) return;
  std::vector<ProcessGroup::Outgoing> outgoing;
  for (const RemotePlan::Message& message : plan.outgoing()) {
    outgoing.push_back({message.process, RemotePlan::pack(message, memory_)});
  }
  std::vector<int> from;
  for (const RemotePlan::Message& message : plan.incoming()) from.push_back(message.process);
  messages_ = group.exchange(std::move(outgoing), from, {}, tag);
  for (std::size_t i = 0; i < from.size(); ++i) {
    RemotePlan::check(plan.incoming()[i], messages_[i].size(), group.rank());
  }
}

ConstBoxView RemoteCopies::from(std::size_t transfer, const Copy& copy) const {
  const RemotePlan::Place* const place = plan_.find(transfer, copy);
  if (place == nullptr) return memory_(transfer, copy.source);
  return {messages_[place->message].data() + place->offset, copy.box};
}

}  // namespace shardwise::detail
