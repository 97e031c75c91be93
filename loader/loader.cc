#include "shardwise/loader/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "shardwise/loader/detail/batch_array.h"
#include "shardwise/loader/detail/mix.h"
#include "shardwise/loader/detail/ring.h"
#include "shardwise/loader/order/shuffle.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::BatchArray;
using detail::BatchBuffers;
using detail::PendingBatch;
using detail::Ring;

constexpr int kMaxThreads = 1024;

// Of a ticket's records: enough to make a ticket's lock and look-ups cheap beside the reading, few
// enough that several readers share a batch of small records.
constexpr std::size_t kTicketBytes = std::size_t{64} << 10;

[[noreturn]] void fail(ErrorCode code, const std::string& found) {
  throw Error(code, "loader: " + found);
}

void check_at_least(std::int64_t least, std::int64_t value, const char* option) {
  if (value >= least) return;
  fail(ErrorCode::invalid_argument,
       fmt::format("{} is {}, needs {} or more", option, value, least));
}

void check(const LoaderOptions& options) {
  check_at_least(1, options.batch_size, "batch_size");
  check_at_least(1, options.epochs, "epochs");
  check_at_least(1, options.prefetch, "prefetch");
  check_at_least(1, options.threads, "threads");
  if (options.threads > kMaxThreads) {
    fail(ErrorCode::invalid_argument,
         fmt::format("threads is {}, needs {} or fewer", options.threads, kMaxThreads));
  }
}

std::int64_t count_batches(std::int64_t records, const LoaderOptions& options) {
  const bool partial = records % options.batch_size != 0;
  const std::int64_t count =
      records / options.batch_size + (partial && options.last_batch == LastBatch::pad ? 1 : 0);
  if (count == 0) {
    fail(ErrorCode::invalid_argument,
         fmt::format("a source of {} records makes no batch of {}", records, options.batch_size));
  }
  return count;
}

std::uint64_t fingerprint_of(const Source& source, const LoaderOptions& options) {
  std::uint64_t hash = source.fingerprint();
  for (const std::uint64_t fact :
       {static_cast<std::uint64_t>(options.batch_size), static_cast<std::uint64_t>(options.order),
        static_cast<std::uint64_t>(options.last_batch)}) {
    hash = detail::mix((hash ^ fact) + detail::kMixGamma);
  }
  return hash == 0 ? 1 : hash;  // 0 says in a state: not yet known
}

}  // namespace

struct Loader::Impl {
  Impl(Devices& devices, std::shared_ptr<const Source> from,
       const std::vector<FieldPlacement>& placements, const LoaderOptions& wanted,
       LoaderState begin_at);
  ~Impl();

  void add_field(const FieldPlacement& placement);
  void resume();
  void start_readers();
  PendingBatch begin(std::int64_t index) const;
  void read_tickets(const std::stop_token& stop);
  bool fill(const Ring::Ticket& ticket, const std::stop_token& stop) const;
  void read(const PendingBatch& batch, std::int64_t row, std::int64_t record,
            std::span<std::vector<BatchArray::Target>> targets, std::vector<FieldBox>& boxes) const;
  std::string field_that_fails(const Sample& sample, std::span<const FieldBox> boxes) const;

  const std::shared_ptr<const Source> source;
  const LoaderOptions options;
  LoaderState state;  // of the consumer
  LoaderStats stats;  // of the consumer; the waits are the ring's
  std::int64_t batches_per_epoch = 0, end_batch = 0, rows_per_ticket = 0;
  Devices& devices;
  std::vector<std::size_t> fields;  // of the source, per placement
  std::vector<BatchArray> arrays;   // per placement, and last the mask
  std::optional<Ring> ring;
  std::vector<std::jthread> readers;
};

