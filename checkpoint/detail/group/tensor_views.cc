#include "shardwise/checkpoint/detail/group/tensor_views.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/checkpoint/detail/group/one_writer.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

std::string describe(const TensorEntry& tensor) {
  return fmt::format("{} {} over {} as {} ({})", name(tensor.dtype), to_string(tensor.shape),
                     tensor.mesh, tensor.spec, tensor.policy);
}

}  // namespace

Hash128 hash_of(std::string_view text) {
  return hash128(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

TensorViews::TensorViews(std::span<const SaveReport> reports) {
  list_of_rank_.reserve(reports.size());
  for (const SaveReport& report : reports) list_of_rank_.push_back(report.tensors);
}

std::vector<int> TensorViews::others() const {
  std::vector<int> ranks;
  std::vector<Hash128> seen{list_of_rank_.front()};
  for (std::size_t rank = 1; rank < list_of_rank_.size(); ++rank) {
    if (std::ranges::find(seen, list_of_rank_[rank]) != seen.end()) continue;
    seen.push_back(list_of_rank_[rank]);
    ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void TensorViews::merge(std::span<const int> ranks, std::span<const Bytes> lists,
                        Manifest& manifest) {
  struct Known {
    TensorEntry tensor;
    int rank;
  };
  std::map<std::string, Known, std::less<>> known;
  for (TensorEntry& tensor : manifest.tensors) {
    lists_with_[tensor.name].push_back(list_of_rank_.front());
    std::string tensor_name = tensor.name;
    known.try_emplace(std::move(tensor_name), Known{std::move(tensor), 0});
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string_view text(reinterpret_cast<const char*>(lists[i].data()), lists[i].size());
    Manifest list = parse_manifest(text, fmt::format("of rank {}", ranks[i]));
    if (list.writers != manifest.writers) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("rank 0 counts {} devices and {} shard files, rank {} {} and {}: give "
                      "every process the same number of devices (ManagerOptions::devices) "
                      "and of writers",
                      manifest.writers.num_devices(), manifest.writers.num_writers(), ranks[i],
                      list.writers.num_devices(), list.writers.num_writers()));
    }
    for (TensorEntry& tensor : list.tensors) {
      lists_with_[tensor.name].push_back(list_of_rank_[static_cast<std::size_t>(ranks[i])]);
      std::string tensor_name = tensor.name;
      const auto [at, is_new] = known.try_emplace(std::move(tensor_name), Known{tensor, ranks[i]});
      if (is_new || at->second.tensor == tensor) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("tensor {:?} is {} on rank {}, {} on rank {}", tensor.name,
                      describe(at->second.tensor), at->second.rank, describe(tensor), ranks[i]));
    }
  }
  manifest.tensors.clear();
  for (auto& [name, tensor] : known) manifest.tensors.push_back(std::move(tensor.tensor));
}

void TensorViews::check_complete(const Manifest& manifest, std::span<const SaveReport> reports,
                                 const SaveOptions& options) const {
  std::uint64_t needed = 0, found = 0;
  for (const TensorEntry& tensor : manifest.tensors) {
    needed += num_bytes(tensor.shape, size_bytes(tensor.dtype));
  }
  for (const SaveReport& report : reports) found += report.logical_bytes;
  if (needed == found) return;
  std::vector<Box> boxes;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    for (const TensorEntry& tensor : manifest.tensors) {
      const auto with = lists_with_.find(tensor.name);
      const bool has = with == lists_with_.end() ||
                       std::ranges::find(with->second, list_of_rank_[rank]) != with->second.end();
      if (has) continue;
      boxes.clear();
      const WriterRange mine = writers_of(static_cast<int>(rank), options);
      for (std::int64_t w = mine.first; w < mine.end; ++w) {
        add_pieces_of(w, manifest.writers, tensor, boxes);
      }
      if (boxes.empty()) continue;
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rank {} was not given tensor {:?}, of which its devices hold {}",
                              rank, tensor.name, to_string(boxes.front())));
    }
  }
  throw Error(ErrorCode::corrupt, fmt::format("all processes together wrote {} bytes, the tensors "
                                              "have {}",
                                              found, needed));
}

}  // namespace shardwise::detail
