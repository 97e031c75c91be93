#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/program/detail/remote_copies.h"

namespace shardwise::detail {

/// One process's part of one phase of a move of several processes.
struct PhaseMessages {
  /// A group of a part's phase, by numbers; the transfers of `remote` in their order.
  struct Group {
    std::size_t part, group;
  };
  /// A target of this process, in the group of a transfer.
  struct Target {
    std::size_t transfer;
    std::int64_t target;
  };

  std::vector<Group> groups;
  std::vector<Target> targets;
  RemotePlan remote;
};

/// One process's part of a program of several processes: worked out once, carried out as often as
/// wanted. Immutable.
class ProgramMessages {
 public:
  ProgramMessages(const Program& program, std::size_t first_step, const Devices& devices);

  /// The positions of this process that a step fills, if it is no move.
  std::span<const std::int64_t> positions(std::size_t step) const { return positions_[step]; }

  /// By phase, of a move.
  std::span<const PhaseMessages> phases(std::size_t step) const { return phases_[step]; }

  /// Whether it was made for devices that are spread like these.
  bool is_for(const Devices& devices) const;

 private:
  std::int64_t devices_;
  int processes_, rank_;
  std::vector<std::vector<std::int64_t>> positions_;  ///< by step
  std::vector<std::vector<PhaseMessages>> phases_;    ///< by step
};

}  // namespace shardwise::detail
