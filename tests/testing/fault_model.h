#pragma once

#include <csignal>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/host_tensor.h"

namespace shardwise {

/// What goes wrong half-way in the fault tests. The root holds steps 1 and 2.
enum class FaultAction {
  save,                 ///< step 3
  replace,              ///< step 2, by the model of seed 3
  remove,               ///< step 2
  retention,            ///< step 3, of which two are kept
  reuse,                ///< step 4 in the files of step 1, which goes before; two are kept
  increment,            ///< step 4, most of which is in the files of step 3; two are kept
  save_until_progress,  ///< step 3, in several batches
  save_past_limit,      ///< step 3, where files may grow to 4 MiB only
  repair,               ///< step 1, by a copy of it in the folder "copy", if there is one
  write_parity,         ///< of step 1
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
                                   "write_parity"};
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

/// Of which only one tensor depends on the seed.
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

/// A few MiB, so that writing takes a while.
inline std::vector<HostTensor> killed_model(std::uint64_t seed) {
  std::vector<HostTensor> tensors = fault_model(seed);
  tensors.push_back(host_tensor("x", DType::u8, {4, 1 << 20}, "2", "-,0", Values::noise, seed));
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

/// The manager that an action needs.
inline ManagerOptions fault_options(FaultAction action, std::shared_ptr<FileSystem> files) {
  const bool keeps_two = action == FaultAction::retention || action == FaultAction::reuse ||
                         action == FaultAction::increment;
  return {
      .keep_last = keeps_two ? 2 : 0, .collect_garbage = false, .file_system = std::move(files)};
}

/// SaveStats::cleanup_error; a removal has none.
inline std::string run_fault_action(CheckpointManager& manager, FaultAction action,
                                    std::int64_t step, std::span<const HostTensor> model) {
  if (action == FaultAction::remove) {
    manager.remove(step);
    return {};
  }
  const Existing existing = action == FaultAction::replace ? Existing::replace : Existing::fail;
  return manager.save(step, sources_of(model), {.existing = existing}).cleanup_error;
}

/// What comes before an action by the same manager.
inline void prepare_fault_action(CheckpointManager& manager, FaultAction action) {
  if (action == FaultAction::reuse) manager.save(3, sources_of(fault_model(3)));
  if (action == FaultAction::increment) manager.save(3, sources_of(increment_model(3)));
}

inline std::string run_fault_action(CheckpointManager& manager, FaultAction action) {
  if (action == FaultAction::reuse) return run_fault_action(manager, action, 4, fault_model(1));
  if (action == FaultAction::increment) {
    return run_fault_action(manager, action, 4, increment_model(4));
  }
  const bool is_new = action == FaultAction::save || action == FaultAction::retention;
  return run_fault_action(manager, action, is_new ? 3 : 2, fault_model(3));
}

}  // namespace shardwise
