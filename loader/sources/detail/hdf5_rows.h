#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shardwise/loader/detail/files/file_rows.h"
#include "shardwise/storage/detail/hdf5_reader.h"

namespace shardwise::detail {

/// True if each row of a chunked dataset is in a single chunk, with its elements contiguous.
bool has_whole_rows(const Hdf5Reader& dataset);

/// Rows of a dataset whose chunks are stored unfiltered. `file` must hold all of them.
std::unique_ptr<const RowReader> chunk_rows(std::shared_ptr<const HeldFile> file,
                                            const Hdf5Reader& dataset);

/// Rows of a dataset that only the library can read. They are read many at a time and kept: all of
/// them, if the budget allows, else the last ones used.
std::unique_ptr<const RowReader> library_rows(Hdf5Reader dataset, HoldBudget& budget);

}  // namespace shardwise::detail
