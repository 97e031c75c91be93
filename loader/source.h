#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// One field of every record: "image", u8, [28, 28]; "label", u8, [].
struct Field {
  std::string name;
  DType dtype;
  Shape shape;  ///< of one record

  /// Records differ in dim 0, of which shape[0] is the most: Source::length tells each one's own.
  /// Past a record's end all reads as zeros.
  bool ragged = false;

  bool operator==(const Field&) const = default;
};

/// Which delivery of a record is meant. Whatever a source or a stage draws at random is a function
/// of these three numbers: so every mesh, thread and resumed run draws the same.
struct Sample {
  std::int64_t record = 0;  ///< 0 <= record < size()
  std::int64_t epoch = 0;   ///< which pass over the source
  std::uint64_t seed = 0;   ///< of the run
};

/// A box of one field of a record (indices within the record), and where it goes: packed row-major,
/// native endian.
struct FieldBox {
  std::size_t field;
  BoxView to;
};

/// Records that can be read in any order: the one thing that the loader asks of a data set. What
/// changes records (filter, mix, crop) is a source, too.
///
/// Thread-safe: reads may run together, of different records or of the same.
class Source {
 public:
  virtual ~Source() = default;

  virtual std::int64_t size() const = 0;

  /// Valid as long as the source.
  virtual std::span<const Field> fields() const = 0;

  /// Copies boxes of one record to their places. The loader asks once per row of a batch, on one
  /// thread, for all boxes that the devices of this process need: so a source that must decode a
  /// record decodes it once, and one that can read less than a record reads only the boxes. A field
  /// may come several times or not at all. Requires valid arguments: the loader checks them. Throws
  /// io or corrupt, naming file, record and offset.
  virtual void read(const Sample& sample, std::span<const FieldBox> boxes) const = 0;

  /// A hint: this thread will soon read the record. Takes no time to speak of: a source in memory
  /// fetches it into the cache, others may do nothing.
  virtual void will_read(const Sample&) const {}

  /// The record's own extent in dim 0 of a field that is ragged; shape[0] of one that is not.
  /// Cheap beside read(). Throws as it does.
  virtual std::int64_t length(const Sample& sample, std::size_t field) const;

  /// Equal for equal data, whatever file it comes from: a hash of the size, of the fields' types
  /// and shapes (not their names) and of a bounded number of sampled records, which it reads. A
  /// resumed run compares it. That a record is bad (is_bad_record) is a fact as others are.
  virtual std::uint64_t fingerprint() const;

  /// Whether which data a record is made of depends on the epoch or the seed, as after shuffle()
  /// and mix(): what looks at every record once (filter) cannot stand after such a source. Values
  /// that are drawn anew (a random crop) are no matter.
  virtual bool changes_with_epoch() const { return false; }

  /// In words what was made of the data: "shuffle(pack(text, window 64, documents 1024, records))".
  /// Equal for equal stages and parameters, whatever the data (that is fingerprint()), and without
  /// paths. A resumed run compares it. "records" where nothing was made of them.
  ///
  /// `samples`: how many of the source's samples may have been delivered, those numbered (epoch *
  /// size() + record) below. What takes effect after them (MixChange) is left out, so it may still
  /// be changed.
  virtual std::string describe(std::int64_t samples) const;

  /// Number of the field. Throws not_found, listing the fields there are.
  std::size_t field_index(std::string_view name) const;

  /// One box of one record of epoch 0. Throws as read() does.
  void read_box(std::size_t field, std::int64_t record, const BoxView& to) const;
};

/// Whether an error of read() is the record's (corrupt, io, not_found), which a loader may pass
/// over (LoaderOptions::bad_records). Others end a run.
bool is_bad_record(ErrorCode code);

/// Several sources of equal size side by side: the fields of all of them (images and labels, say).
/// Throws invalid_argument where there is none, sizes differ or a field's name comes twice.
std::shared_ptr<const Source> zip(std::vector<std::shared_ptr<const Source>> sources);

/// Records in memory: `data` holds `size` records one after the other, each row-major. Throws
/// invalid_argument where its bytes are not size * record bytes.
std::shared_ptr<const Source> memory_source(Field field, std::int64_t size,
                                            std::vector<std::byte> data);

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

/// Several sources one after the other: record i of the second is record sources[0]->size() + i.
/// A source is told the record's number in it, with epoch and seed as they are. Of a ragged field
/// shape[0] may differ: the result has the most.
///
/// Throws invalid_argument where there is none, one is null, or names, types, shapes or the order
/// of fields differ (the message names both).
///
///   const auto both = concat({open_npy("a.npy", "x"), open_npy("b.npy", "x")});
std::shared_ptr<const Source> concat(std::vector<std::shared_ptr<const Source>> sources);

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
