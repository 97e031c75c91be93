#include "shardwise/loader/detail/engine/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "shardwise/storage/hash.h"

namespace shardwise::detail {
namespace {

constexpr int kMaxThreads = 1024;
constexpr std::size_t kMostBadRecords = 1000;

// One in this many tickets is timed.
constexpr std::int64_t kSampledTickets = 16;

// Size of a ticket's records: large enough that the ticket's lock and look-ups are cheap compared
// with the reading, small enough that several readers share a batch of small records.
constexpr std::size_t kTicketBytes = std::size_t{64} << 10;

void check_at_least(std::int64_t least, std::int64_t value, const char* option) {
  if (value >= least) return;
  fail_loader(ErrorCode::invalid_argument,
              fmt::format("{} is {}, needed is {} or more", option, value, least));
}

const LoaderOptions& checked(const LoaderOptions& options) {
  check_at_least(1, options.batch_size, "batch_size");
  check_at_least(1, options.epochs, "epochs");
  check_at_least(1, options.prefetch, "prefetch");
  check_at_least(1, options.threads, "threads");
  check_at_least(1, options.parts, "parts");
  if (options.part < 0 || options.part >= options.parts) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("part is {}, needed is 0 to {}", options.part, options.parts - 1));
  }
  if (options.threads > kMaxThreads) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("threads is {}, needed is {} or fewer", options.threads, kMaxThreads));
  }
  return options;
}

std::shared_ptr<const Source> checked(std::shared_ptr<const Source> source) {
  if (!source) fail_loader(ErrorCode::invalid_argument, "the source is null");
  return source;
}

std::uint64_t hash_of(const std::string& description) { return hash64(description); }

// Shortens a description for messages, since a mix may have thousands of sources.
std::string shortened(const std::string& description) {
  constexpr std::size_t kMost = 2000;
  return description.size() <= kMost ? description : description.substr(0, kMost) + "..";
}

// Cuts the batch evenly. Records that are made together are cut only by the number of threads.
std::int64_t rows_of_ticket(const BatchPlan& plan, const LoaderOptions& options) {
  if (plan.source().reads_together()) return (options.batch_size - 1) / options.threads + 1;
  const std::size_t row_bytes = std::min(kTicketBytes, 1 + plan.record_bytes());
  const auto most_rows = static_cast<std::int64_t>(kTicketBytes / row_bytes);
  const std::int64_t cuts = (options.batch_size - 1) / most_rows + 1;
  return (options.batch_size - 1) / cuts + 1;
}

}  // namespace

Engine::Engine(std::shared_ptr<const Source> source, const std::vector<FieldPlacement>& placements,
               const LoaderOptions& options, const LoaderState& state, Home home, Renumber renumber)
    : source_(checked(std::move(source))),
      options_(checked(options)),
      home_(std::move(home)),
      renumber_(std::move(renumber)),
      order_(source_->size(), options, state.seed),
      plan_(*source_, placements, options, home_.is_here),
      rows_per_ticket_(rows_of_ticket(plan_, options)) {
  resume(state);
  ring_.emplace(ring_options(), [this](std::int64_t index) { return begin(index); });
}

void Engine::start() {
  if (!readers_.empty()) return;
  readers_.reserve(static_cast<std::size_t>(options_.threads));
  for (int i = 0; i < options_.threads; ++i) {
    readers_.emplace_back([this](const std::stop_token& stop) { read_tickets(stop); });
  }
}

Engine::~Engine() {
  for (std::jthread& reader : readers_) reader.request_stop();
}

void Engine::resume(const LoaderState& state) {
  if (state.next_batch < 0 || state.next_batch > order_.end_batch()) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("the state stands at batch {}, needed is 0 to "
                            "{}",
                            state.next_batch, order_.end_batch()));
  }
  state_ = {.seed = state.seed,
            .next_batch = state.next_batch,
            .source = source_->fingerprint(),
            .batch_size = options_.batch_size,
            .order = options_.order,
            .last_batch = options_.last_batch,
            .bad_records = options_.bad_records};
  const std::int64_t number = order_.first_number(state.next_batch);
  if (state.batch_size == 0) {  // a new state
    state_.digest = to_digest(digest_of_prefix(number));
    return;
  }
  std::vector<std::string> differ;
  const auto compare = [&](const char* part, const auto& ours, const auto& theirs) {
    if (ours == theirs) return;
    differ.push_back(fmt::format("{} is {}, the state has {}", part, ours, theirs));
  };
  const std::string stages = describe_at(state.next_batch);
  if (hash_of(stages) != state.stages) {
    differ.push_back(fmt::format("the stages are {}, the state has others", shortened(stages)));
  } else if (state_.source != state.source) {
    differ.emplace_back("the source's data differ");
  }
  compare("batch_size", state_.batch_size, state.batch_size);
  compare("order", name(state_.order), name(state.order));
  compare("last_batch", name(state_.last_batch), name(state.last_batch));
  compare("bad_records", name(state_.bad_records), name(state.bad_records));
  if (!differ.empty()) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("the state is of another run: {}", fmt::join(differ, "; ")));
  }
  state_.digest = state.digest;
  const std::int64_t ended = number / source_->size() * source_->size();
  if (options_.last_batch == LastBatch::wrap &&
      state.digest != to_digest(digest_of_prefix(number)) &&
      state.digest == to_digest(digest_of_prefix(ended))) {
    fail_loader(ErrorCode::invalid_argument,
                fmt::format("the state is of the end of a run of {} epochs, whose last batch was "
                            "padded: it cannot go on with more",
                            ended / source_->size()));
  }
  check_digest(number, fmt::format("the state at batch {}", state.next_batch));
}

