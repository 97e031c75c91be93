#include "shardwise/checkpoint/detail/together/one_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string_view>

#include "shardwise/checkpoint/detail/together/messages.h"
#include "shardwise/checkpoint/detail/together/packer.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {
namespace {

constexpr const char* kAnswer = "the elements of a box";

}  // namespace

WriterRange writers_of(int rank, const SaveOptions& options) {
  const std::int64_t first = rank / options.processes_per_file * options.writers;
  return {first, rank % options.processes_per_file == 0 ? first + options.writers : first};
}

std::vector<Neighbours::Held> Neighbours::boxes_held(const Sharding& sharding, const Shape& shape,
                                                     std::int64_t devices) const {
  std::vector<Held> held;
  const WriterMap ranks = WriterMap::even(devices, size_);
  const DeviceId last = last_device(sharding.mesh());
  const int end = rank_ + 1 + static_cast<int>(channels_.size());
  for (int rank = rank_; rank < end; ++rank) {
    const auto [begin, after] = ranks.devices(rank);
    for (DeviceId device = begin; device < after && device <= last; ++device) {
      const auto position = sharding.mesh().position_of(device);
      if (!position) continue;
      Box box = sharding.box_at(*position, shape);
      const bool is_new =
          std::ranges::none_of(held, [&](const Held& other) { return other.box == box; });
      if (is_new) held.push_back({std::move(box), rank});
    }
  }
  return held;
}

/// A tensor of which some boxes are with neighbours.
class Neighbours::Reader final : public BoxReader {
 public:
  Reader(TensorSource own, std::vector<Held> held, int rank,
         std::shared_ptr<std::map<int, Line>> lines)
      : own_(std::move(own)),
        info_(own_.reader->tensors()[own_.tensor]),
        held_(std::move(held)),
        rank_(rank),
        lines_(std::move(lines)) {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }

  void read(std::size_t /*tensor*/, const Box& box, std::span<std::byte> out) const override {
    for (const Held& held : held_) {
      if (held.box.contains(box)) return read_from(held.rank, box, out);
    }
    // A small tensor that is one piece, though it is cut.
    const std::size_t element_bytes = size_bytes(info_.dtype);
    std::vector<std::byte> part;
    for (const Held& held : held_) {
      const Box common = intersect(held.box, box);
      if (common.empty()) continue;
      part.resize(num_bytes(common.shape(), element_bytes));
      read_from(held.rank, common, part);
      copy_box(common, element_bytes, {part.data(), common}, {out.data(), box});
    }
  }

  bool may_change() const override { return own_.reader->may_change(); }

  const std::byte* contiguous(std::size_t /*tensor*/, const Box& box) const override {
    for (const Held& held : held_) {
      if (!held.box.contains(box)) continue;
      return held.rank == rank_ ? own_.reader->contiguous(own_.tensor, box) : nullptr;
    }
    return nullptr;
  }

 private:
  void read_from(int rank, const Box& box, std::span<std::byte> out) const {
    if (rank == rank_) return own_.reader->read(own_.tensor, box, out);
    Line& line = lines_->at(rank);
    const MutexLock lock(line.mutex);
    std::vector<ProcessGroup::Outgoing> outgoing;
    outgoing.push_back({rank, encode(BoxQuestion{own_.name, box})});
    line.channel->exchange(std::move(outgoing), {});
    const Bytes heard = std::move(line.channel->exchange({}, {&rank, 1}).front());
    const std::span<const std::byte> answer = unsealed(heard, kAnswer);
    if (answer.size() != out.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("read box {} of tensor {:?} from rank {}: it sent {} bytes, needed "
                              "are {} and the same tensors on all processes",
                              to_string(box), own_.name, rank, answer.size(), out.size()));
    }
    std::ranges::copy(answer, out.begin());
  }

  const TensorSource own_;
  const TensorInfo info_;
  const std::vector<Held> held_;
  const int rank_;
  const std::shared_ptr<std::map<int, Line>> lines_;
};

Neighbours::Neighbours(const ProcessGroup& group, const SaveOptions& options)
    : rank_(group.rank()),
      size_(group.size()),
      writer_(group.rank() / options.processes_per_file * options.processes_per_file) {
  for (int i = 1; i < options.processes_per_file; ++i) channels_.push_back(group.duplicate());
}

std::vector<TensorSource> Neighbours::gather(std::vector<TensorSource> sources,
                                             std::int64_t devices) {
  if (channels_.empty()) return sources;
  const int end = rank_ + 1 + static_cast<int>(channels_.size());
  auto lines = std::make_shared<std::map<int, Line>>();
  for (int rank = rank_ + 1; rank < end; ++rank) {
    (*lines)[rank].channel = &channels_[static_cast<std::size_t>(rank - rank_ - 1)];
  }
  for (TensorSource& source : sources) {
    if (!source.sharding) continue;  // each process has all of it
    std::vector<Held> held = boxes_held(*source.sharding, info_of(source).shape, devices);
    if (std::ranges::all_of(held, [&](const Held& box) { return box.rank == rank_; })) continue;
    source.reader = std::make_shared<Reader>(source, std::move(held), rank_, lines);
    source.tensor = 0;
  }
  return sources;
}

void Neighbours::finish() {
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    channels_[i].exchange({{rank_ + 1 + static_cast<int>(i), {}}}, {});
  }
}

void Neighbours::serve(const std::vector<TensorSource>& sources) const {
  std::map<std::string_view, const TensorSource*> by_name;
  for (const TensorSource& source : sources) by_name[source.name] = &source;
  const ProcessGroup& channel = channels_[static_cast<std::size_t>(rank_ - writer_ - 1)];
  for (;;) {
    const Bytes asked = std::move(channel.exchange({}, {&writer_, 1}).front());
    if (asked.empty()) return;
    const BoxQuestion question = decode_question(asked);
    const Box& box = question.box;
    const auto found = by_name.find(question.tensor);
    if (found == by_name.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rank {} was not given tensor {:?}, which rank {} saves for both",
                              rank_, question.tensor, writer_));
    }
    const TensorInfo& info = info_of(*found->second);
    if (box.rank() != info.shape.size() || !Box::whole(info.shape).contains(box)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("tensor {:?} has shape {} on rank {}; rank {}, which saves it for "
                      "both, wants box {}",
                      question.tensor, to_string(info.shape), rank_, writer_, to_string(box)));
    }
    Bytes answer(num_bytes(box.shape(), size_bytes(info.dtype)));
    call_caller([&] { found->second->reader->read(found->second->tensor, box, answer); });
    std::vector<ProcessGroup::Outgoing> outgoing;
    outgoing.push_back({writer_, sealed(std::move(answer))});
    channel.exchange(std::move(outgoing), {});
  }
}

}  // namespace shardwise::detail
