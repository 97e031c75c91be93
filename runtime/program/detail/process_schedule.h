#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/program/detail/schedule.h"

namespace shardwise::detail {

/// One process's messages in one phase of a move.
struct PhaseMessages {
  RemotePlan remote;            ///< its transfers: by part, and in a part by group
  std::size_t groups;           ///< of each part
  std::uint64_t number = 0;     ///< of the messages, in the exchange of the section
  std::size_t first_event = 0;  ///< of the incoming ones, in the section

  std::size_t transfer(std::size_t part, std::size_t group) const { return part * groups + group; }
};

/// One process's part of a program of several processes: computed once, run as often as wanted.
/// Immutable.
///
/// The steps are sections, which follow each other: a loop, or the steps between two loops. The
/// tasks of a section wait for each other as those of a Schedule. In each phase of a move, one task
/// sends the data for each peer, and one event is each peer's message. A loop is a section because
/// it waits for messages of its own: a peer may send these only after it has run the steps before
/// the loop.
class ProcessSchedule {
 public:
  ProcessSchedule(const Program& program, std::size_t first_step, const MemoryReuse& reuse,
                  const Devices& devices);

  /// A message from another process.
  struct Event {
    TaskGraph::TaskId task;
    std::size_t step, phase;
    std::size_t message;     ///< of the phase's incoming ones
    std::int64_t users = 0;  ///< tasks that read it
  };

  struct Section {
    std::size_t first_step = 0, last_step = 0;  ///< the last one not included
    bool is_loop = false;                       ///< of one step; the rest is empty

    TaskGraph graph = {};
    std::vector<ProgramTask> tasks = {};               ///< by TaskGraph::TaskId
    std::vector<std::vector<std::size_t>> reads = {};  ///< by task: its events
    std::vector<Event> events = {};                    ///< in the order of the program
    std::uint64_t messages = 0;  ///< numbers of messages; the same on all processes
  };
  std::span<const Section> sections() const { return sections_; }

  /// The messages of a move, by phase.
  std::span<const PhaseMessages> phases(std::size_t step) const { return phases_[step]; }

  /// True if it was made for devices that are spread like these.
  bool is_for(const Devices& devices) const;

 private:
  std::int64_t devices_;
  int processes_, rank_;
  std::vector<std::vector<PhaseMessages>> phases_;  ///< by step
  std::vector<Section> sections_;
};

}  // namespace shardwise::detail
