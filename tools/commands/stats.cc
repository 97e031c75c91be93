#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "commands/commands.h"
#include "commands/python/import.h"
#include "output.h"
#include "parse.h"
#include "shardwise/convert/elements.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct StatsOptions {
  std::string path, step;
  std::vector<std::string> patterns;
  bool nan = false;  ///< only tensors that have NaN or infinities
  std::int64_t bars = 0;
  int threads = 0;
  bool json = false;
};

bool is_integer(DType dtype) { return is_computed(dtype) && !is_floating(dtype); }

std::string number(long double value) { return fmt::format("{:.6g}", static_cast<double>(value)); }

/// Least and most: integers exactly.
std::string end_text(long double value, DType dtype) {
  if (std::isnan(value)) return "-";
  return is_integer(dtype) ? fmt::format("{:.0f}", value) : number(value);
}

// JSON has no NaN: it becomes null.
nlohmann::ordered_json number_json(long double value) {
  if (std::isnan(value)) return nullptr;
  return static_cast<double>(value);
}

nlohmann::ordered_json end_json(long double value, DType dtype) {
  if (!is_integer(dtype) || std::isnan(value)) return number_json(value);
  if (value < 0) return static_cast<std::int64_t>(value);
  return static_cast<std::uint64_t>(value);
}

nlohmann::ordered_json stats_json(const TensorInfo& info, const TensorStats& stats) {
  nlohmann::ordered_json json = {{"name", info.name},
                                 {"dtype", name(info.dtype)},
                                 {"shape", dims_json(info.shape)},
                                 {"elements", stats.elements},
                                 {"min", end_json(stats.min, info.dtype)},
                                 {"max", end_json(stats.max, info.dtype)},
                                 {"mean", number_json(stats.mean)},
                                 {"std", number_json(stats.deviation)},
                                 {"nan", stats.nan},
                                 {"infinities", stats.infinities},
                                 {"zeros", stats.zeros},
                                 {"first_not_finite", nullptr}};
  if (stats.first_not_finite) json["first_not_finite"] = dims_json(*stats.first_not_finite);
  if (stats.histogram.empty()) return json;
  json["histogram"] = {{"low", number_json(stats.low)},
                       {"high", number_json(stats.high)},
                       {"counts", stats.histogram}};
  return json;
}

void print_bars(const TensorInfo& info, const TensorStats& stats) {
  print_shown(fmt::format("\n{}\n", one_line(info.name)));
  if (std::isnan(stats.low)) return print_shown("  no number that is finite\n");
  constexpr std::int64_t kLongest = 60;
  const std::int64_t most = *std::ranges::max_element(stats.histogram);
  const auto bars = static_cast<long double>(stats.histogram.size());
  TextTable table({"from", "to", "elements", ""});
  for (std::size_t i = 0; i < stats.histogram.size(); ++i) {
    const auto edge = [&](std::size_t bar) {
      return number(stats.low + (stats.high - stats.low) * static_cast<long double>(bar) / bars);
    };
    const std::int64_t count = stats.histogram[i];
    const auto length = static_cast<std::size_t>(std::ceil(
        static_cast<double>(kLongest) * static_cast<double>(count) / static_cast<double>(most)));
    table.add({edge(i), edge(i + 1), std::to_string(count), std::string(length, '#')});
  }
  print_shown(table);
}

int print_stats(const StatsOptions& options) {
  const auto reader = open_tensors(options.path, {.threads = options.threads}, options.patterns);
  std::vector<std::size_t> numbers = find_tensors(*reader, options.path, options.patterns);
  std::vector<TensorStats> all;
  {
    ProgressLine line("stats");
    all = tensor_stats(
        *reader, numbers,
        {.threads = options.threads, .bars = options.bars, .progress = line.function()});
  }
  if (options.nan) {
    for (std::size_t i = all.size(); i-- > 0;) {
      if (all[i].first_not_finite) continue;
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      numbers.erase(numbers.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  const int status = options.nan && !all.empty() ? 1 : 0;
  if (options.json) {
    auto list = nlohmann::ordered_json::array();
    for (std::size_t i = 0; i < all.size(); ++i) {
      list.push_back(stats_json(reader->tensors()[numbers[i]], all[i]));
    }
    print_json({{"tensors", list}});
    return status;
  }
  if (options.nan && all.empty()) {
    print_shown("no tensor has NaN or infinities\n");
    return 0;
  }
  std::vector<std::string> heading{"tensor", "dtype", "shape", "min", "max",
                                   "mean",   "std",   "NaN",   "inf", "zeros"};
  if (options.nan) heading = {"tensor", "dtype", "shape", "NaN", "inf", "first at"};
  TextTable table(heading);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const TensorInfo& info = reader->tensors()[numbers[i]];
    const TensorStats& stats = all[i];
    std::vector<std::string> row{info.name, std::string(name(info.dtype)), to_string(info.shape)};
    const bool none = std::isnan(stats.mean);
    if (!options.nan) {
      row.insert(row.end(),
                 {end_text(stats.min, info.dtype), end_text(stats.max, info.dtype),
                  none ? "-" : number(stats.mean), none ? "-" : number(stats.deviation)});
    }
    row.insert(row.end(), {std::to_string(stats.nan), std::to_string(stats.infinities)});
    row.push_back(options.nan ? to_string(*stats.first_not_finite) : std::to_string(stats.zeros));
    table.add(std::move(row));
  }
  print_shown(table);
  if (options.bars == 0) return status;
  for (std::size_t i = 0; i < all.size(); ++i) print_bars(reader->tensors()[numbers[i]], all[i]);
  return status;
}

/// Status 1 of `nan`: there are such tensors.
int run_stats(StatsOptions& options) {
  choose_step(options.path, options.step, options.patterns);
  return run_reading({options.path}, [&options] { return print_stats(options); });
}

}  // namespace

void declare_stats(CLI::App& app, Run& run) {
  const auto [stats, options] = add_command(
      app, run, "stats", "Show range, mean, deviation, NaN, infinities and zeros of tensors",
      "shardwise stats runs/checkpoints\n"
      "  shardwise stats runs/checkpoints 400 --nan\n"
      "  shardwise stats model.safetensors '*norm*' --histogram 20",
      run_stats);
  add_path(stats, "path", options.path, kTensors);
  stats.add_option("pattern", options.patterns,
                   "Names of tensors; * and ? stand for any characters (default: all)");
  add_step(stats, options.step, false);
  stats.add_flag("--nan", options.nan,
                 "Show only tensors that have NaN or infinities, and where the first one is; exit "
                 "status 1: there are some");
  stats.add_option("--histogram", options.bars, "Also count the elements in this number of bars")
      ->check(whole(1, 10'000));
  add_threads(stats, options.threads);
}

}  // namespace shardwise::tools
