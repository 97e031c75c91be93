#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/detail/engine/batch_array.h"
#include "shardwise/loader/detail/engine/run_order.h"
#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/placement.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// The arrays of every batch for one placement, or for the mask or the weights.
struct Column {
  enum class Holds { field, length, mask, weight };
  Holds holds;
  std::string name;
  std::string label = "batch " + name;  ///< of its memory
  std::size_t field = 0;                ///< for fields and lengths: the source's field
  std::vector<std::int64_t> buckets{};  ///< empty: all batches have one shape
  bool truncate = false;                ///< cut records that are longer than the last bucket
  std::int64_t longest = 0;             ///< for lengths: the longest delivered one
  std::vector<BatchArray> arrays{};     ///< one per bucket, or one
};

/// True if a position of a mesh belongs to this process. Throws not_found if the device does not
/// exist.
using IsHereOnMesh = std::function<bool(const Mesh& mesh, std::int64_t position)>;

/// The arrays that make up a batch, for every shape that it may have. Immutable, thread-safe.
class BatchPlan {
 public:
  /// Throws as Loader's constructor does about placements. The source must outlive the plan.
  BatchPlan(const Source& source, const std::vector<FieldPlacement>& placements,
            const LoaderOptions& options, const IsHereOnMesh& is_here);

  const Source& source() const { return source_; }

  /// One per placement, then the mask and the weights.
  const std::vector<Column>& columns() const { return columns_; }

  /// Names of the placed fields.
  std::vector<std::string> field_names() const;

  /// The array of each column that a batch uses. The batch's longest records decide, so the source
  /// is asked for lengths. Throws as Source::length() does, and invalid_argument if a record is
  /// longer than the last bucket.
  std::vector<std::size_t> variants(const RunOrder& order, std::int64_t batch) const;

  /// Bytes of a batch of the largest shapes in this process.
  std::size_t most_bytes() const;

  /// Approximate bytes of a record that are placed.
  std::size_t record_bytes() const { return record_bytes_; }

 private:
  void add_field(const FieldPlacement& placement, const IsHereOnMesh& is_here);
  void add_rows(Column::Holds holds, const char* name, DType dtype, const Sharding& sharding,
                const IsHereOnMesh& is_here);
  bool add_length(const FieldPlacement& placement, const IsHereOnMesh& is_here);
  std::size_t variant(const Column& column, const std::vector<Sample>& samples,
                      std::int64_t batch) const;

  const Source& source_;
  const std::int64_t batch_size_;
  const BadRecords bad_records_;
  std::vector<Column> columns_;
  std::size_t record_bytes_ = 0;
};

/// Throws no_such_name, listing the names.
std::size_t field_number(const std::vector<std::string>& names, std::string_view name);

/// Throws an Error "loader: <found>".
[[noreturn]] void fail_loader(ErrorCode code, const std::string& found);

/// The same while `cause` is being handled, with its code and errno. It is nested:
/// std::rethrow_if_nested throws it.
[[noreturn]] void fail_loader_because(const Error& cause, const std::string& found);

}  // namespace shardwise::detail
