#include "shardwise/shard/view/process_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "shardwise/shard/detail/list_size.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

[[noreturn]] void fail(const char* operation, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", operation, what));
}

void sort_unique(std::vector<std::int64_t>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

/// The begin of each tile if the tiles follow one another, and the end of the last.
std::vector<std::int64_t> offsets_of(const Sharding& sharding, std::span<const std::int64_t> tiles,
                                     std::size_t dim, std::int64_t extent) {
  std::vector<std::int64_t> offsets{0};
  for (const std::int64_t tile : tiles) {
    const TileRange range = sharding.tile_range(dim, tile, extent);
    offsets.push_back(offsets.back() + range.end - range.begin);
  }
  return offsets;
}

/// Throws if a process would hold an extent of the tensor's dim other than `local`.
void check_held(const char* operation, const ProcessView& view, std::size_t dim, std::int64_t local,
                const Shape& global) {
  for (const std::int64_t process : view.processes()) {
    const std::int64_t held = view.local_shape(process, global)[dim];
    if (held == local) continue;
    fail(operation,
         fmt::format("dim {} of {} each makes {}, cut {} ways: process {} holds {}; "
                     "needed is an extent that divides evenly",
                     dim, local, global[dim], view.sharding().tiles(dim), process, held));
  }
}

std::int64_t product(const char* operation, std::size_t dim, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (a < 0 || __builtin_mul_overflow(a, b, &result)) {
    fail(operation, fmt::format("dim {}: {} times {} is no extent", dim, a, b));
  }
  return result;
}

void check_rank(const char* operation, const Sharding& sharding, const Shape& shape) {
  if (shape.size() != sharding.rank()) {
    fail(operation, fmt::format("shape {}; needed for the spec \"{}\" are {} extents",
                                to_string(shape), sharding.spec().to_string(), sharding.rank()));
  }
}

}  // namespace

ProcessView::ProcessView(Sharding sharding, const std::function<std::int64_t(DeviceId)>& process_of)
    : sharding_(std::move(sharding)) {
  const Mesh& mesh = sharding_.mesh();
  std::vector<std::int64_t> process_of_position;
  process_of_position.reserve(
      detail::list_size(mesh.size(), "the processes of a mesh by position"));
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    process_of_position.push_back(
        process_of(mesh.is_abstract() ? position : mesh.device_at(position)));
  }
  processes_ = process_of_position;
  sort_unique(processes_);
  positions_.resize(processes_.size());
  for (std::int64_t position = 0; position < mesh.size(); ++position) {
    process_at_.push_back(number_of(process_of_position[as_size(position)]));
    positions_[process_at_.back()].push_back(position);
  }
  for (std::size_t dim = 0; dim < sharding_.rank(); ++dim) {
    std::vector<std::vector<std::int64_t>> tiles_of(processes_.size());
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      tiles_of[process_at_[as_size(position)]].push_back(sharding_.tile_index(position, dim));
    }
    dims_.push_back(view_of(std::move(tiles_of)));
  }
}

ProcessView::ProcessView(Sharding sharding, std::span<const std::int64_t> process_of)
    : ProcessView(std::move(sharding), [process_of](DeviceId device) {
        if (as_size(device) >= process_of.size()) {
          throw Error(ErrorCode::not_found,
                      fmt::format("process view: device {} is not among the {} devices whose "
                                  "processes are listed",
                                  device, process_of.size()));
        }
        return process_of[as_size(device)];
      }) {}

ProcessView::DimView ProcessView::view_of(std::vector<std::vector<std::int64_t>> tiles_of) {
  for (std::vector<std::int64_t>& tiles : tiles_of) sort_unique(tiles);
  DimView view;
  view.sets = tiles_of;
  std::sort(view.sets.begin(), view.sets.end());
  view.sets.erase(std::unique(view.sets.begin(), view.sets.end()), view.sets.end());
  std::vector<std::size_t> holder;  // per tile: the first process seen that holds it
  for (std::size_t process = 0; process < tiles_of.size(); ++process) {
    const std::vector<std::int64_t>& tiles = tiles_of[process];
    const auto set = std::lower_bound(view.sets.begin(), view.sets.end(), tiles);
    view.set_of.push_back(as_size(set - view.sets.begin()));
    if (tiles.size() != tiles_of[0].size()) view.conflict = {0, process};
    for (const std::int64_t tile : tiles) {
      if (as_size(tile) >= holder.size()) holder.resize(as_size(tile) + 1, tiles_of.size());
      std::size_t& first = holder[as_size(tile)];
      if (first == tiles_of.size()) first = process;
      if (tiles_of[first] != tiles) view.conflict = {first, process};
    }
  }
  return view;
}

