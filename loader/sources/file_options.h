#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace shardwise {

/// Default for the most bytes of its files that a source keeps in memory. A source with more data
/// keeps none, and asks the system for each record.
///
/// Data is kept once it is read, in blocks of 1 MiB: reading a record is then a copy within memory,
/// which costs a tenth of a system call. A kept block does not change if the file changes later; if
/// a part is cut off a file before it is read, reading it is an error.
inline constexpr std::size_t kDefaultHoldBytes = std::size_t{1} << 30;

/// Called now and then while an index of a file is made, on the thread that opens the file. An
/// exception from it ends the opening.
using IndexProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)>;

}  // namespace shardwise