Loader::Impl::Impl(Devices& all_devices, std::shared_ptr<const Source> from,
                   const std::vector<FieldPlacement>& placements, const LoaderOptions& wanted,
                   LoaderState begin_at)
    : source(std::move(from)), options(wanted), state(begin_at), devices(all_devices) {
  check(options);
  if (!source) fail(ErrorCode::invalid_argument, "the source is null");
  if (placements.empty()) {
    fail(ErrorCode::invalid_argument, "got no field to place, needs at least one");
  }
  batches_per_epoch = count_batches(source->size(), options);
  if (__builtin_mul_overflow(batches_per_epoch, options.epochs, &end_batch)) {
    end_batch = std::numeric_limits<std::int64_t>::max();  // a run without end
  }
  std::size_t row_bytes = 1;
  for (const FieldPlacement& placement : placements) {
    add_field(placement);
    const Field& field = source->fields()[fields.back()];
    row_bytes = std::min(kTicketBytes, row_bytes + num_bytes(field.shape, size_bytes(field.dtype)));
  }
  const Sharding& first = placements[0].sharding;
  const ArraySpec mask{DType::boolean, Shape{options.batch_size},
                       Sharding(first.mesh(), PartitionSpec{first.spec()[0]})};
  arrays.emplace_back(devices, mask, "batch mask");

  resume();

  const auto most_rows = static_cast<std::int64_t>(kTicketBytes / row_bytes);
  const std::int64_t even_cuts = (options.batch_size - 1) / most_rows + 1;
  rows_per_ticket = (options.batch_size - 1) / even_cuts + 1;
  const std::int64_t tickets = (options.batch_size - 1) / rows_per_ticket + 1;
  ring.emplace(Ring::Options{state.next_batch, end_batch, options.prefetch, tickets},
               [this](std::int64_t index) { return begin(index); });
}

Loader::Impl::~Impl() {
  for (std::jthread& reader : readers) reader.request_stop();
}

void Loader::Impl::add_field(const FieldPlacement& placement) {
  fields.push_back(source->field_index(placement.field));
  const Field& field = source->fields()[fields.back()];
  const std::size_t rank = field.shape.size() + 1;
  if (placement.sharding.rank() != rank) {
    fail(
        ErrorCode::invalid_argument,
        fmt::format("field \"{}\" of record shape {} is placed by \"{}\" of rank {}, needs rank {}:"
                    " the batch and the record's dims",
                    field.name, to_string(field.shape), placement.sharding.spec().to_string(),
                    placement.sharding.rank(), rank));
  }
  Shape shape{options.batch_size};
  for (const std::int64_t extent : field.shape) shape.push_back(extent);
  arrays.emplace_back(devices, ArraySpec{field.dtype, shape, placement.sharding},
                      fmt::format("batch {}", field.name));
}

void Loader::Impl::resume() {
  if (state.next_batch < 0 || state.next_batch > end_batch) {
    fail(ErrorCode::invalid_argument,
         fmt::format("the state stands at batch {}, needs 0 to {}", state.next_batch, end_batch));
  }
  const std::uint64_t fingerprint = fingerprint_of(*source, options);
  if (state.fingerprint != 0 && state.fingerprint != fingerprint) {
    fail(ErrorCode::invalid_argument,
         fmt::format("the state is of a run with fingerprint {:016x}, but this source, batch size, "
                     "order and last batch have {:016x}",
                     state.fingerprint, fingerprint));
  }
  state.fingerprint = fingerprint;
}

void Loader::Impl::start_readers() {
  for (int i = 0; i < options.threads; ++i) {
    readers.emplace_back([this](const std::stop_token& stop) { read_tickets(stop); });
  }
}

PendingBatch Loader::Impl::begin(std::int64_t index) const {
  const std::int64_t epoch = index / batches_per_epoch;
  const std::int64_t first_number = index % batches_per_epoch * options.batch_size;
  PendingBatch batch{index,
                     epoch,
                     first_number,
                     std::min(options.batch_size, source->size() - first_number),
                     Shuffle(source->size(), state.seed, static_cast<std::uint64_t>(epoch)),
                     {}};
  for (const BatchArray& array : arrays) batch.buffers.push_back(array.allocate());
  return batch;
}

void Loader::Impl::read_tickets(const std::stop_token& stop) {
  while (std::optional<Ring::Ticket> ticket = ring->take(stop)) {
    std::exception_ptr error;
    try {
      if (!fill(*ticket, stop)) return;
    } catch (...) {
      error = std::current_exception();
    }
    ring->finish(*ticket, std::move(error));
  }
}

