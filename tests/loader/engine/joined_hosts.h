#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "loader/engine/trial_source.h"
#include "shardwise/loader/host_loader.h"

namespace shardwise {

/// A run, joined from hosts that have every n-th position each.
class JoinedHosts {
 public:
  JoinedHosts(const std::shared_ptr<const Source>& source, std::vector<FieldPlacement> placements,
              const LoaderOptions& options, const LoaderState& state, std::int64_t hosts)
      : placements_(std::move(placements)) {
    const std::int64_t size = placements_[0].sharding.mesh().size();
    for (std::int64_t host = 0; host < std::min(hosts, size); ++host) {
      std::vector<std::int64_t> positions;
      for (std::int64_t p = host; p < size; p += hosts) positions.push_back(p);
      loaders_.push_back(std::make_unique<HostLoader>(
          source, placements_, options, state,
          HostLoaderOptions{.positions = positions, .empty_parts = true}));
    }
  }

  std::optional<WholeBatch> next() {
    std::vector<HostBatch> batches;
    for (const auto& loader : loaders_) {
      auto batch = loader->next();
      if (batch) batches.push_back(std::move(*batch));
    }
    if (batches.empty()) return std::nullopt;
    if (batches.size() != loaders_.size()) throw std::logic_error("hosts end apart");
    return join(batches);
  }

  const HostLoader& first() const { return *loaders_[0]; }
  LoaderState state() const {
    for (const auto& loader : loaders_) EXPECT_EQ(loader->state(), loaders_[0]->state());
    return loader_state_from_json(to_json(loaders_[0]->state()));
  }

 private:
  std::vector<FieldPlacement> placements_;
  std::vector<std::unique_ptr<HostLoader>> loaders_;
};

}  // namespace shardwise
