#include "shardwise/convert/diff.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "commands/commands.h"
#include "commands/python/import.h"
#include "output.h"
#include "parse.h"
#include "places.h"
#include "shardwise/shard/text.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct DiffOptions {
  std::string first, second, step;
  std::vector<std::string> words;  ///< after the first
  double atol = 0, rtol = 0;
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  int threads = 0;
  bool json = false;
};

nlohmann::ordered_json kind_json(const std::optional<DType>& dtype, const Shape& shape) {
  if (!dtype) return nullptr;
  return {{"dtype", name(*dtype)}, {"shape", dims_json(shape)}};
}

// JSON has no number for infinities and NaN: they are texts, as are the values of elements.
nlohmann::ordered_json number_json(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", value);
}

nlohmann::ordered_json tensor_json(const TensorDiff& tensor) {
  nlohmann::ordered_json json = {{"name", tensor.name},
                                 {"equal", tensor.equal()},
                                 {"first", kind_json(tensor.first_dtype, tensor.first_shape)},
                                 {"second", kind_json(tensor.second_dtype, tensor.second_shape)}};
  if (!tensor.compared) return json;
  json["elements"] = tensor.elements;
  json["differing"] = tensor.differing;
  json["max_abs"] = number_json(tensor.max_abs);
  json["max_rel"] = number_json(tensor.max_rel);
  json["max_ulp"] = nullptr;
  if (tensor.max_ulp) json["max_ulp"] = *tensor.max_ulp;
  json["nan"] = {tensor.first_nan, tensor.second_nan};
  if (tensor.at) {
    json["at"] = dims_json(*tensor.at);
    json["values"] = {tensor.first_value, tensor.second_value};
  }
  return json;
}

DiffReport compare(const DiffOptions& options) {
  // A quarter for each reader, the rest for the compared elements.
  const ReadOptions reading{.memory_budget_bytes = options.memory_budget_bytes / 4,
                            .threads = options.threads};
  const auto first = open_tensors(options.first, reading);
  const auto second = open_tensors(options.second, reading);
  ProgressLine line("diff");
  return diff(*first, *second,
              {.memory_budget_bytes = options.memory_budget_bytes / 2,
               .threads = options.threads,
               .atol = options.atol,
               .rtol = options.rtol,
               .progress = line.function()});
}

int print_diff(const DiffOptions& options) {
  for (const auto& [option, value] :
       {std::pair("--atol", options.atol), std::pair("--rtol", options.rtol)}) {
    if (value >= 0) continue;  // NaN is not
    throw BadUsage(fmt::format("diff: {}: found {}, needed 0 or more", option, value));
  }
  const DiffReport report = compare(options);
  const int status = report.equal() ? 0 : 1;
  if (options.json) {
    auto list = nlohmann::ordered_json::array();
    for (const TensorDiff& tensor : report.tensors) list.push_back(tensor_json(tensor));
    print_json({{"equal", report.equal()},
                {"compared_bytes", report.compared_bytes},
                {"skipped_bytes", report.skipped_bytes},
                {"tensors", list}});
    return status;
  }
  const std::string text = to_string(report);
  for (const std::string_view line : split(text, '\n')) {
    print_shown(wrapped(line, kWidth, 4) + "\n");
  }
  return status;
}

/// Status 1 if they differ.
int run_diff(DiffOptions& options) {
  std::vector<std::string> words{options.first};
  words.insert(words.end(), options.words.begin(), options.words.end());
  std::vector<std::string> paths = chosen_paths(words);
  if (paths.size() != 2) {
    for (const std::string& path : paths) {
      if (!is_there(path)) existing_root(path);  // throws
    }
    throw BadUsage(
        fmt::format("diff: found {} checkpoint{}, needed two, as in `shardwise diff run 20 30`",
                    paths.size(), paths.size() == 1 ? "" : "s"));
  }
  for (std::string& path : paths) choose_step(path, options.step);
  options.first = paths[0];
  options.second = paths[1];
  return run_reading({options.first, options.second}, [&options] { return print_diff(options); });
}

}  // namespace

void declare_diff(CLI::App& app, Run& run) {
  const auto [diff, options] =
      add_command(app, run, "diff",
                  "Compare the tensors of two checkpoints or files; exit status 1: they differ",
                  "shardwise diff runs/a 300 400\n"
                  "  shardwise diff runs/a@400 runs/b@400\n"
                  "  shardwise diff runs/a model.safetensors --rtol 1e-5",
                  run_diff);
  add_place(diff, "first", options.first, kTensors);
  add_place(diff, "second", options.words,
            "Another one, or two steps of the first: run 20 30; run 20 other 30 is one of "
            "each");
  diff.add_option("--step", options.step, "The step of both directories")->type_name("STEP");
  diff.add_option(
      "--atol", options.atol,
      "Elements are equal if |first - second| <= atol + rtol * |second|, or if both are "
      "NaN (default: if their bits are equal)");
  diff.add_option("--rtol", options.rtol, "See --atol");
  add_memory_budget(diff, options.memory_budget_bytes);
  add_threads(diff, options.threads);
}

}  // namespace shardwise::tools