// Describes the data of the samples before a batch, as Source::describe() does.
std::string Engine::describe_at(std::int64_t batch) const {
  return source_->describe(order_.samples_before(order_.first_number(batch)));
}

LoaderState Engine::state() const {
  LoaderState state = state_;
  state.stages = hash_of(describe_at(state.next_batch));
  return state;
}

void Engine::check_digest(std::int64_t end_number, const std::string& where) const {
  const DeliveryDigest expected = to_digest(digest_of_prefix(end_number));
  if (state_.digest == expected) return;
  fail_loader(ErrorCode::corrupt,
              fmt::format("{}: delivered samples differ from the first {} of the run: digest "
                          "{:016x}{:016x}, needed is {:016x}{:016x}",
                          where, end_number, state_.digest.high, state_.digest.low, expected.high,
                          expected.low));
}

Ring::Options Engine::ring_options() const {
  std::int64_t depth = options_.prefetch;
  const std::size_t batch_bytes = plan_.most_bytes();
  if (options_.prefetch_bytes > 0 && batch_bytes > 0) {
    const std::size_t fit = options_.prefetch_bytes / batch_bytes;
    if (fit == 0) {
      fail_loader(ErrorCode::resource_exhausted,
                  fmt::format("prefetch_bytes is {}, but one batch takes {} bytes",
                              options_.prefetch_bytes, batch_bytes));
    }
    if (fit < static_cast<std::size_t>(depth)) depth = static_cast<std::int64_t>(fit);
  }
  const std::int64_t tickets = (options_.batch_size - 1) / rows_per_ticket_ + 1;
  const std::int64_t others = (options_.part - state_.next_batch) % options_.parts;
  const std::int64_t first = state_.next_batch + (others < 0 ? others + options_.parts : others);
  return {first, order_.end_batch(), depth, tickets, options_.parts};
}

PendingBatch Engine::begin(std::int64_t index) const {
  const std::int64_t first = order_.first_number(index), valid = order_.valid_rows(index);
  PendingBatch batch{index, order_.epoch_of(first),           first,
                     valid, 1.0F / static_cast<float>(valid), plan_.variants(order_, index),
                     {}};
  batch.buffers.reserve(plan_.columns().size());
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    const Column& column = plan_.columns()[i];
    const BatchArray& array = column.arrays[batch.variants[i]];
    std::vector<OwnedBytes>& slabs = batch.buffers.emplace_back(array.bytes_at().size());
    for (std::size_t p = 0; p < slabs.size(); ++p) {
      if (!array.is_here(p)) continue;
      slabs[p] = home_.allocate(array.sharding().mesh(), static_cast<std::int64_t>(p),
                                array.bytes_at()[p], column.label);
    }
  }
  return batch;
}

void Engine::read_tickets(const std::stop_token& stop) {
  RowWriter writer(plan_, order_, options_, renumber_);
  while (std::optional<Ring::Ticket> ticket = ring_->take(stop)) {
    const bool sampled = tickets_.fetch_add(1, std::memory_order_relaxed) % kSampledTickets == 0;
    Timeline* const timeline = home_.timeline.get();
    const std::int64_t begin_ns = timeline == nullptr ? 0 : timeline->now_ns();
    StageClock clock;
    try {
      const RunningClock running(sampled ? &clock : nullptr);
      const std::int64_t begin = ticket->number * rows_per_ticket_;
      TicketResult result;
      if (!writer.write(ticket->batch(), begin,
                        std::min(begin + rows_per_ticket_, options_.batch_size), stop, result)) {
        return;
      }
      if (timeline != nullptr) {  // before the job can have the batch
        timeline->add({.kind = TimelineEvent::Kind::read,
                       .name = "read",
                       .begin_ns = begin_ns,
                       .end_ns = timeline->now_ns(),
                       .batch = ticket->batch().index});
      }
      ring_->finish(*ticket, std::move(result));
    } catch (...) {
      ring_->fail(*ticket, std::current_exception());
    }
    if (sampled) count_stages(clock);
  }
}

