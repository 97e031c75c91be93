#include "shardwise/checkpoint/detail/read/fan_out.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace shardwise::detail {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{4} << 20;
constexpr std::size_t kRoundBytes = std::size_t{64} << 20;  // of all messages of a round

struct Segment {
  const SharedBox* box;
  std::size_t begin, bytes;
};

void send(const ProcessGroup& group, std::span<const Segment> segments) {
  std::map<int, Bytes> to;
  std::map<int, std::size_t> from;  // how much of it is taken
  for (const Segment& segment : segments) {
    const SharedBox& box = *segment.box;
    if (box.places.empty()) continue;
    if (box.reader != group.rank()) {
      from.emplace(box.reader, 0);
      continue;
    }
    const std::span part(box.places.front() + segment.begin, segment.bytes);
    for (const int holder : box.holders) {
      if (holder != box.reader) to[holder].insert(to[holder].end(), part.begin(), part.end());
    }
  }
  std::vector<ProcessGroup::Outgoing> outgoing;
  outgoing.reserve(to.size());
  for (auto& [rank, bytes] : to) outgoing.push_back({rank, std::move(bytes)});
  std::vector<int> senders;
  senders.reserve(from.size());
  for (const auto& [rank, taken] : from) senders.push_back(rank);
  const std::vector<Bytes> messages = group.exchange(std::move(outgoing), senders);
  for (const Segment& segment : segments) {
    const SharedBox& box = *segment.box;
    if (box.places.empty() || box.reader == group.rank()) continue;
    const auto sender = std::ranges::lower_bound(senders, box.reader) - senders.begin();
    std::size_t& taken = from[box.reader];
    const std::byte* const bytes = messages[static_cast<std::size_t>(sender)].data() + taken;
    for (std::byte* const place : box.places) {
      std::memcpy(place + segment.begin, bytes, segment.bytes);
    }
    taken += segment.bytes;
  }
}

}  // namespace

BoxReaders::BoxReaders(int processes, int together)
    : together_(together), bytes_(static_cast<std::size_t>(processes), 0) {}

std::span<const int> BoxReaders::choose(std::span<const int> holders, std::size_t bytes) {
  chosen_.clear();
  for (std::size_t i = 0; i < holders.size();) {
    int best = holders[i];
    const int neighbours = best / together_;
    for (; i < holders.size() && holders[i] / together_ == neighbours; ++i) {
      if (bytes_[static_cast<std::size_t>(holders[i])] < bytes_[static_cast<std::size_t>(best)]) {
        best = holders[i];
      }
    }
    bytes_[static_cast<std::size_t>(best)] += bytes;
    chosen_.push_back(best);
  }
  return chosen_;
}

void fan_out(const ProcessGroup& group, std::span<const SharedBox> boxes) {
  std::vector<Segment> round;
  std::size_t in_round = 0;
  for (const SharedBox& box : boxes) {
    const std::size_t takers = box.holders.size() - 1;
    for (std::size_t begin = 0; begin < box.bytes; begin += kSegmentBytes) {
      const Segment segment{&box, begin, std::min(kSegmentBytes, box.bytes - begin)};
      if (!round.empty() && in_round + segment.bytes * takers > kRoundBytes) {
        send(group, round);
        round.clear();
        in_round = 0;
      }
      round.push_back(segment);
      in_round += segment.bytes * takers;
    }
  }
  if (!round.empty()) send(group, round);
}

}  // namespace shardwise::detail
