#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/manager.h"
#include "testing/host_tensor.h"
#include "testing/socket_transport.h"

namespace shardwise {

/// Results of a save by a group of threads, per rank.
struct GroupOutcome {
  std::vector<std::string> errors;  ///< empty where it went well
  std::vector<SaveStats> stats;

  bool none_failed() const {
    return std::all_of(errors.begin(), errors.end(), [](const auto& e) { return e.empty(); });
  }
  bool all_failed() const {
    return std::none_of(errors.begin(), errors.end(), [](const auto& e) { return e.empty(); });
  }
};

/// A save by several processes, which are threads here: each with a manager of its own.
struct GroupSaveOptions {
  int ranks = 2;
  std::int64_t devices = 0;
  SaveOptions save = {};
  ManagerOptions manager = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(5);

  // By rank, where they are given.
  std::function<SocketFaults(int)> faults = {};
  std::function<std::filesystem::path(int)> root = {};
  std::function<jobs_detail::RootTerms(int)> terms = {};
  std::function<std::vector<TensorSource>(int)> sources = {};
  std::function<std::shared_ptr<FileSystem>(int)> file_system = {};
  std::function<void(int)> when_open = {};  ///< called when the rank has its manager
};

inline GroupOutcome group_save(const std::filesystem::path& root, std::int64_t step,
                               std::vector<TensorSource> sources, const GroupSaveOptions& options) {
  GroupOutcome outcome;
  outcome.stats.resize(static_cast<std::size_t>(options.ranks));
  outcome.errors =
      run_ranks(options.ranks, options.faults, [&](std::shared_ptr<SocketTransport> transport) {
        const int rank = transport->rank();
        ManagerOptions manager_options = options.manager;
        manager_options.group = ProcessGroup(transport, options.timeout);
        manager_options.devices = options.devices;
        if (options.file_system) manager_options.file_system = options.file_system(rank);
        CheckpointManager manager = jobs_detail::ManagerInternals::manager(
            options.root ? options.root(rank) : root, manager_options,
            options.terms ? options.terms(rank) : jobs_detail::RootTerms());
        if (options.when_open) options.when_open(rank);
        outcome.stats[static_cast<std::size_t>(rank)] =
            manager.save(step, options.sources ? options.sources(rank) : sources, options.save);
      });
  return outcome;
}

}  // namespace shardwise
