// The process that manager_faults_test.cc kills: fault_program ROOT ACTION NUMBER does the action
// and gets SIGKILL before file operation NUMBER, or at progress call NUMBER.

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "testing/fault_model.h"
#include "testing/faulty_file_system.h"

int main(int argc, char** argv) {
  using namespace shardwise;
  if (argc != 4) return 2;
  const auto action = static_cast<FaultAction>(std::atoi(argv[2]));
  const std::int64_t number = std::atoll(argv[3]);
  try {
    if (action == FaultAction::save_until_progress) {
      CheckpointManager manager(argv[1]);
      std::int64_t calls = 0;
      SaveOptions options{.memory_budget_bytes = std::size_t{8} << 20};
      options.progress = [&](const Progress&) {
        if (++calls == number) std::raise(SIGKILL);
      };
      manager.save(3, sources_of(large_fault_model(3)), options);
      return 0;
    }
    auto files = std::make_shared<FaultyFileSystem>(0, Fault::kill);
    CheckpointManager manager(argv[1], {.file_system = files});
    files->restart(number);
    run_fault_action(manager, action);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fault_program: %s\n", e.what());
    return 1;
  }
}
