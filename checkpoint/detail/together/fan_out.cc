#include "shardwise/checkpoint/detail/together/fan_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/detail/together/packer.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kSegmentBytes = std::size_t{4} << 20;
constexpr std::size_t kRoundBytes = std::size_t{64} << 20;  // of all messages of a round

constexpr std::size_t kHeaderBytes = 3 * sizeof(std::uint64_t);

struct Segment {
  const SharedBox* box;
  std::size_t begin, bytes;

  BoxPart part() const { return {box->id, begin, bytes}; }
};

/// The segments that this process sends to another one, or takes from it.
using SegmentsOf = std::map<int, std::vector<const Segment*>>;

std::vector<BoxPart> parts_of(std::span<const Segment* const> segments) {
  std::vector<BoxPart> parts;
  parts.reserve(segments.size());
  for (const Segment* segment : segments) parts.push_back(segment->part());
  return parts;
}

void send(const ProcessGroup& group, std::span<const Segment> segments) {
  SegmentsOf to, from;
  for (const Segment& segment : segments) {
    const SharedBox& box = *segment.box;
    if (box.places.empty()) continue;
    if (box.reader != group.rank()) {
      from[box.reader].push_back(&segment);
      continue;
    }
    for (const int holder : box.holders) {
      if (holder != box.reader) to[holder].push_back(&segment);
    }
  }
  std::vector<ProcessGroup::Outgoing> outgoing;
  outgoing.reserve(to.size());
  for (const auto& [rank, sent] : to) {
    std::vector<const std::byte*> begins;
    for (const Segment* segment : sent) {
      begins.push_back(segment->box->places.front() + segment->begin);
    }
    outgoing.push_back({rank, pack_parts(parts_of(sent), begins)});
  }
  std::vector<int> senders;
  senders.reserve(from.size());
  for (const auto& [rank, taken] : from) senders.push_back(rank);
  const std::vector<Bytes> messages = group.exchange(std::move(outgoing), senders);
  auto message = messages.begin();
  for (const auto& [rank, taken] : from) {
    const std::vector<const std::byte*> begins = unpack_parts(*message++, parts_of(taken));
    for (std::size_t i = 0; i < taken.size(); ++i) {
      for (std::byte* const place : taken[i]->box->places) {
        std::memcpy(place + taken[i]->begin, begins[i], taken[i]->bytes);
      }
    }
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

Bytes pack_parts(std::span<const BoxPart> parts, std::span<const std::byte* const> from) {
  Bytes message;
  std::size_t bytes = sizeof(std::uint64_t);
  for (const BoxPart& part : parts) bytes += kHeaderBytes + part.bytes;
  message.reserve(bytes);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Packer header;
    header.word(parts[i].id);
    header.word(parts[i].begin);
    header.word(parts[i].bytes);
    const Bytes packed = header.take();
    message.insert(message.end(), packed.begin(), packed.end());
    message.insert(message.end(), from[i], from[i] + parts[i].bytes);
  }
  return sealed(std::move(message));
}

std::vector<const std::byte*> unpack_parts(std::span<const std::byte> message,
                                           std::span<const BoxPart> parts) {
  const auto fail = [](const std::string& problem) {
    throw Error(ErrorCode::corrupt,
                "read boxes of a restore that another process sent: " + problem);
  };
  constexpr std::string_view kWhat = "boxes of a restore";
  std::span<const std::byte> rest = unsealed(message, kWhat);
  std::vector<const std::byte*> begins;
  begins.reserve(parts.size());
  for (const BoxPart& part : parts) {
    if (rest.size() < kHeaderBytes || rest.size() - kHeaderBytes < part.bytes) {
      fail(fmt::format("found {} bytes, needed a part of {}", rest.size(), part.bytes));
    }
    Unpacker header(rest.first(kHeaderBytes), kWhat);
    if (header.word() != part.id || header.word() != part.begin || header.word() != part.bytes) {
      fail("found a part of another box, needed are the boxes that all have listed");
    }
    begins.push_back(rest.data() + kHeaderBytes);
    rest = rest.subspan(kHeaderBytes + static_cast<std::size_t>(part.bytes));
  }
  if (!rest.empty()) fail(fmt::format("found {} bytes more than needed", rest.size()));
  return begins;
}

}  // namespace shardwise::detail
