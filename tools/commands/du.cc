#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "commands/commands.h"
#include "disk_use.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/shard/error.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

struct DuOptions {
  std::string path, step;
  bool json = false;
};

/// Bytes of files, by their purpose.
struct StepUse {
  std::string name;
  std::optional<std::size_t> tensors = 0, padding = 0;  ///< absent: not known
  std::size_t shared = 0;                               ///< of the total, in other steps, too
  std::size_t index = 0;                                ///< manifest and index.h5
  std::size_t parity = 0;
  std::size_t total = 0;
};

struct LeftUse {
  std::string name;
  std::size_t total = 0;
};

struct RootUse {
  fs::path root;
  std::vector<StepUse> steps = {};       ///< largest first, as all lists here
  std::vector<LeftUse> unfinished = {};  ///< attempts, trash, leases and pins
  std::size_t total = 0;                 ///< what several steps share is counted once
};

/// As stored; absent if the step is damaged, or if it has more shard files than are opened.
std::optional<std::size_t> stored_bytes(const fs::path& step) {
  try {
    const CheckpointReader reader(step, {.pin = false});
    std::size_t bytes = 0;
    for (const TensorInfo& tensor : reader.tensors()) {
      if (!knows_pieces(tensor)) return std::nullopt;
      bytes += tensor.stored_bytes;
    }
    return bytes;
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::size_t parity_bytes(const fs::path& step) {
  DiskUse use;
  std::error_code error;
  for (fs::directory_iterator entry(step, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == ".parity") use.add(entry->path());
  }
  return use.bytes();
}

StepUse use_of_step(const fs::path& step) {
  StepUse use{.name = step.filename().string()};
  const DiskUse all = disk_use(step);
  use.total = all.bytes();
  use.shared = all.shared_bytes();
  use.index = disk_use(step / "manifest.json").bytes() + disk_use(step / "index.h5").bytes();
  use.tensors = stored_bytes(step);
  use.parity = parity_bytes(step);
  const std::size_t data = use.total - std::min(use.total, use.index + use.parity);
  use.padding.reset();
  if (use.tensors) use.padding = data - std::min(data, *use.tensors);
  return use;
}

bool is_unfinished(const std::string& name) {
  static constexpr std::array<std::string_view, 4> kBegins = {".step-", ".shardwise.", ".trash-",
                                                              ".pin-"};
  return std::ranges::any_of(kBegins,
                             [&](std::string_view begin) { return name.starts_with(begin); });
}

template <class Use>
void sort_by_size(std::vector<Use>& list, std::string Use::*name) {
  std::ranges::sort(list, [name](const Use& a, const Use& b) {
    return a.total != b.total ? a.total > b.total : a.*name < b.*name;
  });
}

/// The roots in and below a directory.
void find_roots(const fs::path& directory, std::vector<RootUse>& roots) {
  RootUse use{.root = directory};
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (is_unfinished(name)) {
      use.unfinished.push_back({name, disk_use(entry->path()).bytes()});
    } else if (entry->is_symlink(ignored) || !entry->is_directory(ignored)) {
      continue;
    } else if (is_step(entry->path()) || is_checkpoint(entry->path())) {
      use.steps.push_back(use_of_step(entry->path()));
    } else {
      find_roots(entry->path(), roots);
    }
  }
  if (use.steps.empty() && use.unfinished.empty()) return;
  sort_by_size(use.steps, &StepUse::name);
  sort_by_size(use.unfinished, &LeftUse::name);
  DiskUse all;
  for (const StepUse& step : use.steps) all.add(directory / step.name);
  for (const LeftUse& left : use.unfinished) all.add(directory / left.name);
  use.total = all.bytes();
  roots.push_back(std::move(use));
}

std::vector<RootUse> roots_of(const std::string& path) {
  const fs::path given = existing_root(path);
  if (names_checkpoint(given)) {
    RootUse use{.root = given.parent_path(), .steps = {use_of_step(given)}};
    use.total = use.steps[0].total;
    return {std::move(use)};
  }
  std::vector<RootUse> roots;
  find_roots(given, roots);
  if (roots.empty()) refuse_without_steps(given, path);
  std::ranges::sort(roots, [](const RootUse& a, const RootUse& b) {
    return a.total != b.total ? a.total > b.total : a.root < b.root;
  });
  return roots;
}

/// Absent if it is not known of one.
std::optional<std::size_t> sum_of(const std::vector<StepUse>& steps,
                                  std::optional<std::size_t> StepUse::*of) {
  std::size_t bytes = 0;
  for (const StepUse& step : steps) {
    if (!(step.*of)) return std::nullopt;
    bytes += *(step.*of);
  }
  return bytes;
}

template <class Use>
std::size_t sum_of(const std::vector<Use>& list, std::size_t Use::*of) {
  std::size_t bytes = 0;
  for (const Use& use : list) bytes += use.*of;
  return bytes;
}

std::string bytes_text(std::optional<std::size_t> bytes) {
  return bytes ? human_bytes(*bytes) : "-";
}

nlohmann::ordered_json bytes_json(std::optional<std::size_t> bytes) {
  return bytes ? nlohmann::ordered_json(*bytes) : nlohmann::ordered_json();
}

void print_root(const RootUse& use) {
  TextTable table({"step", "tensors", "padding", "index", "parity", "shared", "total"});
  for (const StepUse& step : use.steps) {
    table.add({step.name, bytes_text(step.tensors), bytes_text(step.padding),
               human_bytes(step.index), human_bytes(step.parity), human_bytes(step.shared),
               human_bytes(step.total)});
  }
  for (const LeftUse& left : use.unfinished) {
    table.add({left.name, "-", "-", "-", "-", "-", human_bytes(left.total)});
  }
  if (use.steps.size() + use.unfinished.size() > 1) {
    table.add({"all", bytes_text(sum_of(use.steps, &StepUse::tensors)),
               bytes_text(sum_of(use.steps, &StepUse::padding)),
               human_bytes(sum_of(use.steps, &StepUse::index)),
               human_bytes(sum_of(use.steps, &StepUse::parity)), "-", human_bytes(use.total)});
  }
  print_shown(table);
}

void print_roots(const std::vector<RootUse>& roots) {
  TextTable table(
      {"directory", "steps", "tensors", "padding", "index", "parity", "unfinished", "total"});
  for (const RootUse& use : roots) {
    table.add({use.root.string(), std::to_string(use.steps.size()),
               bytes_text(sum_of(use.steps, &StepUse::tensors)),
               bytes_text(sum_of(use.steps, &StepUse::padding)),
               human_bytes(sum_of(use.steps, &StepUse::index)),
               human_bytes(sum_of(use.steps, &StepUse::parity)),
               human_bytes(sum_of(use.unfinished, &LeftUse::total)), human_bytes(use.total)});
  }
  print_shown(table);
  print_shown(fmt::format("\n{} in {} directories\n", human_bytes(sum_of(roots, &RootUse::total)),
                          roots.size()));
}

nlohmann::ordered_json root_json(const RootUse& use) {
  auto steps = nlohmann::ordered_json::array(), unfinished = nlohmann::ordered_json::array();
  for (const StepUse& step : use.steps) {
    steps.push_back({{"name", step.name},
                     {"tensor_bytes", bytes_json(step.tensors)},
                     {"padding_bytes", bytes_json(step.padding)},
                     {"index_bytes", step.index},
                     {"parity_bytes", step.parity},
                     {"shared_bytes", step.shared},
                     {"total_bytes", step.total}});
  }
  for (const LeftUse& left : use.unfinished) {
    unfinished.push_back({{"name", left.name}, {"total_bytes", left.total}});
  }
  return {{"root", use.root.string()},
          {"steps", steps},
          {"unfinished", unfinished},
          {"total_bytes", use.total}};
}

int run_du(DuOptions& options) {
  choose_step(options.path, options.step);
  const std::vector<RootUse> roots = roots_of(options.path);
  if (options.json) {
    auto list = nlohmann::ordered_json::array();
    for (const RootUse& use : roots) list.push_back(root_json(use));
    print_json(
        {{"path", options.path}, {"roots", list}, {"total_bytes", sum_of(roots, &RootUse::total)}});
    return 0;
  }
  if (roots.size() == 1) {
    print_root(roots[0]);
  } else {
    print_roots(roots);
  }
  return 0;
}

}  // namespace

void declare_du(CLI::App& app, Run& run) {
  const auto [du, options] = add_command(
      app, run, "du", "Show what takes the room of a checkpoint, or of each step below a directory",
      "shardwise du runs/checkpoints\n"
      "  shardwise du runs",
      run_du);
  add_path(du, "path", options.path,
           "A checkpoint, a directory of steps, or a directory with such below it");
  add_step(du, options.step, true);
  du.set_help_flag("--help", "Print this help message and exit");
  du.add_flag_callback(
      "-h,--human-readable", [] {}, "Sizes with units, as they are shown anyway");
}

}  // namespace shardwise::tools
