#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// One of the transfers that processes execute together, and the places of its sources and targets.
struct Transfer {
  const TransferPlan* plan;
  DType dtype;
  std::function<DeviceId(std::int64_t source)> source_device;
  std::function<DeviceId(std::int64_t target)> target_device;
};

/// The memory of a transfer's source, by number, for sources of this process.
using TransferMemory = std::function<ConstBoxView(std::size_t transfer, std::int64_t source)>;

/// The messages that a process exchanges with others to fill its targets: planned once, exchanged
/// as often as wanted. All processes have the same plans, and derive from them which elements go
/// from which process to which. So messages hold only elements, and at most one goes from a process
/// to another. A box of a source goes to a process once, even if the process has several targets
/// for it. Immutable, thread-safe.
class RemotePlan {
 public:
  /// Reads the transfers now and keeps no reference to them.
  RemotePlan(std::span<const Transfer> transfers, const Devices& devices);

  /// A box of a source.
  struct Key {
    std::size_t transfer;
    std::int64_t source;
    Box box;

    bool operator<(const Key& other) const;
  };

  /// A part of a message.
  struct Part {
    Key key;
    std::size_t element_bytes;
    std::size_t offset;  ///< in the message
  };
  struct Message {
    int process;  ///< its receiver or sender
    std::vector<Part> parts;
    std::size_t bytes;
  };

  std::span<const Message> outgoing() const { return outgoing_; }
  std::span<const Message> incoming() const { return incoming_; }

  /// The place of a box of another process's source: an incoming message, and an offset.
  struct Place {
    std::size_t message, offset;
  };
  /// Null if the source is of this process.
  const Place* find(std::size_t transfer, const Copy& copy) const;

  /// A message's bytes, to be sent. `memory` gives the sources, of this process.
  static std::vector<std::byte> pack(const Message& outgoing, const TransferMemory& memory);

  /// Throws cancelled if an incoming message does not have the planned number of bytes.
  static void check(const Message& incoming, std::size_t found_bytes, int own_rank);

 private:
  std::vector<Message> outgoing_, incoming_;
  std::map<Key, Place> places_;
};

/// The boxes that targets of this process take from sources of others, fetched. Immutable.
class RemoteCopies {
 public:
  /// Every process makes it, with plans of the same transfers and the same tag, which names the
  /// moved data (ProcessGroup::exchange). Waits until its own messages were taken. `plan` must
  /// outlive it. Throws cancelled if another process fails, does not come, or moves something else.
  RemoteCopies(const RemotePlan& plan, const Devices& devices, std::uint64_t tag,
               TransferMemory memory);

  /// The source of a copy, by number, of a transfer to a target of this process.
  ConstBoxView from(std::size_t transfer, const Copy& copy) const;

 private:
  const RemotePlan& plan_;
  TransferMemory memory_;
  std::vector<std::vector<std::byte>> messages_;
};

/// Calls work(). If it throws, the other processes' operations on the devices fail, too.
template <class Work>
void together(const Devices& devices, const Work& work) {
  try {
    work();
  } catch (const std::exception& e) {
    devices.group().abort(e.what());
    throw;
  } catch (...) {
    devices.group().abort("an exception of an unknown type");
    throw;
  }
}

}  // namespace shardwise::detail
