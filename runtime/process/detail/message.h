#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/process/process_group.h"

namespace shardwise::detail {

/// The operations of a process group that send messages.
enum class Operation : std::uint32_t { broadcast, gather, all_gather, barrier, exchange, agree };

/// "all_gather", ...; "an unknown operation" for a number that is none.
const char* name(Operation operation);

/// The operation that a message belongs to. Both sides work it out, and it must be the same.
struct MessageMark {
  Operation operation;
  std::uint64_t tag;  ///< the root of a broadcast or gather; what exchange() was given

  bool operator==(const MessageMark&) const = default;
};

/// Bytes that a mark takes at the end of a message.
inline constexpr std::size_t kMarkBytes = 16;

/// Puts the mark at the end.
void seal(Bytes& message, const MessageMark& mark);

/// Removes it again. Throws corrupt if there is none.
MessageMark unseal(Bytes& message);

/// Byte strings, each after its size.
Bytes pack(std::span<const Bytes> parts);

/// The same ones. Throws corrupt if `packed` is not exactly `count` of them.
std::vector<Bytes> unpack(std::span<const std::byte> packed, std::size_t count);

/// A subject, and facts of it, as bytes.
Bytes encode_facts(const std::string& subject, std::span<const ProcessGroup::Fact> facts);

struct Facts {
  std::string subject;
  std::vector<std::pair<std::string, std::uint64_t>> facts;

  bool operator==(const Facts&) const = default;
};

/// The same. Throws corrupt if the bytes are no facts.
Facts decode_facts(std::span<const std::byte> message);

}  // namespace shardwise::detail