std::size_t ProcessView::number_of(std::int64_t process) const {
  const auto found = std::lower_bound(processes_.begin(), processes_.end(), process);
  if (found == processes_.end() || *found != process) {
    throw Error(ErrorCode::not_found,
                fmt::format("process view: process {} has no device among the {} of the mesh",
                            process, sharding_.mesh().size()));
  }
  return as_size(found - processes_.begin());
}

std::span<const std::int64_t> ProcessView::positions(std::int64_t process) const {
  return positions_[number_of(process)];
}

bool ProcessView::is_uniform(std::size_t dim) const { return !dims_[dim].conflict; }

void ProcessView::check_uniform(const char* operation, std::size_t dim) const {
  const DimView& view = dims_[dim];
  if (!view.conflict) return;
  const auto [a, b] = *view.conflict;
  const std::vector<std::int64_t>& tiles_a = view.sets[view.set_of[a]];
  const std::vector<std::int64_t>& tiles_b = view.sets[view.set_of[b]];
  const bool unequal = tiles_a.size() != tiles_b.size();
  fail(operation,
       fmt::format("dim {} of the sharding \"{}\" is not cut evenly over processes: process {} "
                   "holds {} of its {} tiles, process {} {}{}; needed are equally many, all or "
                   "none in common",
                   dim, sharding_.spec().to_string(), processes_[a], tiles_a.size(),
                   sharding_.tiles(dim), processes_[b], tiles_b.size(),
                   unequal ? "" : ", some of them in common"));
}

ProcessShare ProcessView::share(std::int64_t process, std::size_t dim) const {
  const std::size_t number = number_of(process);
  check_uniform("share of a process", dim);
  return {static_cast<std::int64_t>(dims_[dim].set_of[number]),
          static_cast<std::int64_t>(dims_[dim].sets.size())};
}

std::span<const std::int64_t> ProcessView::tiles(std::int64_t process, std::size_t dim) const {
  return dims_[dim].sets[dims_[dim].set_of[number_of(process)]];
}

Shape ProcessView::local_shape(std::int64_t process, const Shape& global) const {
  sharding_.shard_shape(global);  // checks the shape
  Shape local = global;
  for (std::size_t dim = 0; dim < local.size(); ++dim) {
    local[dim] = offsets_of(sharding_, tiles(process, dim), dim, global[dim]).back();
  }
  return local;
}

Shape ProcessView::global_shape(const Shape& local) const {
  check_rank("global shape", sharding_, local);
  Shape global = local;
  for (std::size_t dim = 0; dim < local.size(); ++dim) {
    check_uniform("global shape", dim);
    const auto shares = static_cast<std::int64_t>(dims_[dim].sets.size());
    global[dim] = product("global shape", dim, local[dim], shares);
  }
  for (std::size_t dim = 0; dim < local.size(); ++dim) {
    check_held("global shape", *this, dim, local[dim], global);
  }
  return global;
}

Box ProcessView::local_box(std::int64_t position, const Shape& global) const {
  Box box = sharding_.box_at(position, global);
  const std::int64_t process = processes_[process_at_[as_size(position)]];
  for (std::size_t dim = 0; dim < global.size(); ++dim) {
    const std::span<const std::int64_t> held = tiles(process, dim);
    const auto tile =
        std::lower_bound(held.begin(), held.end(), sharding_.tile_index(position, dim));
    const std::int64_t begin =
        offsets_of(sharding_, held.first(as_size(tile - held.begin())), dim, global[dim]).back();
    box.set(dim, begin, begin + box.extent(dim));
  }
  return box;
}

Minibatch minibatch(const ProcessView& view, std::int64_t process, const Shape& local) {
  const Sharding& sharding = view.sharding();
  check_rank("minibatch", sharding, local);
  if (local.empty()) fail("minibatch", "a scalar has no rows to be divided");
  Minibatch batch{local, view.share(process, 0), {}};
  Shape& global = batch.global_shape;
  global[0] = product("minibatch", 0, local[0], batch.share.count);
  check_held("minibatch", view, 0, local[0], global);
  const std::span<const std::int64_t> held = view.tiles(process, 0);
  const std::vector<std::int64_t> offsets = offsets_of(sharding, held, 0, global[0]);
  for (const std::int64_t position : view.positions(process)) {
    const Box box = sharding.box_at(position, global);
    const auto tile =
        std::lower_bound(held.begin(), held.end(), sharding.tile_index(position, 0)) - held.begin();
    MinibatchPart& part = batch.parts.emplace_back(MinibatchPart{position, box, box});
    part.local.set(0, offsets[as_size(tile)], offsets[as_size(tile) + 1]);
  }
  return batch;
}

}  // namespace shardwise
