#include "shardwise/runtime/program/detail/loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "shardwise/runtime/program/detail/run.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

using ValueId = Program::ValueId;

/// One run of a loop: the places of its body's values.
class LoopRun {
 public:
  /// `here`: the positions of this process.
  LoopRun(const Program::Loop& loop, const LoopBody& body, const Storage& storage,
          std::vector<std::int64_t> here)
      : loop_(loop),
        body_(body),
        around_(storage),
        storage_(body.program.mesh().size()),
        here_(std::move(here)),
        input_bytes_(body_.inputs.size()),
        output_bytes_(body_.outputs.size()) {
    for (const std::int64_t p : here_) {
      for (std::size_t i = 0; i < body_.inputs.size(); ++i) {
        input_bytes_[i].push_back(shard_bytes(body_.inputs[i], p));
      }
      for (std::size_t o = 0; o < body_.outputs.size(); ++o) {
        output_bytes_[o].push_back(shard_bytes(body_.outputs[o], p));
      }
      for (std::size_t i = 0; i < consts(); ++i) {
        storage_.bind(body_.inputs[i], p, around_.data(loop_.inputs[i], p));
      }
      for (const LoopBody::Place& place : body_.places) {
        if (place.input < 0) storage_.bind(place.value, p, memory(place.offset, p));
      }
    }
  }

  const Storage& storage() const { return storage_; }

  /// Copies carries that no trip makes.
  void copy_first() const {
    for (std::size_t h = 0; h < here_.size(); ++h) {
      const std::int64_t p = here_[h];
      for (std::size_t k = 0; k < body_.carries; ++k) {
        copy(around_.writable(loop_.outputs[k], p), around_.data(loop_.inputs[consts() + k], p),
             input_bytes_[consts() + k][h]);
      }
    }
  }

  /// Binds the values that this trip reads and writes.
  void begin(std::int64_t trip) {
    for (std::size_t h = 0; h < here_.size(); ++h) {
      const std::int64_t p = here_[h];
      for (std::size_t k = 0; k < body_.carries; ++k) {
        storage_.bind(body_.inputs[consts() + k], p, carried_in(k, trip, h));
      }
      for (std::size_t x = 0; x < body_.xs; ++x) {
        const std::size_t input = consts() + body_.carries + x;
        storage_.bind(body_.inputs[input], p,
                      around_.data(loop_.inputs[input], p) + place(trip) * input_bytes_[input][h]);
      }
      for (std::size_t o = 0; o < body_.outputs.size(); ++o) {
        if (body_.is_made[o]) storage_.bind(body_.outputs[o], p, target(o, trip, h));
      }
      for (const LoopBody::Place& place : body_.places) {
        if (place.input < 0) continue;
        // The value's step leaves the bytes unchanged.
        storage_.bind(place.value, p,
                      const_cast<std::byte*>(storage_.data(place.input, p)) + place.offset);
      }
    }
  }

  /// Copies outputs that the body does not make.
  void end(std::int64_t trip) const {
    for (std::size_t o = 0; o < body_.outputs.size(); ++o) {
      if (body_.is_made[o]) continue;
      for (std::size_t h = 0; h < here_.size(); ++h) {
        copy(target(o, trip, h), storage_.data(body_.outputs[o], here_[h]), output_bytes_[o][h]);
      }
    }
  }

 private:
  std::size_t consts() const { return body_.inputs.size() - body_.carries - body_.xs; }

  std::size_t shard_bytes(ValueId value, std::int64_t position) const {
    const Program::Value& of_body = body_.program.value(value);
    return num_bytes(of_body.box(position).shape(), size_bytes(of_body.dtype));
  }

  static void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  /// The number of the slice of a trip.
  std::size_t place(std::int64_t trip) const {
    return as_size(body_.reverse ? body_.trips - 1 - trip : trip);
  }

  std::byte* memory(std::size_t offset, std::int64_t position) const {
    if (loop_.memory < 0) return nullptr;  // it has no bytes
    return around_.writable(loop_.memory, position) + offset;
  }

  /// The last trip writes the result, the one before writes spare memory, and so on; or all write
  /// the result.
  std::byte* target(std::size_t output, std::int64_t trip, std::size_t h) const {
    std::byte* const result = around_.writable(loop_.outputs[output], here_[h]);
    if (output >= body_.carries) return result + place(trip) * output_bytes_[output][h];
    const std::optional<std::size_t>& spare = body_.spare_offsets[output];
    if (!spare || (body_.trips - 1 - trip) % 2 == 0) return result;
    return memory(*spare, here_[h]);
  }

  const std::byte* carried_in(std::size_t carry, std::int64_t trip, std::size_t h) const {
    if (trip > 0) return target(carry, trip - 1, h);
    return around_.data(loop_.inputs[consts() + carry], here_[h]);
  }

  const Program::Loop& loop_;
  const LoopBody& body_;
  const Storage& around_;
  Storage storage_;
  const std::vector<std::int64_t> here_;

  // Bytes of the shard, by input or output of the body, and by position of this process.
  std::vector<std::vector<std::size_t>> input_bytes_, output_bytes_;
};

/// Returns the value of the scalar. A process without devices of the mesh gets it from another,
/// since it counts the exchanges of the branch with the others.
bool is_true(const Program::Loop& loop, const Mesh& mesh, const Storage& storage,
             const Devices& devices, std::uint64_t tag) {
  std::vector<bool> has_some(as_size(devices.group().size()), false);
  std::int64_t own = -1;
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    has_some[as_size(devices.process_of(mesh.device_at(p)))] = true;
    if (own < 0 && devices.is_addressable(mesh.device_at(p))) own = p;
  }
  std::byte value = own < 0 ? std::byte{0} : storage.data(loop.predicate, own)[0];
  if (std::find(has_some.begin(), has_some.end(), false) == has_some.end()) {
    return value != std::byte{0};
  }
  const int first = devices.process_of(mesh.device_at(0)), rank = devices.group().rank();
  std::vector<ProcessGroup::Outgoing> outgoing;
  for (int to = 0; rank == first && to < devices.group().size(); ++to) {
    if (!has_some[as_size(to)]) outgoing.push_back({to, {value}});
  }
  const std::vector<int> from(own < 0 ? 1 : 0, first);
  const auto told = devices.group().exchange(std::move(outgoing), from, {}, tag);
  if (own < 0) value = told.front().front();
  return value != std::byte{0};
}

}  // namespace

void run_loop(const Program::Loop& loop, const Program& around, const Storage& storage,
              const Devices& devices, std::uint64_t tag) {
  std::vector<std::int64_t> here;
  for (std::int64_t p = 0; p < around.mesh().size(); ++p) {
    if (devices.is_addressable(around.mesh().device_at(p))) here.push_back(p);
  }
  const bool is_false = loop.predicate >= 0 && !is_true(loop, around.mesh(), storage, devices, tag);
  const LoopBody& body = is_false ? *loop.otherwise : *loop.body;
  LoopRun one(loop, body, storage, std::move(here));
  if (body.trips == 0) one.copy_first();
  for (std::int64_t trip = 0; trip < body.trips; ++trip) {
    one.begin(trip);
    try {
      run_steps(body.program, body.schedule, one.storage(), devices,
                splitmix64(tag + static_cast<std::uint64_t>(trip)));
    } catch (...) {
      rethrow(loop.predicate < 0 ? fmt::format("{}, trip {}", loop.name, trip) : loop.name);
    }
    one.end(trip);
  }
  count_traffic(body.program, 0, devices, as_size(body.trips));
}

}  // namespace shardwise
