#include "shardwise/loader/detail/engine/batch_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace shardwise::detail {
namespace {

constexpr std::string_view kLengthSuffix = ".length";

void check_buckets(const Field& field, const FieldPlacement& placement) {
  const std::vector<std::int64_t>& buckets = placement.buckets;
  if (buckets.empty()) return;
  if (!field.ragged) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("field \"{}\" has buckets, but its records are all of shape {}",
                            field.name, to_string(field.shape)));
  }
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    if (buckets[i] > (i == 0 ? 0 : buckets[i - 1])) continue;
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("field \"{}\" has the buckets {}, needed are ascending ones from 1 on",
                            field.name, fmt::join(buckets, ", ")));
  }
}

}  // namespace

void fail_loader(ErrorCode code, const std::string& found) {
  throw Error(code, "loader: " + found);
}

void fail_loader_because(const Error& cause, const std::string& found) {
  std::throw_with_nested(Error(cause, "loader: " + found));
}

BatchPlan::BatchPlan(const Source& source, const std::vector<FieldPlacement>& placements,
                     const LoaderOptions& options, const IsHereOnMesh& is_here)
    : source_(source), batch_size_(options.batch_size), bad_records_(options.bad_records) {
  if (placements.empty()) {
    fail_loader(ErrorCode::invalid_argument, "got no field to place, needed is at least one");
  }
  columns_.reserve(placements.size() + 2);
  for (const FieldPlacement& placement : placements) {
    try {
      if (!add_length(placement, is_here)) add_field(placement, is_here);
    } catch (const Error& e) {
      if (std::string_view(e.what()).find('"' + placement.field + '"') != std::string::npos) throw;
      fail_loader(e.code(), fmt::format("field \"{}\": {}", placement.field, e.what()));
    }
  }
  // The lengths are those of the delivered records.
  for (Column& length : columns_) {
    for (const Column& field : columns_) {
      if (length.holds != Column::Holds::length || field.holds != Column::Holds::field) continue;
      if (field.field != length.field || !field.truncate || field.buckets.empty()) continue;
      length.longest = std::min(length.longest, field.buckets.back());
    }
  }
  const Sharding& first = placements[0].sharding;
  const UnevenPolicy& policy = first.policy();
  const Sharding rows(
      first.mesh(), PartitionSpec{first.spec()[0]},
      policy.sizes().empty() ? policy : UnevenPolicy::tile_sizes({policy.sizes()[0]}));
  add_rows(Column::Holds::mask, "mask", DType::boolean, rows, is_here);
  add_rows(Column::Holds::weight, "weights", DType::f32, rows, is_here);
}

void BatchPlan::add_rows(Column::Holds holds, const char* name, DType dtype,
                         const Sharding& sharding, const IsHereOnMesh& is_here) {
  Column column{.holds = holds, .name = name};
  column.arrays.emplace_back(
      BatchArray::Options{dtype, Shape{batch_size_}, {}}, sharding,
      [&](std::int64_t position) { return is_here(sharding.mesh(), position); });
  columns_.push_back(std::move(column));
}

// Adds "x.length"; false if the placement names a field.
bool BatchPlan::add_length(const FieldPlacement& placement, const IsHereOnMesh& is_here) {
  const std::string_view name = placement.field;
  const std::span<const Field> fields = source_.fields();
  const auto is_field = [&](const Field& field) { return field.name == name; };
  if (!name.ends_with(kLengthSuffix) || std::ranges::any_of(fields, is_field)) return false;
  const std::size_t number =
      source_.field_index(name.substr(0, name.size() - kLengthSuffix.size()));
  const Field& field = fields[number];
  if (field.shape.empty()) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("field \"{}\" is asked for, but the records of \"{}\" are scalars",
                            placement.field, field.name));
  }
  if (placement.sharding.rank() != 1 || !placement.buckets.empty()) {
    fail_loader(
        ErrorCode::invalid_argument,
        fmt::format("field \"{}\" is placed by \"{}\" of rank {}, needed is rank 1, the batch, "
                    "and no buckets",
                    placement.field, placement.sharding.spec().to_string(),
                    placement.sharding.rank()));
  }
  add_rows(Column::Holds::length, placement.field.c_str(), DType::i32, placement.sharding, is_here);
  columns_.back().field = number;
  columns_.back().longest = std::min<std::int64_t>(field.shape[0], INT32_MAX);
  return true;
}

