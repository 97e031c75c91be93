#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "commands/commands.h"
#include "commands/python/import.h"
#include "disk_use.h"
#include "output.h"
#include "parse.h"
#include "places.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct LsOptions {
  std::string root, step;
  bool json = false;
};

struct StepSummary {
  Step step;
  std::vector<std::string> names = {};  ///< it is pinned by
  Metrics metrics = {};
  std::optional<std::time_t> time = {};  ///< when it was committed; absent if there is no manifest
  std::size_t tensors = 0, logical_bytes = 0, stored_bytes = 0;
  std::size_t alone_bytes = 0, shared_bytes = 0;  ///< of its files: freed if it goes, or not
  std::string mesh = {};
  bool readable = true;
  std::string fault = {};  ///< why it cannot be restored; empty: its manifest and tables are valid
};

/// Or a checkpoint of another name, which has no number.
bool is_step(const StepSummary& summary) { return tools::is_step(summary.step.directory); }

/// Absent if it was removed since it was listed.
std::optional<StepSummary> summarize(const Step& step) {
  StepSummary summary{.step = step};
  summary.time = time_of(step.directory / "manifest.json");
  try {
    const CheckpointReader reader(step.directory, {.pin = false});
    summary.metrics = reader.metrics();
    summary.tensors = reader.tensors().size();
    const DiskUse use = disk_use(step.directory);
    summary.shared_bytes = use.shared_bytes();
    summary.alone_bytes = use.bytes() - use.shared_bytes();
    for (const TensorInfo& tensor : reader.tensors()) {
      summary.logical_bytes += tensor.logical_bytes;
      summary.stored_bytes += tensor.stored_bytes;
      const std::string mesh = tensor.sharding ? tensor.sharding->mesh().to_string() : "";
      if (summary.mesh.empty()) summary.mesh = mesh;
      if (summary.mesh != mesh) summary.mesh = "several";
    }
  } catch (const Error& error) {
    if (!is_folder(step.directory)) return std::nullopt;
    summary.readable = error.code() != ErrorCode::io;
    summary.fault = error.what();
  }
  return summary;
}

/// "2026-11-28 14:59:03", here, or "2026-11-28T14:59:03Z".
std::string commit_time_text(std::time_t time, bool is_utc) {
  std::tm parts{};
  (is_utc ? gmtime_r : localtime_r)(&time, &parts);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(
      text.data(), text.size(), is_utc ? "%Y-%m-%dT%H:%M:%SZ" : "%Y-%m-%d %H:%M:%S", &parts);
  return {text.data(), length};
}

/// "accuracy=0.9 loss=0.25"
std::string metrics_text(const Metrics& metrics) {
  std::string text;
  for (const auto& [name, value] : metrics) {
    text += fmt::format("{}{}={:.6g}", text.empty() ? "" : " ", name, value);
  }
  return text;
}

/// Names of attempts that were not committed, and of trash.
std::vector<std::string> leftovers(const std::filesystem::path& root) {
  std::vector<std::string> names;
  for (const std::string& file : names_in(root)) {
    const bool is_attempt = file.starts_with(".step-") && is_folder(root / file);
    if (is_attempt || file.starts_with(".trash-") || file.starts_with(".claim-")) {
      names.push_back(file);
    }
  }
  return names;
}

void print_none(const std::filesystem::path& root) {
  const std::filesystem::path inside = root_inside(root);
  print_shown(
      fmt::format("{}: no committed checkpoint{}\n", root.string(),
                  inside.empty() ? std::string() : fmt::format("; {} has some", inside.string())));
}

/// Prints one line about a file or folder of another format.
int list_foreign(const LsOptions& options, const BoxReader& reader, std::string_view format) {
  const std::span<const TensorInfo> tensors = reader.tensors();
  std::size_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += tensor.logical_bytes;
  if (options.json) {
    print_json({{"path", options.root},
                {"format", format},
                {"tensors", tensors.size()},
                {"logical_bytes", bytes}});
    return 0;
  }
  TextTable table({"format", "tensors", "bytes"});
  table.add({std::string(format), std::to_string(tensors.size()), human_bytes(bytes)});
  print_shown(table);
  return 0;
}

void print_table(const std::vector<StepSummary>& steps) {
  // A column whose entries are all alike says nothing.
  const auto any = [&steps](auto&& has) { return std::ranges::any_of(steps, has); };
  const bool has_generations = any([](const StepSummary& s) { return s.step.generation > 1; });
  const bool has_metrics = any([](const StepSummary& s) { return !s.metrics.empty(); });
  const bool has_names = any([](const StepSummary& s) { return !s.names.empty(); });
  std::vector<std::string> heading{"step", "time", "tensors", "bytes", "alone", "shared", "mesh"};
  if (has_generations) heading.insert(heading.begin() + 1, "generation");
  if (has_metrics) heading.emplace_back("metrics");
  if (has_names) heading.emplace_back("pinned");
  heading.emplace_back("state");
  TextTable table(heading);
  for (const StepSummary& s : steps) {
    std::vector<std::string> row{
        is_step(s) ? std::to_string(s.step.step) : s.step.directory.filename().string(),
        s.time ? commit_time_text(*s.time, false) : "-",
        std::to_string(s.tensors),
        human_bytes(s.logical_bytes),
        human_bytes(s.alone_bytes),
        human_bytes(s.shared_bytes),
        s.mesh};
    if (has_generations) {
      row.insert(row.begin() + 1, is_step(s) ? std::to_string(s.step.generation) : "-");
    }
    if (has_metrics) row.push_back(metrics_text(s.metrics));
    if (has_names) row.push_back(fmt::format("{}", fmt::join(s.names, " ")));
    const char* const whole = s.step.is_set_aside ? "set aside" : "committed";
    row.push_back(s.fault.empty() ? whole
                                  : (s.readable ? "damaged: " : "cannot be read: ") + s.fault);
    table.add(std::move(row));
  }
  print_shown(table);
}

