// The processes that share a root with processes_test.cc. Each says by a line how far it has come
// and, where it waits, goes on when it gets one; it ends where its input does.
//
//   process_program ROOT read STEP           opens the step, reads it each time it is told to
//   process_program ROOT save STEP           stops half-way
//   process_program ROOT write WRITER COUNT  COUNT rounds of saves while another writer saves
//   process_program ROOT restore             the latest step and the oldest, again and again
//   process_program ROOT exec STEP           pins the step, begins an attempt, becomes collect
//   process_program ROOT collect             collects the garbage

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/device.h"
#include "shardwise/shard/error.h"
#include "testing/fault_model.h"

namespace {

using namespace shardwise;

void say(std::string_view text) { std::cout << text << std::endl; }

bool told() {
  std::string line;
  return static_cast<bool>(std::getline(std::cin, line));
}

bool input_has_ended() {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  return ::poll(&input, 1, 0) != 0;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

void read(const char* root, std::int64_t step) {
  const CheckpointManager manager(root, {.collect_garbage = false});
  const CheckpointReader reader(manager.step(step).directory);
  require(reader.pinned(), "it is not pinned");
  say("pinned");
  while (told()) {
    // Files that are open outlast their names, so these are looked at, too.
    const bool whole = holds(reader, fault_model(static_cast<std::uint64_t>(step))) &&
                       verify_checkpoint(reader.directory()).ok();
    say(whole ? "whole" : "damaged");
  }
}

void save(const char* root, std::int64_t step) {
  CheckpointManager manager(root);
  SaveOptions options{.memory_budget_bytes = std::size_t{8} << 20};
  options.progress = [stopped = false](const Progress&) mutable {
    if (std::exchange(stopped, true)) return;
    say("half-way");
    require(told(), "input ended");
  };
  manager.save(step, sources_of(large_fault_model(static_cast<std::uint64_t>(step))), options);
  say("committed");
}

// Each round a step of its own and one that the other writer replaces, too, begun by a clean-up.
// A step's seed is in its user_json.
void write(const char* root, std::int64_t writer, std::int64_t rounds) {
  for (std::int64_t round = 0; round < rounds; ++round) {
    CheckpointManager manager(root, {.keep = {.last = 2}, .write = {.threads = 1}});
    const auto seed = static_cast<std::uint64_t>(1 + (round + writer) % 3);
    const std::vector<TensorSource> sources = sources_of(fault_model(seed));
    SaveOptions options{.user_json = std::to_string(seed)};
    const auto clean = [](const SaveStats& stats) {
      require(stats.cleanup_error.empty(), stats.cleanup_error.c_str());
    };
    clean(manager.save(3 * round + writer, sources, options));
    options.existing = Existing::replace;
    clean(manager.save(3 * round + 2, sources, options));
  }
}

void expect_restored(const CheckpointReader& reader, Devices& devices) {
  const std::vector<HostTensor>& model = fault_model(std::stoull(reader.user_json()));
  std::vector<TensorRequest> requests;
  for (const HostTensor& tensor : model) {
    const char* const spec = tensor.spec.shape.empty() ? "" : "-,a";
    requests.push_back({tensor.name,
                        {tensor.spec.dtype, tensor.spec.shape,
                         Sharding(Mesh::parse("a=3"), PartitionSpec::parse(spec))}});
  }
  const std::vector<ShardedArray> arrays = reader.restore(devices, requests);
  for (std::size_t i = 0; i < model.size(); ++i) {
    require(arrays[i].to_host() == *model[i].data, "restored are other values");
  }
}

// Absent without a step, or if another process has removed it before it was open.
template <class Find>
std::optional<CheckpointReader> open(const Find& find) {
  try {
    const std::optional<Step> step = find();
    if (step) return CheckpointReader(step->directory, {.threads = 1});
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found) throw;
  }
  return std::nullopt;
}

std::optional<Step> latest(const CheckpointManager& manager) {
  const std::optional<LatestStep> found = manager.latest();
  if (!found) return std::nullopt;
  require(found->rejected.empty(), "a step is not valid");
  return found->step;
}

// The oldest step that is not held; the writers are about to remove it.
std::optional<Step> oldest(const CheckpointManager& manager,
                           const std::deque<CheckpointReader>& held) {
  for (const Step& step : manager.steps()) {
    const bool is_held = std::any_of(held.begin(), held.end(), [&](const CheckpointReader& reader) {
      return reader.step() == step.step;
    });
    if (!is_held) return step;
  }
  return std::nullopt;
}

// Restores until the input has ended, and then once more: then nobody removes anything, and the
// held steps must be there.
void restore(const char* root) {
  constexpr std::size_t kHeld = 4;
  const CheckpointManager manager(root, {.collect_garbage = false});
  Devices devices(3);
  std::deque<CheckpointReader> held;
  int restores = 0, gone = 0;
  for (bool last = false; !last;) {
    last = input_has_ended();
    std::optional<CheckpointReader> newest = open([&] { return latest(manager); });
    require(newest || !last, "there is no step");
    std::optional<CheckpointReader> old = open([&] { return oldest(manager, held); });
    for (const auto* reader : {&newest, &old}) {
      if (!*reader) {
        ++gone;
        continue;
      }
      require((*reader)->pinned(), "it is not pinned");
      expect_restored(**reader, devices);
      ++restores;
    }
    if (old) held.push_back(std::move(*old));
    if (held.size() > kHeld) held.pop_front();
  }
  for (const CheckpointReader& reader : held) {
    require(verify_checkpoint(reader.directory(), {.threads = 1}).ok(), "it was not kept whole");
  }
  std::cout << restores << " restores, " << gone << " times none\n";
}

// The pin and the attempt are not destroyed: the program that it becomes finds them.
void exec(char* root, std::int64_t step) {
  const CheckpointManager manager(root, {.collect_garbage = false});
  const CheckpointReader reader(manager.step(step).directory);
  require(reader.pinned(), "it is not pinned");
  const auto files = posix_file_system();
  std::vector<std::filesystem::path> leftovers;
  const detail::Attempt attempt(*files, root, step + 1, leftovers);
  char mode[] = "collect", program[] = "/proc/self/exe";
  char* const arguments[] = {program, root, mode, nullptr};
  ::execv(program, arguments);
  throw std::runtime_error("cannot become another program");
}

void collect(const char* root) {
  CheckpointManager manager(root, {.collect_garbage = false});
  const GarbageReport report = manager.collect_garbage();
  std::cout << report.removed.size() << " removed, " << report.kept.size() << " kept\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string_view mode = argv[2];
  try {
    if (mode == "read" && argc == 4) {
      read(argv[1], std::atoll(argv[3]));
    } else if (mode == "save" && argc == 4) {
      save(argv[1], std::atoll(argv[3]));
    } else if (mode == "write" && argc == 5) {
      write(argv[1], std::atoll(argv[3]), std::atoll(argv[4]));
    } else if (mode == "exec" && argc == 4) {
      exec(argv[1], std::atoll(argv[3]));
    } else if (mode == "collect" && argc == 3) {
      collect(argv[1]);
    } else if (mode == "restore" && argc == 3) {
      restore(argv[1]);
    } else {
      return 2;
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "process_program: %s\n", e.what());
    return 1;
  }
}