// Writes the rows of one ticket to all arrays; false where it was asked to stop before the end.
bool Loader::Impl::fill(const Ring::Ticket& ticket, const std::stop_token& stop) const {
  const PendingBatch& batch = ticket.batch();
  const std::int64_t begin_row = ticket.number * rows_per_ticket;
  const std::int64_t end_row = std::min(begin_row + rows_per_ticket, options.batch_size);
  const std::int64_t end_valid = std::clamp(batch.valid_rows, begin_row, end_row);

  std::vector<std::vector<BatchArray::Target>> targets;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    targets.push_back(arrays[i].targets(batch.buffers[i], begin_row, end_row));
  }
  std::vector<FieldBox> boxes;
  for (std::int64_t row = begin_row; row < end_valid; ++row) {
    if (stop.stop_requested()) return false;
    const std::int64_t number = batch.first_number + row;
    const std::int64_t record =
        options.order == RecordOrder::shuffled ? batch.shuffle.at(number) : number;
    read(batch, row, record, targets, boxes);
  }
  for (BatchArray::Target& mask : targets.back()) {
    const std::int64_t rows = std::min(end_valid, mask.end_row) - mask.next_row;
    if (rows <= 0) continue;
    std::memset(mask.record.data, 1, static_cast<std::size_t>(rows));
    mask.advance(rows);
  }
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    for (const BatchArray::Target& padding : targets[i]) {
      std::memset(padding.record.data, 0, padding.rest_bytes());
    }
    arrays[i].copy_to_replicas(batch.buffers[i], begin_row, end_row);
  }
  return true;
}

// One record into every box that has its row.
void Loader::Impl::read(const PendingBatch& batch, std::int64_t row, std::int64_t record,
                        std::span<std::vector<BatchArray::Target>> targets,
                        std::vector<FieldBox>& boxes) const {
  boxes.clear();
  for (std::size_t i = 0; i < fields.size(); ++i) {
    for (BatchArray::Target& target : targets[i]) {
      if (target.next_row != row || row == target.end_row) continue;
      boxes.push_back({fields[i], target.record});
      target.advance(1);
    }
  }
  if (boxes.empty()) return;
  const Sample sample{record, batch.epoch, state.seed};
  try {
    source->read(sample, boxes);
  } catch (const Error& e) {
    fail(e.code(), fmt::format("batch {}, record {}, {}{}", batch.index, record,
                               field_that_fails(sample, boxes), e.what()));
  }
}

// Of a record that could not be read: its first field that cannot be read alone, for the message.
std::string Loader::Impl::field_that_fails(const Sample& sample,
                                           std::span<const FieldBox> boxes) const {
  for (const FieldBox& box : boxes) {
    try {
      source->read(sample, {&box, 1});
    } catch (const Error&) {
      return fmt::format("field \"{}\": ", source->fields()[box.field].name);
    }
  }
  return {};
}

Loader::Loader(Devices& devices, std::shared_ptr<const Source> source,
               const std::vector<FieldPlacement>& placements, LoaderOptions options,
               LoaderState state)
    : impl_(std::make_unique<Impl>(devices, std::move(source), placements, options, state)) {
  impl_->start_readers();
}

Loader::~Loader() = default;

std::optional<Batch> Loader::next() {
  std::optional<PendingBatch> pending = impl_->ring->pop();
  if (!pending) return std::nullopt;
  std::vector<ShardedArray> arrays;
  for (std::size_t i = 0; i < impl_->arrays.size(); ++i) {
    arrays.push_back(ShardedArray::from_shards(impl_->devices, impl_->arrays[i].array(),
                                               std::move(pending->buffers[i])));
    impl_->stats.bytes_placed += impl_->arrays[i].bytes();
  }
  ShardedArray mask = std::move(arrays.back());
  arrays.pop_back();
  ++impl_->stats.batches;
  impl_->stats.records += pending->valid_rows;
  impl_->state.next_batch = pending->index + 1;
  return Batch{pending->index, pending->epoch, std::move(arrays), std::move(mask),
               pending->valid_rows};
}

LoaderState Loader::state() const { return impl_->state; }

std::int64_t Loader::batches_per_epoch() const { return impl_->batches_per_epoch; }

LoaderStats Loader::stats() const {
  LoaderStats stats = impl_->stats;
  stats.consumer_waited_seconds = impl_->ring->consumer_waited_seconds();
  stats.readers_waited_seconds = impl_->ring->readers_waited_seconds();
  return stats;
}

}  // namespace shardwise
