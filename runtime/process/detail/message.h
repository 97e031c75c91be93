#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// The operations of a process group that send messages.
enum class Operation : std::uint32_t { broadcast, gather, all_gather, barrier, exchange, agree };

/// "all_gather", ...; "an unknown operation" for an invalid number.
const char* name(Operation operation);

/// The operation that a message belongs to. Both sides compute it, and must agree.
struct MessageMark {
  Operation operation;
  std::uint64_t tag;  ///< the root of a broadcast or gather; the argument of exchange()

  bool operator==(const MessageMark&) const = default;
};

/// Puts a hash of the bytes at their end.
void seal(Bytes& message);

/// Removes it again. Throws corrupt if the bytes are not those that were sealed.
void unseal(Bytes& message);

/// Bytes that a mark and the hash take at the end of a message.
inline constexpr std::size_t kMarkBytes = 24;

/// Puts the mark at the end, and a hash.
void seal(Bytes& message, const MessageMark& mark);

/// Removes both again. Throws corrupt if they are not there.
MessageMark unseal_marked(Bytes& message);

/// Byte strings, each after its size.
Bytes pack(std::span<const Bytes> parts);

/// The same ones. Throws corrupt if `packed` is not exactly `count` of them.
std::vector<Bytes> unpack(std::span<const std::byte> packed, std::size_t count);

/// A common task of ranks, and the facts that must be the same on all of them.
struct CommonTask {
  std::string name;
  std::vector<std::pair<std::string, std::string>> facts;

  bool operator==(const CommonTask&) const = default;
};

Bytes encode(const CommonTask& task);

/// Inverse. Throws corrupt if the bytes are not a task.
CommonTask decode_task(std::span<const std::byte> message);

/// The difference between two ranks, for people; "" if they agree. Facts are compared if both have
/// the same ones, or tasks of one name.
std::string difference(const CommonTask& found, int from, const CommonTask& needed, int own);

/// The failure of a call.
struct Failure {
  std::optional<ErrorCode> code;  ///< absent for an error that is not one of Shardwise's
  int system_error = 0;
  std::string text;
  std::vector<int> ranks;  ///< those that failed, or did not come

  bool operator==(const Failure&) const = default;
};

/// Keeps 64 KiB of a long text.
Bytes encode(const Failure& failure);

/// Inverse. Throws corrupt if the bytes are not a failure.
Failure decode_failure(std::span<const std::byte> message);

/// "ranks 1 and 2 of 4 did not come within 0.5 s".
std::string missing_text(const std::vector<int>& ranks, int size,
                         std::chrono::milliseconds timeout);

/// "0.5 s".
std::string seconds_text(std::chrono::milliseconds time);

}  // namespace shardwise::detail
