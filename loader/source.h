#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {

/// One field of every record: "image", u8, [28, 28]; "label", u8, [].
struct Field {
  std::string name;
  DType dtype;
  Shape shape;  ///< of one record

  bool operator==(const Field&) const = default;
};

/// Records that can be read in any order: the one thing that the loader asks of a data set.
///
/// Thread-safe: reads may run together.
class Source {
 public:
  virtual ~Source() = default;

  virtual std::int64_t size() const = 0;

  /// Valid as long as the source.
  virtual std::span<const Field> fields() const = 0;

  /// Copies the elements of `to.box` (indices within one record) of a field of one record to
  /// to.data, native endian. Requires valid arguments: the loader checks them. Throws io or
  /// corrupt, naming file, record and offset.
  virtual void read(std::size_t field, std::int64_t record, const BoxView& to) const = 0;

  /// Equal for equal data, whatever file it comes from: a hash of the size, of the fields' types
  /// and shapes (not their names) and of a bounded number of sampled records, which it reads. A
  /// resumed run compares it. Throws as read() does.
  virtual std::uint64_t fingerprint() const;

  /// Number of the field. Throws not_found, listing the fields there are.
  std::size_t field_index(std::string_view name) const;
};

/// Several sources of equal size side by side: the fields of all of them (images and labels, say).
/// Throws invalid_argument where there is none, sizes differ or a field's name comes twice.
std::shared_ptr<const Source> zip(std::vector<std::shared_ptr<const Source>> sources);

/// Records in memory: `data` holds `size` records one after the other, each row-major. Throws
/// invalid_argument where its bytes are not size * record bytes.
std::shared_ptr<const Source> memory_source(Field field, std::int64_t size,
                                            std::vector<std::byte> data);

}  // namespace shardwise
