#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/loader/source.h"

namespace shardwise {

/// Writes one whole record: `record[f]` is zeroed memory for field f, row-major, native endian.
/// Called by several threads at the same time, for any record. What it throws is an error of the
/// record.
using FillRecord = std::function<void(const Sample& sample, std::span<std::byte* const> record)>;

/// A record's own extent in dim 0 of a field that is ragged. Called as FillRecord.
using RecordLength = std::function<std::int64_t(const Sample& sample, std::size_t field)>;

/// Records that a function makes: for a format that is not here. The function fills whole records,
/// once for all the boxes that are asked for; the source cuts them. `length` is needed where a
/// field is ragged.
///
/// Throws invalid_argument where `fill` or a needed `length` is empty, there is no field, a name
/// comes twice, or size < 0. An exception that is none of shardwise's becomes an io error with its
/// text.
///
///   const auto squares = callback_source({{"x", DType::i64, {}}}, 100,
///                                        [](const Sample& sample, auto record) {
///                                          const std::int64_t x = sample.record * sample.record;
///                                          std::memcpy(record[0], &x, sizeof x);
///                                        });
std::shared_ptr<const Source> callback_source(std::vector<Field> fields, std::int64_t size,
                                              FillRecord fill, RecordLength length = {});

}  // namespace shardwise
