#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <vector>

#include "shardwise/loader/detail/engine/batch_plan.h"
#include "shardwise/loader/detail/engine/ring.h"
#include "shardwise/loader/detail/engine/run_order.h"

namespace shardwise::detail {

/// For tests of the delivery digest: the number that is delivered instead of another. Null: the
/// number itself.
using Renumber = std::function<std::int64_t(std::int64_t number)>;

/// Reads the records of some rows of a batch into the memory of all its arrays. One per reader; it
/// keeps its lists from call to call. Thread-compatible.
class RowWriter {
 public:
  /// All must outlive the writer.
  RowWriter(const BatchPlan& plan, const RunOrder& order, const LoaderOptions& options,
            const Renumber& renumber);

  /// Writes rows [begin, end): fields, mask, weights, and zeros in rows without a record. False if
  /// stopped before the end. Passes on the source's errors, naming batch, record and field, except
  /// for bad records if a policy skips them.
  bool write(const PendingBatch& batch, std::int64_t begin, std::int64_t end,
             const std::stop_token& stop, TicketResult& result);

 private:
  /// Rows of a piece that are not yet written.
  struct Target {
    const Column* column;
    const BatchArray::Piece* piece;
    const Box* record;  ///< the part of a record that the column needs
    bool covers_records;
    std::int64_t next_row, end_row;
    std::byte* next;

    bool has(std::int64_t row) const { return next_row <= row && row < end_row; }
  };

  /// A copy within a row, from scratch memory to the final place, if that is not contiguous.
  struct Copy {
    std::size_t box;  ///< of boxes_
    std::size_t target;
  };

  void find_targets(const PendingBatch& batch, std::int64_t begin, std::int64_t end);
  std::int64_t end_of_segment(std::int64_t row, std::int64_t end) const;
  void prepare(std::int64_t row, std::int64_t end);
  bool must_read_whole() const;
  void prepare_whole();
  void prepare_box(std::size_t target);
  void give_scratch();
  void write_row(const PendingBatch& batch, std::int64_t row, const Sample& wanted,
                 TicketResult& result);
  void read(const Sample& sample);
  bool fits(const Sample& sample) const;
  void finish_row(std::int64_t row, float weight, bool is_real);
  std::int64_t substitute(const Sample& wanted, std::int64_t number, int attempt) const;
  std::string field_that_fails(const Sample& sample) const;

  const BatchPlan& plan_;
  const RunOrder& order_;
  const BadRecords policy_;
  const Renumber& renumber_;

  std::vector<Target> targets_;
  std::vector<Sample> samples_;
  std::vector<std::byte> scratch_;

  // For the current segment (rows with the same targets): the boxes read of each row, the distance
  // between their places in neighbouring rows (0: scratch memory), and the copies that follow.
  std::vector<FieldBox> boxes_;
  std::vector<std::size_t> steps_;
  std::vector<Copy> copies_;
  std::vector<std::size_t> active_;  // targets
  std::vector<std::int32_t> lengths_;
  const PendingBatch* batch_ = nullptr;
};

}  // namespace shardwise::detail
