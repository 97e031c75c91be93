#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// One of the transfers that processes carry out together, and where its sources and targets are.
struct Transfer {
  const TransferPlan* plan;
  DType dtype;
  std::function<DeviceId(std::int64_t source)> source_device;
  std::function<DeviceId(std::int64_t target)> target_device;
  std::function<ConstBoxView(std::int64_t source)> memory;  ///< of sources of this process
};

/// What the targets of this process take from sources of others, fetched: every process finds in
/// the same plans what it sends to whom and what it gets from whom, so elements alone are sent, and
/// each process gets one message from another one. A box of a source goes to a process once,
/// whatever the number of its targets. Immutable.
class RemoteCopies {
 public:
  /// Every process makes it, with the same plans, which must outlive it; waits until what it sends
  /// was taken. Throws cancelled where another process fails or does not come.
  RemoteCopies(std::span<const Transfer> transfers, const Devices& devices);

  /// Where a copy of a transfer, by number, to a target of this process is taken from.
  ConstBoxView from(std::size_t transfer, const Copy& copy) const;

 private:
  struct Key {  // a box that is taken
    std::size_t transfer;
    std::int64_t source;
    Box box;

    bool operator<(const Key& other) const;
  };

  std::span<const Transfer> transfers_;
  std::vector<std::vector<std::byte>> messages_;
  std::map<Key, const std::byte*> fetched_;
};

/// Calls it. If it throws, of whatever type, the other processes fail in what they do with the
/// devices.
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