void Engine::count_stages(const StageClock& clock) {
  const MutexLock lock(stages_mutex_);
  ++sampled_tickets_;
  for (const StageClock::Total& total : clock.totals()) {
    auto known = std::ranges::find_if(
        stages_, [&](const StageSeconds& stage) { return stage.stage == total.stage; });
    if (known == stages_.end()) known = stages_.insert(known, {total.stage, 0});
    known->seconds += static_cast<double>(total.nanoseconds) * 1e-9;
  }
}

bool Engine::wait(std::chrono::milliseconds time) {
  start();
  if (time.count() > 0) begin_wait();  // a poll is not a wait
  return ring_->wait(time);
}

void Engine::begin_wait() {
  if (home_.timeline && !waiting_since_ns_) waiting_since_ns_ = home_.timeline->now_ns();
}

void Engine::end_wait(std::int64_t batch) {
  if (!home_.timeline) return;
  home_.timeline->add({.kind = TimelineEvent::Kind::wait,
                       .name = "wait",
                       .begin_ns = *waiting_since_ns_,
                       .end_ns = home_.timeline->now_ns(),
                       .batch = batch});
  waiting_since_ns_.reset();
}

std::optional<PendingBatch> Engine::next() {
  start();
  ++calls_;
  if (lost_) std::rethrow_exception(lost_);
  begin_wait();
  std::optional<PendingBatch> batch = ring_->pop();
  if (!batch) return std::nullopt;
  end_wait(batch->index);
  if (options_.parts > 1) {  // other parts deliver the batches in between
    state_.digest = to_digest(digest_of_prefix(batch->first_number));
  }
  state_.digest = to_digest(to_wide(state_.digest) + batch->result.digest);
  try {
    check_digest(batch->first_number + batch->valid_rows, fmt::format("batch {}", batch->index));
  } catch (...) {
    lost_ = std::current_exception();
    throw;
  }
  for (std::size_t i = 0; i < plan_.columns().size(); ++i) {
    bytes_placed_ += plan_.columns()[i].arrays[batch->variants[i]].bytes();
  }
  ++batches_;
  records_ += batch->valid_rows;
  state_.next_batch = batch->index + 1;
  std::vector<BadRecord>& bad = batch->result.bad;
  std::ranges::sort(bad, {}, &BadRecord::row);
  bad_records_.count += static_cast<std::int64_t>(bad.size());
  const std::size_t kept = std::min(bad.size(), kMostBadRecords - bad_records_.first.size());
  std::move(bad.begin(), bad.begin() + static_cast<std::ptrdiff_t>(kept),
            std::back_inserter(bad_records_.first));
  return batch;
}

std::optional<BatchRow> Engine::step_of(std::int64_t record, std::int64_t epoch) const {
  if (record < 0 || record >= source_->size() || epoch < 0 || epoch >= options_.epochs) {
    fail_loader(
        ErrorCode::invalid_argument,
        fmt::format("record {} of epoch {} has no step, needed is records 0 to {} and epochs 0 "
                    "to {}",
                    record, epoch, source_->size() - 1, options_.epochs - 1));
  }
  return order_.step_of(record, epoch);
}

LoaderStats Engine::stats() const {
  LoaderStats stats;
  stats.batches = batches_;
  stats.records = records_;
  stats.bytes_placed = bytes_placed_;
  stats.seconds = clock_.seconds();
  stats.consumer_waited_seconds = ring_->consumer_waited_seconds();
  stats.readers_waited_seconds = ring_->readers_waited_seconds();
  stats.threads = options_.threads;
  if (stats.seconds > 0) stats.rows_per_second = static_cast<double>(records_) / stats.seconds;
  if (calls_ > 0) {
    stats.mean_ready_batches =
        static_cast<double>(ring_->ready_batches()) / static_cast<double>(calls_);
  }
  const MutexLock lock(stages_mutex_);
  stats.stages = stages_;
  const double scale = static_cast<double>(tickets_.load()) /
                       static_cast<double>(std::max<std::int64_t>(1, sampled_tickets_));
  for (StageSeconds& stage : stats.stages) stage.seconds *= scale;
  std::ranges::stable_sort(stats.stages, std::greater(), &StageSeconds::seconds);
  return stats;
}

}  // namespace shardwise::detail
