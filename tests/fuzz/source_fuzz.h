#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/require.h"
#include "loader/sources/bytes_file.h"
#include "shardwise/loader/source.h"

namespace shardwise {

/// An Error as a user may see it.
inline void require_readable(const Error& error) {
  const std::string_view message = error.what();
  require(error.code() == ErrorCode::corrupt || error.code() == ErrorCode::unsupported ||
              error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::not_found,
          "code", message);
  require(message.find('\n') == std::string_view::npos, "message of several lines", message);
  require(message.size() < 3000, "long message", message);
}

/// The first half of a field's dim 0, or all of a scalar, equals that part of the whole; elements
/// past the record's end are zeros.
inline void require_agreement(const Source& source, std::size_t field, std::int64_t record,
                              const Bytes& whole) {
  const Field& its = source.fields()[field];
  const std::int64_t length = source.length({.record = record}, field);
  if (its.shape.empty()) return;
  require(length >= 0 && length <= its.shape[0], "length", its.name);
  const std::size_t row = its.shape[0] == 0 ? 0 : whole.size() / as_size(its.shape[0]);
  if (its.ragged) {
    require(std::all_of(whole.begin() + static_cast<std::ptrdiff_t>(as_size(length) * row),
                        whole.end(), [](std::byte byte) { return byte == std::byte{0}; }),
            "zeros", its.name);
  }
  Box box = Box::whole(its.shape);
  box.set(0, its.shape[0] / 3, its.shape[0] / 2);
  Bytes part(as_size(box.extent(0)) * row);
  source.read_box(field, record, {part.data(), box});
  require(std::equal(part.begin(), part.end(),
                     whole.begin() + static_cast<std::ptrdiff_t>(as_size(box.begin(0)) * row)),
          "box", its.name);
}

/// Reads the first records of a source.
inline void require_records(const Source& source) {
  constexpr std::int64_t kMostRecords = 100;
  for (std::int64_t record = 0; record < std::min(source.size(), kMostRecords); ++record) {
    for (std::size_t field = 0; field < source.fields().size(); ++field) {
      try {
        const Field& its = source.fields()[field];
        Bytes whole(num_bytes(its.shape, size_bytes(its.dtype)));
        source.read_box(field, record, {whole.data(), Box::whole(its.shape)});
        require_agreement(source, field, record, whole);
      } catch (const Error& error) {
        require_readable(error);
      }
    }
  }
}

/// open(file, hold_bytes) is refused with an Error or gives a source that can be read, the same
/// whether it keeps its bytes or not.
template <class Open>
void check_source(std::string_view content, Open&& open) {
  for (const std::size_t hold_bytes : {std::size_t{0}, std::size_t{1} << 20}) {
    std::shared_ptr<const Source> source;
    try {
      source = open(file_of(content), hold_bytes);
    } catch (const Error& error) {
      require_readable(error);
      continue;
    }
    require_records(*source);
  }
}

}  // namespace shardwise
