#pragma once

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/mend/parity.h"
#include "shardwise/mend/repair.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {

/// Actions that the fault tests interrupt half-way. The root holds steps 1 and 2.
enum class FaultAction {
  save,                 ///< step 3
  replace,              ///< step 2, by the model of seed 3
  remove,               ///< step 2
  retention,            ///< step 3; two are kept
  reuse,                ///< step 4 in the files of step 1, which goes before; two are kept
  increment,            ///< step 4, mostly in the files of step 3; two are kept
  save_until_progress,  ///< step 3, in several batches
  save_past_limit,      ///< step 3, where files may grow to 4 MiB only
  repair,               ///< step 1, by a copy of it in the folder "copy", if there is one
  write_parity,         ///< of step 1
  rules,    ///< step 5, which is better than step 3; 1 has a name, 4 is kept by its number
  pin,      ///< step 2 gets the name of step 1
  collect,  ///< what dead processes have left
};

inline const char* fault_action_name(FaultAction action) {
  constexpr const char* names[] = {"save",
                                   "replace",
                                   "remove",
                                   "retention",
                                   "reuse",
                                   "increment",
                                   "save_until_progress",
                                   "save_past_limit",
                                   "repair",
                                   "write_parity",
                                   "rules",
                                   "pin",
                                   "collect"};
  return names[static_cast<int>(action)];
}

/// A small model: compressed and not, chunked and not, a scalar. Seeds 1, 2, 3.
inline const std::vector<HostTensor>& fault_model(std::uint64_t seed) {
  static const auto make = [](std::uint64_t made) {
    return std::vector<HostTensor>{
        host_tensor("ramp", DType::i32, {300, 200}, "2,2", "0,1", Values::ramp, made),
        host_tensor("w/noise", DType::f32, {200, 100}, "2,2", "0,-", Values::noise, made),
        host_tensor("step", DType::i64, {}, "2,2", "", Values::ramp, made)};
  };
  static const std::vector<HostTensor> models[] = {make(1), make(2), make(3)};
  return models[seed - 1];
}

/// A model with one tensor that depends on the seed.
inline std::vector<HostTensor> increment_model(std::uint64_t seed) {
  return {host_tensor("frozen", DType::f32, {300, 200}, "2", "0,-", Values::noise, 1),
          host_tensor("ramp", DType::i32, {300, 200}, "2", "0,-", Values::ramp, seed)};
}

/// Five batches under the least memory budget.
inline std::vector<HostTensor> large_fault_model(std::uint64_t seed) {
  std::vector<HostTensor> tensors = fault_model(seed);
  tensors.push_back(host_tensor("x", DType::u8, {20, 1 << 20}, "", "-,-", Values::ramp, seed));
  return tensors;
}

/// A few MiB, so that writing takes a while; most of it does not depend on the seed.
inline std::vector<HostTensor> killed_model(std::uint64_t seed) {
  static const HostTensor frozen = host_tensor("frozen", DType::u8, {3, 1 << 20}, "2", "-,0");
  std::vector<HostTensor> tensors = fault_model(seed);
  tensors.push_back(frozen);
  tensors.push_back(host_tensor("x", DType::u8, {2, 1 << 20}, "2", "-,0", Values::noise, seed));
  return tensors;
}

inline RepairReport run_repair(const std::filesystem::path& root,
                               std::shared_ptr<FileSystem> files) {
  RepairOptions options{.threads = 1, .file_system = std::move(files)};
  if (std::filesystem::exists(root / "copy")) options.from = {root / "copy"};
  return repair_checkpoint(root / "step-00000001", options);
}

inline ParityStats run_write_parity(const std::filesystem::path& root,
                                    std::shared_ptr<FileSystem> files) {
  return write_parity(root / "step-00000001",
                      {.blocks = 1, .threads = 1, .file_system = std::move(files)});
}

/// A name that pin() gives.
constexpr const char* kFaultName = "good";

/// The manager that an action needs.
inline ManagerOptions fault_options(FaultAction action, std::shared_ptr<FileSystem> files) {
  const bool keeps_two = action == FaultAction::retention || action == FaultAction::reuse ||
                         action == FaultAction::increment;
  // Without stats, which are not synced: they would only multiply the states of a disk.
  ManagerOptions options{.keep = {.last = keeps_two ? 2 : 0},
                         .write = {.stats = false},
                         .collect_garbage = false,
                         .file_system = std::move(files)};
  if (action == FaultAction::rules) {
    options.keep.every = 4;
    options.keep.best = BestSteps{.metric = "loss"};
  }
  return options;
}

/// The loss of a step in any process; no two steps have the same.
inline double fault_loss(std::int64_t step) {
  return static_cast<double>(step * 7919 % 101) + static_cast<double>(step) * 1e-6;
}

/// SaveStats::cleanup_error; what saves nothing has none.
inline std::string run_fault_action(CheckpointManager& manager, FaultAction action,
                                    std::int64_t step, std::span<const HostTensor> model) {
  if (action == FaultAction::remove) {
    manager.remove(step);
    return {};
  }
  if (action == FaultAction::pin) {
    manager.pins().add(step, kFaultName);
    return {};
  }
  if (action == FaultAction::collect) {
    manager.collect_garbage();
    return {};
  }
  const Existing existing = action == FaultAction::replace ? Existing::replace : Existing::fail;
  return manager
      .save(step, sources_of(model),
            {.metrics = {{"loss", fault_loss(step)}}, .existing = existing})
      .cleanup_error;
}

/// As dead processes leave them: an attempt, unfinished and finished leases, trash.
inline void leave_garbage(const std::filesystem::path& root) {
  const std::string id(32, 'a');
  detail::LeaseOwner owner = detail::this_process();
  owner.boot = "another";
  const std::string lease = detail::print_lease(owner);
  write_file(root / (".step-00000007." + id + ".lease"), lease);
  write_file(root / (".step-00000008." + id + ".lease.new"), lease);
  for (const std::string& name : {".step-00000007." + id + ".tmp", ".trash-step-00000001." + id}) {
    std::filesystem::create_directory(root / name);
    write_file(root / name / "manifest.json", "{");
    write_file(root / name / "shards-00000-of-00001.h5", "x");
  }
}

/// Saves and pins that the same manager makes before an action.
inline void prepare_fault_action(CheckpointManager& manager, FaultAction action) {
  const auto save = [&](std::int64_t step) {
    run_fault_action(manager, action, step, fault_model(3));
  };
  if (action == FaultAction::reuse) save(3);
  if (action == FaultAction::increment) manager.save(3, sources_of(increment_model(3)));
  if (action == FaultAction::rules || action == FaultAction::pin) manager.pins().add(1, kFaultName);
  if (action == FaultAction::rules) {
    save(3);
    save(4);
  }
  if (action == FaultAction::collect) leave_garbage(manager.step(1).directory.parent_path());
}

inline std::string run_fault_action(CheckpointManager& manager, FaultAction action) {
  if (action == FaultAction::reuse) return run_fault_action(manager, action, 4, fault_model(1));
  if (action == FaultAction::increment) {
    return run_fault_action(manager, action, 4, increment_model(4));
  }
  if (action == FaultAction::rules) return run_fault_action(manager, action, 5, fault_model(1));
  const bool is_new = action == FaultAction::save || action == FaultAction::retention;
  return run_fault_action(manager, action, is_new ? 3 : 2, fault_model(3));
}

}  // namespace shardwise
