#include "shardwise/loader/host_loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "shardwise/loader/detail/engine/engine.h"
#include "shardwise/loader/detail/engine/host_pool.h"

namespace shardwise {
namespace {

void check_positions(const std::vector<FieldPlacement>& placements,
                     const std::vector<std::int64_t>& positions) {
  for (const FieldPlacement& placement : placements) {
    const std::int64_t size = placement.sharding.mesh().size();
    for (const std::int64_t position : positions) {
      if (0 <= position && position < size) continue;
      detail::fail_loader(
          ErrorCode::invalid_argument,
          fmt::format("field \"{}\": position {} is to be this process's, but the "
                      "mesh {} has 0 to {}",
                      placement.field, position, placement.sharding.mesh().to_string(), size - 1));
    }
  }
}

// A process without rows in a batch would take the mean of nothing: NaN.
void check_rows(const std::vector<FieldPlacement>& placements, std::int64_t batch_size) {
  for (const FieldPlacement& placement : placements) {
    const Sharding& sharding = placement.sharding;
    const std::int64_t tiles = sharding.rank() == 0 ? 1 : sharding.tiles(0);
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      const TileRange rows = sharding.tile_range(0, tile, batch_size);
      if (rows.begin < rows.end) continue;
      detail::fail_loader(
          ErrorCode::invalid_argument,
          fmt::format("field \"{}\": the batch dim is cut in {} parts, and a batch of {} rows has "
                      "none for part {}, needed is a batch_size that gives rows to each part: a "
                      "multiple of {}, or {} and more with the policy \"balanced\"",
                      placement.field, tiles, batch_size, tile, tiles, tiles));
    }
  }
}

detail::Home on_host(const std::vector<FieldPlacement>& placements, HostLoaderOptions host) {
  if (host.positions) check_positions(placements, *host.positions);
  if (!host.allocate) {
    auto pool = std::make_shared<detail::HostPool>();
    host.allocate = [pool](std::int64_t, std::size_t bytes) { return pool->allocate(bytes); };
  }
  return {[positions = std::move(host.positions)](const Mesh&, std::int64_t position) {
            return !positions || std::ranges::find(*positions, position) != positions->end();
          },
          [allocate = std::move(host.allocate)](const Mesh&, std::int64_t position,
                                                std::size_t bytes, const std::string& label) {
            std::shared_ptr<std::byte> memory = allocate(position, bytes);
            if (!memory && bytes > 0) {
              detail::fail_loader(
                  ErrorCode::resource_exhausted,
                  fmt::format("allocate \"{}\": position {} got no memory, needed is "
                              "{} bytes",
                              label, position, bytes));
            }
            std::byte* const data = memory.get();
            return detail::OwnedBytes{data, std::move(memory)};
          },
          std::move(host.timeline)};
}

HostArray to_host_array(const detail::BatchArray& array, std::vector<detail::OwnedBytes>& slabs) {
  HostArray host{array.dtype(), array.shape(), {}};
  host.parts.reserve(slabs.size());
  for (std::size_t p = 0; p < slabs.size(); ++p) {
    if (!array.is_here(p)) continue;
    const auto position = static_cast<std::int64_t>(p);
    host.parts.push_back({position, array.sharding().box_at(position, array.shape()),
                          std::shared_ptr<std::byte>(std::move(slabs[p].owner), slabs[p].data),
                          array.bytes_at()[p]});
  }
  return host;
}

}  // namespace

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

std::size_t HostArray::check_part(std::optional<std::size_t> part, DType needed) const {
  check_dtype("read an array of a batch", dtype, needed);
  if (part ? *part < parts.size() : parts.size() == 1) return part.value_or(0);
  throw Error(
      ErrorCode::invalid_argument,
      part ? fmt::format("read part {} of an array of a batch: it has {}", *part, parts.size())
           : fmt::format("read an array of a batch: it has {} parts, needed is one, or the "
                         "number of a part",
                         parts.size()));
}

const HostArray& HostBatch::field(std::string_view name) const {
  return fields[detail::field_number(names, name)];
}

HostLoader::HostLoader(std::shared_ptr<const Source> source,
                       const std::vector<FieldPlacement>& placements, LoaderOptions options,
                       LoaderState state, const HostLoaderOptions& host)
    : LoaderRun(std::make_unique<detail::Engine>(std::move(source), placements, options, state,
                                                 on_host(placements, host))) {
  if (host.positions && !host.empty_parts) check_rows(placements, options.batch_size);
  if (host.read_at_once) engine().start();
}

std::optional<HostBatch> HostLoader::next() {
  std::optional<detail::PendingBatch> batch = engine().next();
  if (!batch) return std::nullopt;
  const std::vector<detail::Column>& columns = engine().plan().columns();
  std::vector<HostArray> arrays;
  arrays.reserve(columns.size());
  for (std::size_t i = 0; i < columns.size(); ++i) {
    arrays.push_back(to_host_array(columns[i].arrays[batch->variants[i]], batch->buffers[i]));
  }
  HostArray weights = std::move(arrays.back());
  arrays.pop_back();
  HostArray mask = std::move(arrays.back());
  arrays.pop_back();
  return HostBatch{batch->index,
                   batch->epoch,
                   std::move(arrays),
                   std::move(mask),
                   std::move(weights),
                   batch->valid_rows,
                   engine().plan().field_names()};
}

bool HostLoader::wait(std::chrono::milliseconds time) { return engine().wait(time); }

}  // namespace shardwise
