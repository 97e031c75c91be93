#include "shardwise/checkpoint/detail/together/same_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "shardwise/checkpoint/detail/together/packer.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

std::string text_of(const TensorRequest& request) {
  const ArraySpec& spec = request.spec;
  return fmt::format("{:?} {} {}, {}", request.name, name(spec.dtype), to_string(spec.shape),
                     spec.sharding.to_string());
}

Hash128 hash_of(const RestoreList& list) {
  const Bytes bytes = encode(list);
  return hash128(bytes.data(), bytes.size());
}

/// "; rank 2 alone asks for \"c\" f32 [4], - on 2", or nothing.
std::string only_in(std::span<const std::string> those, std::span<const std::string> others,
                    std::int64_t rank) {
  std::vector<std::string> alone;
  std::ranges::set_difference(those, others, std::back_inserter(alone));
  if (alone.empty()) return {};
  return fmt::format("; rank {} alone asks for {}{}", rank, alone.front(),
                     alone.size() > 1 ? fmt::format(" and {} more", alone.size() - 1) : "");
}

std::string difference(const RestoreList& own, const RestoreList& other, std::int64_t rank) {
  if (own.processes_per_read != other.processes_per_read) {
    return fmt::format(
        "found processes_per_read {} on rank 0 and {} on rank {}, needed is the "
        "same on all",
        own.processes_per_read, other.processes_per_read, rank);
  }
  if (own.checkpoint != other.checkpoint) {
    return fmt::format("found checkpoint {} on rank 0 and {} on rank {}, needed is the same on all",
                       own.checkpoint, other.checkpoint, rank);
  }
  return fmt::format(
      "found {} requests on rank 0 and {} on rank {}, needed are the same on all{}{}",
      own.requests.size(), other.requests.size(), rank, only_in(own.requests, other.requests, 0),
      only_in(other.requests, own.requests, rank));
}

RestoreVerdict judge(const ProcessGroup& group, std::span<const Bytes> messages) {
  RestoreVerdict verdict;
  std::vector<RestoreDigest> digests;
  for (const Bytes& message : messages) digests.push_back(decode_restore_digest(message));
  for (int rank = group.size(); rank-- > 0;) {
    const RestoreDigest& digest = digests[static_cast<std::size_t>(rank)];
    if (!(digest.list == digests.front().list)) verdict.differing = rank;
    if (!digest.problem.empty()) verdict.problem = digest.problem;
  }
  if (!verdict.problem.empty()) verdict.differing = -1;
  return verdict;
}

}  // namespace

Bytes encode(const RestoreList& list) {
  Packer packer;
  packer.text(list.checkpoint);
  packer.number(list.processes_per_read);
  packer.number(std::uint64_t{list.requests.size()});
  for (const std::string& request : list.requests) packer.text(request);
  return sealed(packer.take());
}

Bytes encode(const RestoreDigest& digest) {
  Packer packer;
  packer.hash(digest.list);
  packer.text(digest.problem);
  return sealed(packer.take());
}

Bytes encode(const RestoreVerdict& verdict) {
  Packer packer;
  packer.number(verdict.differing);
  packer.text(verdict.problem);
  return sealed(packer.take());
}

RestoreList decode_restore_list(std::span<const std::byte> message) {
  Unpacker unpacker = Unpacker::of_sealed(message, "another process's list of tensors to restore");
  RestoreList list;
  list.checkpoint = unpacker.text();
  list.processes_per_read = unpacker.integer();
  // The number is not trusted: a list that is too short ends with an error, not with memory.
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    list.requests.push_back(unpacker.text());
  }
  unpacker.end();
  return list;
}

RestoreDigest decode_restore_digest(std::span<const std::byte> message) {
  Unpacker unpacker = Unpacker::of_sealed(message, "another process's hash of what it restores");
  RestoreDigest digest;
  digest.list = unpacker.hash();
  digest.problem = unpacker.text();
  unpacker.end();
  return digest;
}

RestoreVerdict decode_restore_verdict(std::span<const std::byte> message) {
  Unpacker unpacker = Unpacker::of_sealed(message, "rank 0's answer to a restore");
  RestoreVerdict verdict;
  verdict.differing = unpacker.integer();
  verdict.problem = unpacker.text();
  unpacker.end();
  return verdict;
}

std::vector<std::size_t> common_order(std::span<const TensorRequest> requests) {
  std::vector<std::size_t> order(requests.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::vector<std::string> texts(requests.size());  // only of names that are given twice
  const auto text = [&](std::size_t i) -> const std::string& {
    if (texts[i].empty()) texts[i] = text_of(requests[i]);
    return texts[i];
  };
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    const int names = requests[a].name.compare(requests[b].name);
    return names != 0 ? names < 0 : text(a) < text(b);
  });
  return order;
}

RestoreList restore_list(std::string checkpoint, int processes_per_read,
                         std::span<const TensorRequest> requests) {
  RestoreList list{std::move(checkpoint), processes_per_read, {}};
  list.requests.reserve(requests.size());
  for (const TensorRequest& request : requests) list.requests.push_back(text_of(request));
  std::ranges::sort(list.requests);
  return list;
}

std::string refusal(const ProcessGroup& group, const RestoreList& list,
                    const std::string& problem) {
  const bool decides = group.rank() == 0;
  const std::vector<Bytes> digests = group.gather(encode(RestoreDigest{hash_of(list), problem}));
  const auto announce = [&](const RestoreVerdict& verdict) {
    return decode_restore_verdict(group.broadcast(decides ? encode(verdict) : Bytes()));
  };
  RestoreVerdict verdict = announce(decides ? judge(group, digests) : RestoreVerdict());
  if (verdict.differing >= 0) {
    std::vector<ProcessGroup::Outgoing> outgoing;
    if (group.rank() == verdict.differing) outgoing.push_back({0, encode(list)});
    std::vector<int> from;
    if (decides) from.push_back(static_cast<int>(verdict.differing));
    const std::vector<Bytes> lists = group.exchange(std::move(outgoing), from);
    if (decides) {
      verdict.problem = "restore by processes that read for each other: " +
                        difference(list, decode_restore_list(lists.front()), verdict.differing);
    }
    verdict = announce(verdict);
  }
  return verdict.problem;
}

}  // namespace shardwise::detail
