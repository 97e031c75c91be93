#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

  /// Records differ in dim 0: shape[0] is the largest extent, Source::length gives each record's
  /// own. Past a record's end all elements read as zeros.
  bool ragged = false;

  bool operator==(const Field&) const = default;
};

/// One delivery of a record. All randomness of a source or stage is a function of these three
/// numbers, so every mesh, thread and resumed run draws the same.
struct Sample {
  std::int64_t record = 0;  ///< 0 <= record < size()
  std::int64_t epoch = 0;   ///< which pass over the source
  std::uint64_t seed = 0;   ///< of the run
};

/// A box of one field of a record (indices within the record), and the memory it is read to: packed
/// row-major, native endian.
struct FieldBox {
  std::size_t field;
  BoxView to;
};

/// Records that can be read in any order: the loader's view of a data set. Stages that change
/// records (filter, mix, crop) are sources, too.
///
/// Thread-safe: reads may run together, of different records or of the same.
class Source {
 public:
  virtual ~Source() = default;

  virtual std::int64_t size() const = 0;

  /// Valid as long as the source.
  virtual std::span<const Field> fields() const = 0;

  /// Copies boxes of one record to their places. The loader calls it once per row of a batch, on
  /// one thread, with all boxes that the devices of this process need. So a source that must decode
  /// a record decodes it once, and a source that can read less than a record reads only the boxes.
  /// A field may come several times or not at all. Requires valid arguments: the loader checks
  /// them. Throws io or corrupt, naming file, record and offset.
  virtual void read(const Sample& sample, std::span<const FieldBox> boxes) const = 0;

  /// A hint: this thread will soon read the record. It must take almost no time: a source in memory
  /// fetches the record into the cache; others may ignore it.
  virtual void will_read(const Sample&) const {}

  /// True if the source makes all records that a thread has named by will_read() at once, when that
  /// thread reads the first of them. A loader then names the records of a whole batch.
  virtual bool reads_together() const { return false; }

  /// The record's own extent in dim 0 of a ragged field; shape[0] of any other. Cheap compared with
  /// read(). Throws as read() does.
  virtual std::int64_t length(const Sample& sample, std::size_t field) const;

  /// Equal for equal data, whatever file it comes from: a hash of the size, of the fields' types
  /// and shapes (not their names) and of a bounded number of sampled records, which it reads. A
  /// resumed run compares it. If a sampled record is bad (is_bad_record), that is hashed, too.
  virtual std::uint64_t fingerprint() const;

  /// True if the epoch or the seed decides which data a record consists of, as after shuffle() and
  /// mix(). A stage that looks at every record once (filter) cannot follow such a source. Random
  /// values, such as a random crop, do not count.
  virtual bool changes_with_epoch() const { return false; }

  /// Describes the stages applied to the data: "shuffle(pack(text, window 64, documents 1024,
  /// records))"; "records" without stages. Equal for equal stages and parameters, whatever the data
  /// (that is fingerprint()), and without paths. A resumed run compares it.
  ///
  /// `samples`: the source's samples with numbers (epoch * size() + record) below this may have
  /// been delivered. A MixChange that takes effect after them is left out, so it may still be
  /// changed.
  virtual std::string describe(std::int64_t samples) const;

  /// Number of the field. Throws no_such_name, listing the source's fields.
  std::size_t field_index(std::string_view name) const;

  /// Reads one box of one record of epoch 0. Throws as read() does.
  void read_box(std::size_t field, std::int64_t record, const BoxView& to) const;
};

/// True if an error of read() concerns only the record (corrupt, io, not_found), so that a loader
/// may skip it (LoaderOptions::bad_records). Other errors end a run; so do those of a store that
/// does not answer, and of an object that has changed since it was opened.
bool is_bad_record(const Error& error);

/// Several sources of equal size side by side: the fields of all of them (images and labels, say).
/// Throws invalid_argument if there is no source, sizes differ or a field's name repeats.
std::shared_ptr<const Source> zip(std::vector<std::shared_ptr<const Source>> sources);

/// Records in memory: `data` holds `size` records one after the other, each row-major. Throws
/// invalid_argument if it does not have size * record bytes.
std::shared_ptr<const Source> memory_source(Field field, std::int64_t size,
                                            std::vector<std::byte> data);

/// The same for numbers: std::vector<float> for f32 and so on. Also throws invalid_argument if the
/// field has another type.
///
///   memory_source({"x", DType::f32, {2}}, 2, std::vector<float>{1, 2, 3, 4})->size();  // 2
template <std::ranges::contiguous_range Values>
requires TensorElement<std::ranges::range_value_t<Values>> std::shared_ptr<const Source>
memory_source(Field field, std::int64_t size, const Values& values) {
  check_dtype("memory source", field.dtype, dtype_of<std::ranges::range_value_t<Values>>());
  const auto bytes = std::as_bytes(std::span(std::ranges::data(values), std::ranges::size(values)));
  return memory_source(std::move(field), size, std::vector<std::byte>(bytes.begin(), bytes.end()));
}

/// One whole field of one record, for functions that take records.
struct FieldValue {
  const Field* field;               ///< valid as long as the source
  std::span<const std::byte> data;  ///< row-major, native endian; empty if not requested
  std::int64_t length;              ///< the record's own extent in dim 0; shape[0] if not ragged
};

/// Memory for one whole field of one record.
struct FieldBuffer {
  const Field* field;
  std::span<std::byte> data;  ///< row-major, native endian, aligned to the element; not set to zero

  /// For a ragged field, to be set to the record's own extent in dim 0. Rows past it are set to
  /// zero afterwards. It is shape[0] at first.
  std::int64_t length;
};

/// Several sources one after the other: record i of the second is record sources[0]->size() + i. A
/// source is asked for its own number of the record, with epoch and seed unchanged. shape[0] of a
/// ragged field may differ: the result has the largest.
///
/// Throws invalid_argument if there is no source, one is null, or names, types, shapes or the order
/// of fields differ (the message names both).
///
///   const auto both = concat({open_npy("a.npy", "x"), open_npy("b.npy", "x")});
std::shared_ptr<const Source> concat(std::vector<std::shared_ptr<const Source>> sources);

void concatenate(std::vector<std::shared_ptr<const Source>>) = delete;  // concat({a, b})

/// Writes one whole record: `record[f]` is zeroed memory for field f, row-major, native endian.
/// Called by several threads at the same time, for any record. An exception from it is an error of
/// the record.
using FillRecord = std::function<void(const Sample& sample, std::span<std::byte* const> record)>;

/// A record's own extent in dim 0 of a ragged field. Called as FillRecord.
using RecordLength = std::function<std::int64_t(const Sample& sample, std::size_t field)>;

/// Records made by a function, for formats that have no source here. The function fills a whole
/// record once for all requested boxes; the source cuts them out. `length` is needed if a field is
/// ragged.
///
/// Throws invalid_argument if `fill` or a needed `length` is empty, there is no field, a name
/// repeats, or size < 0. Error and std::bad_alloc of a function pass through. Any other exception
/// becomes an io error, with the text of a std::exception.
///
///   const auto squares = callback_source({{"x", DType::i64, {}}}, 100,
///                                        [](const Sample& sample, auto record) {
///                                          const std::int64_t x = sample.record * sample.record;
///                                          std::memcpy(record[0], &x, sizeof x);
///                                        });
std::shared_ptr<const Source> callback_source(std::vector<Field> fields, std::int64_t size,
                                              FillRecord fill, RecordLength length = {});

}  // namespace shardwise
