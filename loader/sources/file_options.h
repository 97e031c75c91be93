#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace shardwise {

/// Most bytes of its files that a source keeps in memory, if nothing else is said. A source whose
/// data is larger keeps none, and asks the system for each record.
///
/// Kept is what was once read, in blocks of 1 MiB: a record is then a copy within memory, a tenth
/// of a system call. Such a block stays as it was when the file is changed later; what is cut from
/// a file before it was read is an error, as ever.
inline constexpr std::size_t kDefaultHoldBytes = std::size_t{1} << 30;

/// Told now and then while an index of a file is made, on the thread that opens the file. What it
/// throws ends the opening.
using IndexProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)>;

}  // namespace shardwise
