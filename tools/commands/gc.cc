#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/bucket/bucket.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/storage/object/bucket_path.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

struct GcOptions {
  std::string root;
  std::vector<std::string> dead_hosts;
  bool json = false;
};

std::string this_host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

/// The process that holds a name which was kept, as its lease says ("Directory layout" of
/// docs/checkpoint_format.md). Null if that cannot be read: trash, or a lease that is gone now.
nlohmann::json owner_of(const fs::path& root, std::string name) {
  constexpr std::string_view kAttempt = ".tmp";
  if (name.ends_with(kAttempt)) {
    name.replace(name.size() - kAttempt.size(), kAttempt.size(), ".lease");
  }
  std::ifstream file(root / name);
  const nlohmann::json lease = nlohmann::json::parse(file, nullptr, false);
  const bool is_lease = lease.is_object() && lease.contains("host") && lease["host"].is_string() &&
                        lease.contains("pid") && lease["pid"].is_number_integer();
  return is_lease ? lease : nlohmann::json();
}

std::string reason_text(const nlohmann::json& owner) {
  if (owner.is_null()) return "somebody uses it";
  const auto host = owner["host"].get<std::string>();
  const auto pid = owner["pid"].get<std::int64_t>();
  if (host == this_host()) return fmt::format("process {} uses it", pid);
  return fmt::format(
      "process {} of host {} may use it; if that host is gone for good, \"--dead-host {}\" removes "
      "it",
      pid, host, host);
}

int run_gc(GcOptions& options) {
  const fs::path root = root_of_steps("gc", options.root);
  const GarbageReport report = in_bucket(root)
                                   ? collect_bucket_garbage(root)
                                   : CheckpointManager(root, {.collect_garbage = false})
                                         .collect_garbage({.dead_hosts = options.dead_hosts});

  auto kept = nlohmann::ordered_json::array();
  for (const std::string& name : report.kept) {
    const nlohmann::json owner = in_bucket(root) ? nlohmann::json() : owner_of(root, name);
    const std::string reason = in_bucket(root) ? "its claim is not over" : reason_text(owner);
    if (!options.json) print_shown(fmt::format("kept {}: {}\n", name, reason));
    nlohmann::ordered_json entry = {{"name", name}, {"reason", reason}};
    entry["host"] = owner.is_null() ? nlohmann::json() : owner["host"];
    entry["pid"] = owner.is_null() ? nlohmann::json() : owner["pid"];
    kept.push_back(std::move(entry));
  }
  if (options.json) {
    print_json({{"root", options.root}, {"removed", report.removed}, {"kept", kept}});
    return 0;
  }
  for (const std::string& name : report.removed) print_shown(fmt::format("removed {}\n", name));
  if (report.removed.empty()) print_shown(fmt::format("{}: nothing to remove\n", options.root));
  return 0;
}

}  // namespace

void declare_gc(CLI::App& app, Run& run) {
  const auto [gc, options] = add_command(
      app, run, "gc", "Remove what killed saves, reshards, imports and exports left in a directory",
      "shardwise gc runs/checkpoints\n"
      "  shardwise gc runs/checkpoints --dead-host node17",
      run_gc);
  add_place(gc, "root", options.root, "Directory of steps, exports or resharded checkpoints");
  gc.add_option("--dead-host", options.dead_hosts,
                "A machine or container that is gone for good: its processes hold nothing any more "
                "(may be repeated)");
}

}  // namespace shardwise::tools
