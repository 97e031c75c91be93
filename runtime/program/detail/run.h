#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/program/detail/schedule.h"
#include "shardwise/runtime/program/detail/storage.h"

namespace shardwise {

/// Runs the tasks of a schedule of this program on the workers of `devices`, and counts the traffic
/// of its moves there once all are done. Requires every value that they name to be bound. With
/// several processes `tag` names the program: processes that exchange data for different ones get
/// an error (ProcessGroup::exchange).
///
/// An exception of a step ends the run and reaches the caller with step and device in its message.
/// An Error keeps its code. An exception of the standard library keeps its type, and any other
/// exception becomes a std::runtime_error; both hold the original (std::nested_exception).
/// std::bad_alloc stays unchanged.
void run(const Program& program, const Schedule& schedule, const Storage& storage,
         const Devices& devices, std::uint64_t tag = 0);

/// The same without the traffic: for a program inside of another one.
void run_steps(const Program& program, const Schedule& schedule, const Storage& storage,
               const Devices& devices, std::uint64_t tag);

/// Throws the exception that is being handled again, with `where` before its message, as described
/// at run().
[[noreturn]] void rethrow(const std::string& where);

/// Adds the bytes of moves, times some factor, to the counters of the devices: moves of the steps
/// from `first` on. Loops count their own.
void count_traffic(const Program& program, std::size_t first, const Devices& devices,
                   std::size_t times);

/// Adds the bytes of a move, times some factor, to the counters of the devices.
void count_traffic(const MovePlan& plan, const Devices& devices, std::size_t times = 1);

}  // namespace shardwise
