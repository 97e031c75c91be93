#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/loader/source.h"

namespace shardwise {

/// One field of one record, whole, for functions that are given records.
struct FieldValue {
  const Field* field;               ///< valid as long as the source
  std::span<const std::byte> data;  ///< row-major, native endian; empty where not asked for
  std::int64_t length;              ///< the record's own in dim 0; shape[0] if not ragged
};

/// A place for one field of one record, whole.
struct FieldBuffer {
  const Field* field;
  std::span<std::byte> data;  ///< row-major, native endian, aligned to the element; not set to zero

  /// Of a ragged field: what the record's own extent in dim 0 is, to be set. Rows past it are set
  /// to zero afterwards. Begins as shape[0].
  std::int64_t length;
};

}  // namespace shardwise