void BatchPlan::add_field(const FieldPlacement& placement, const IsHereOnMesh& is_here) {
  const std::size_t number = source_.field_index(placement.field);
  const Field& field = source_.fields()[number];
  const Sharding& sharding = placement.sharding;
  const std::size_t rank = field.shape.size() + 1;
  if (sharding.rank() != rank) {
    fail_loader(
        ErrorCode::invalid_argument,
        fmt::format("field \"{}\" of record shape {} is placed by \"{}\" of rank {}, needed is "
                    "rank {}: the batch and the record's dims",
                    field.name, to_string(field.shape), sharding.spec().to_string(),
                    sharding.rank(), rank));
  }
  check_buckets(field, placement);
  Shape shape{batch_size_};
  for (const std::int64_t extent : field.shape) shape.push_back(extent);
  Column column{.holds = Column::Holds::field,
                .name = placement.field,
                .field = number,
                .buckets = placement.buckets,
                .truncate = placement.truncate};
  const std::size_t variants = std::max<std::size_t>(1, placement.buckets.size());
  column.arrays.reserve(variants);
  for (std::size_t i = 0; i < variants; ++i) {
    if (!placement.buckets.empty()) shape[1] = placement.buckets[i];
    column.arrays.emplace_back(
        BatchArray::Options{field.dtype, shape, field.shape}, sharding,
        [&](std::int64_t position) { return is_here(sharding.mesh(), position); });
  }
  record_bytes_ += num_bytes(column.arrays.back().record().shape(), size_bytes(field.dtype));
  columns_.push_back(std::move(column));
}

std::vector<std::size_t> BatchPlan::variants(const RunOrder& order, std::int64_t batch) const {
  std::vector<std::size_t> variants(columns_.size());
  std::vector<Sample> samples;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].buckets.empty()) continue;
    if (samples.empty()) {
      const std::int64_t first = order.first_number(batch);
      order.samples(first, first + order.valid_rows(batch), samples);
      if (source_.reads_together()) {
        for (const Sample& sample : samples) source_.will_read(sample);
      }
    }
    variants[i] = variant(columns_[i], samples, batch);
  }
  return variants;
}

// The least bucket that holds all samples. If bad records are skipped, a record whose length cannot
// be read does not matter: reading it will fail, too.
std::size_t BatchPlan::variant(const Column& column, const std::vector<Sample>& samples,
                               std::int64_t batch) const {
  std::size_t bucket = 0;
  for (const Sample& sample : samples) {
    std::int64_t length = 0;
    try {
      length = source_.length(sample, column.field);
    } catch (const Error& e) {
      if (bad_records_ != BadRecords::fail && is_bad_record(e)) continue;
      fail_loader_because(e, fmt::format("batch {}, record {}, field \"{}\": {}", batch,
                                         sample.record, column.name, e.what()));
    }
    while (bucket + 1 < column.buckets.size() && length > column.buckets[bucket]) ++bucket;
    if (length > column.buckets[bucket] && !column.truncate) {
      fail_loader(
          ErrorCode::invalid_argument,
          fmt::format("batch {}, record {}, field \"{}\": its length is {}, needed is {} or "
                      "less, the last bucket",
                      batch, sample.record, column.name, length, column.buckets.back()));
    }
  }
  return bucket;
}

std::size_t BatchPlan::most_bytes() const {
  std::size_t sum = 0;
  for (const Column& column : columns_) sum += column.arrays.back().bytes();
  return sum;
}

std::vector<std::string> BatchPlan::field_names() const {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  names.resize(names.size() - 2);  // without the mask and the weights
  return names;
}

std::size_t field_number(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
  throw Error(ErrorCode::no_such_name, fmt::format("batch: found no field {:?}, needed one of {}",
                                                   name, fmt::join(names, ", ")));
}

}  // namespace shardwise::detail