nlohmann::ordered_json json_of(const std::filesystem::path& root, const StepSummary& s) {
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  if (is_step(s)) {
    found.update({{"step", s.step.step},
                  {"generation", s.step.generation},
                  {"set_aside", s.step.is_set_aside},
                  {"pinned", s.names}});
  }
  found.update({{"directory", as_given(root, s.step.directory).string()},
                {"valid", s.fault.empty()},
                {"reason", s.fault},
                {"tensors", s.tensors},
                {"time", nullptr},
                {"metrics", s.metrics},
                {"mesh", s.mesh},
                {"logical_bytes", s.logical_bytes},
                {"stored_bytes", s.stored_bytes},
                {"alone_bytes", s.alone_bytes},
                {"shared_bytes", s.shared_bytes}});
  if (s.time) found["time"] = commit_time_text(*s.time, true);
  return found;
}

/// As verify's.
int status_of(const std::vector<StepSummary>& steps) {
  bool damaged = false, unread = false;
  for (const StepSummary& s : steps) {
    damaged = damaged || (!s.fault.empty() && s.readable);
    unread = unread || !s.readable;
  }
  return damaged ? 1 : unread ? 3 : 0;
}

void print_json_of(const std::filesystem::path& root, const std::vector<StepSummary>& steps,
                   const std::vector<RejectedStep>& foreign,
                   const std::vector<std::string>& unfinished) {
  auto list = nlohmann::ordered_json::array(), others = list;
  for (const StepSummary& s : steps) (is_step(s) ? list : others).push_back(json_of(root, s));
  auto newer = nlohmann::ordered_json::array();
  for (const RejectedStep& one : foreign) {
    newer.push_back(
        {{"directory", as_given(root, one.directory).string()}, {"reason", one.reason}});
  }
  print_json({{"root", root.string()},
              {"steps", list},
              {"others", others},
              {"newer_foreign", newer},
              {"unfinished", unfinished}});
}

/// Newer steps of other libraries, or by other names.
std::vector<RejectedStep> newer_foreign(const CheckpointManager& manager,
                                        const std::vector<StepSummary>& steps) {
  const bool has_latest = std::ranges::any_of(steps, [](const StepSummary& s) {
    return is_step(s) && s.fault.empty() && !s.step.is_set_aside;
  });
  if (!has_latest) return {};
  std::vector<RejectedStep> rejected = manager.latest()->rejected;
  std::erase_if(rejected, [](const RejectedStep& one) { return !one.is_foreign; });
  return rejected;
}

int run_ls(LsOptions& options) {
  choose_step(options.root, options.step);
  if (const std::string_view format = python_format(options.root); !format.empty()) {
    return list_foreign(options, *describe_by_python(format, options.root), format);
  }
  if (is_model(options.root)) {
    const std::unique_ptr<ModelReader> reader = open_model(options.root);
    return list_foreign(options, *reader, reader->format());
  }
  // A checkpoint is listed as its root lists it, without the others.
  const std::filesystem::path given = existing_root(options.root);
  const bool is_one = names_checkpoint(given);
  const std::filesystem::path root = is_one ? root_above(given) : given;
  const auto is_wanted = [&](const std::filesystem::path& directory) {
    if (!is_one) return true;
    if (in_bucket(given)) return directory.filename() == given.filename();
    std::error_code ignored;
    return std::filesystem::equivalent(directory, given, ignored);
  };
  const CheckpointManager manager(root,
                                  {.collect_garbage = false, .warn = [](const std::string&) {}});
  std::vector<StepSummary> steps;
  const auto add = [&](const Step& step) {
    if (!is_wanted(step.directory)) return;
    if (auto summary = summarize(step)) steps.push_back(std::move(*summary));
  };
  for (const Step& step : manager.steps()) add(step);
  for (const std::filesystem::path& directory : named_checkpoints(root)) add({0, 0, directory});
  for (const NamedStep& named : manager.pins().list()) {
    for (StepSummary& s : steps) {
      if (is_step(s) && s.step.step == named.step) s.names.push_back(named.name);
    }
  }
  const auto unfinished = is_one ? std::vector<std::string>() : leftovers(root);
  if (steps.empty() && !foreign_format(root).empty()) refuse_without_steps(root, options.root);
  if (std::ranges::none_of(steps, [](const StepSummary& s) { return s.fault.empty(); })) {
    refuse_others(manager);
  }
  const auto foreign = is_one ? std::vector<RejectedStep>() : newer_foreign(manager, steps);
  const int status = status_of(steps);
  if (options.json) {
    print_json_of(root, steps, foreign, unfinished);
    return status;
  }
  if (steps.empty()) print_none(root);
  if (!steps.empty()) print_table(steps);
  for (const std::string& name : unfinished)
    print_shown(fmt::format("not a checkpoint: {}\n", name));
  for (const RejectedStep& one : foreign) {
    print_note(fmt::format("newer than the latest: {}: {}", as_given(root, one.directory).string(),
                           one.reason));
  }
  return status;
}

}  // namespace

void declare_ls(CLI::App& app, Run& run) {
  const auto [ls, options] = add_command(app, run, "ls", "List the checkpoints of a directory",
                                         "shardwise ls runs/checkpoints", run_ls);
  add_place(ls, "root", options.root,
            "Directory that holds checkpoints, one of them, or a file or folder that import "
            "takes");
  add_step(ls, options.step, true);
}

}  // namespace shardwise::tools
