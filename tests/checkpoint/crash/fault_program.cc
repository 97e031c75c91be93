// The process that is killed in manager_faults_test.cc and manager_killed_test.cc.
//
//   fault_program ROOT ACTION NUMBER                       SIGKILL before file operation NUMBER of
//                                                          the action, or when NUMBER quarters are
//                                                          written
//   fault_program ROOT ACTION NUMBER STEP SEED DELAY_US    so long after operation NUMBER begins,
//                                                          start-up and its clean-up counted in

#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "shardwise/shard/error.h"
#include "testing/fault_model.h"
#include "testing/faulty_file_system.h"

namespace {

using namespace shardwise;

// The nearest thing to a full disk that needs no disk: the system itself refuses to write on.
int save_past_limit(const char* root) {
  const rlimit limit{4 << 20, 4 << 20};
  std::signal(SIGXFSZ, SIG_IGN);
  if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
  CheckpointManager manager(root);
  try {
    manager.save(3, sources_of(large_fault_model(3)), {.codec = Codec::none});
  } catch (const Error& e) {
    const std::string message = e.what();
    if (e.code() == ErrorCode::io && message.find("File too large") != std::string::npos) return 0;
    throw;
  }
  return 1;
}

// The action on a step, by the large model of a seed.
void run_until_killed(const char* root, FaultAction action, std::int64_t number, char** rest) {
  const auto files = std::make_shared<FaultyFileSystem>(number, Fault::kill, std::atoll(rest[2]));
  ManagerOptions options = fault_options(action, files);
  options.collect_garbage = true;
  CheckpointManager manager(root, std::move(options));
  const auto seed = static_cast<std::uint64_t>(std::atoll(rest[1]));
  const std::int64_t step = std::atoll(rest[0]);
  if (action == FaultAction::reuse) run_fault_action(manager, action, step - 1, killed_model(seed));
  run_fault_action(manager, action, step, killed_model(seed));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4 && argc != 7) return 2;
  const auto action = static_cast<FaultAction>(std::atoi(argv[2]));
  const std::int64_t number = std::atoll(argv[3]);
  try {
    if (argc == 7) {
      run_until_killed(argv[1], action, number, argv + 4);
      return 0;
    }
    if (action == FaultAction::save_until_progress) {
      CheckpointManager manager(argv[1]);
      SaveOptions options{.memory_budget_bytes = std::size_t{8} << 20};
      // Counts bytes, not calls: how often it is called is up to the scheduler.
      options.progress = [&](const Progress& progress) {
        const auto part = static_cast<std::size_t>(number) * progress.total_bytes;
        if (4 * progress.done_bytes >= part) std::raise(SIGKILL);
      };
      manager.save(3, sources_of(large_fault_model(3)), options);
      return 0;
    }
    if (action == FaultAction::save_past_limit) return save_past_limit(argv[1]);
    auto files = std::make_shared<FaultyFileSystem>(0, Fault::kill);
    if (action == FaultAction::repair || action == FaultAction::write_parity) {
      files->exchange_in_one_step();
      files->restart(number);
      if (action == FaultAction::repair) {
        run_repair(argv[1], files);
      } else {
        run_write_parity(argv[1], files);
      }
      return 0;
    }
    CheckpointManager manager(argv[1], fault_options(action, files));
    prepare_fault_action(manager, action);
    files->restart(number);
    run_fault_action(manager, action);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fault_program: %s\n", e.what());
    return 1;
  }
}
