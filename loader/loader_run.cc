#include "shardwise/loader/loader_run.h"

#include <utility>

#include "shardwise/loader/detail/engine/engine.h"

namespace shardwise {

LoaderRun::LoaderRun(std::unique_ptr<detail::Engine> engine) : engine_(std::move(engine)) {}

LoaderRun::~LoaderRun() = default;

LoaderState LoaderRun::state() const { return engine_->state(); }

std::int64_t LoaderRun::batches_per_epoch() const { return engine_->order().batches_per_epoch(); }

std::int64_t LoaderRun::batches() const { return engine_->order().end_batch(); }

std::optional<BatchRow> LoaderRun::step_of(std::int64_t record, std::int64_t epoch) const {
  return engine_->step_of(record, epoch);
}

LoaderStats LoaderRun::stats() const { return engine_->stats(); }

BadRecordLedger LoaderRun::bad_records() const { return engine_->bad_records(); }

}  // namespace shardwise
