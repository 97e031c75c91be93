// How much memory would training need, and how fast would it be? The study "memory" plans a step of
// GPTs of 124 million to 4 billion parameters, under four layouts, with and without recomputation:
// it prints the memory of the fullest device, and the share of a machine's peak that such a step
// would reach, by a model. It also finds the largest batch and the largest images for which a step
// of ResNet-50 fits, if images or their rows are cut. The study "parallelism" compares 1-d cuts
// with FSDP, 2-d cuts and a pipeline. No tensor of a model is allocated.

#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "study.h"

namespace {

namespace sw = shardwise;
using namespace memory_report;
using Json = nlohmann::ordered_json;

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Options {
  std::int64_t devices = 16, batch = 0;
  double limit_gib = 32;
  std::string study = "memory", mesh, plan = "all", svg, mfu_svg, machine = "tpu-v4";
  bool json = false, check = false;
};

struct Row {
  Model model;
  Layout layout;
  bool recomputes;
  Planned planned;
};

const sw::Machine& machine_of(const Options& options) {
  return *std::ranges::find(sw::machines(), options.machine, &sw::Machine::id);
}

std::vector<std::string> machine_ids() {
  std::vector<std::string> ids;
  for (const sw::Machine& machine : sw::machines()) ids.push_back(machine.id);
  return ids;
}

/// The layouts that the options select.
std::vector<Layout> chosen_layouts(const Options& options, std::int64_t devices) {
  if (options.study == "parallelism") return parallel_layouts(devices);
  std::vector<Layout> chosen =
      options.mesh.empty() ? layouts(devices) : layouts_on(sw::Mesh::parse(options.mesh));
  if (options.plan != "all") {
    std::erase_if(chosen, [&](const Layout& layout) { return layout.plan != options.plan; });
  }
  if (!chosen.empty()) return chosen;
  throw sw::Error(
      sw::ErrorCode::invalid_argument,
      fmt::format("plan \"{}\": found mesh \"{}\", needed one with an axis data or fsdp "
                  "for the batch, and model for the plans tensor and 2d",
                  options.plan, options.mesh));
}

void check_parallelism(const Options& options) {
  if (!options.mesh.empty() || options.plan != "all") {
    throw sw::Error(sw::ErrorCode::invalid_argument,
                    "study parallelism: found --mesh or --plan, needed --devices: it has meshes "
                    "and plans of its own");
  }
  const std::int64_t rows = 8 * options.devices / 4;
  if (options.devices % 4 == 0 && options.batch % rows == 0) return;
  throw sw::Error(
      sw::ErrorCode::invalid_argument,
      fmt::format("study parallelism: found {} devices and a batch of {}, needed a multiple of 4, "
                  "for 4 stages, and of 2 sequences for each device, for 8 micro-batches",
                  options.devices, options.batch));
}

std::string resnet_mesh(const Options& options) {
  return options.mesh.empty() ? "devices=8" : options.mesh;
}

std::vector<Row> plan_all(const Options& options) {
  const bool shows_progress = ::isatty(STDERR_FILENO) == 1;
  std::vector<Row> rows;
  for (Model model : models()) {
    model.sizes.batch = options.batch;
    for (const Layout& layout : chosen_layouts(options, options.devices)) {
      for (const bool recomputes : {false, true}) {
        if (shows_progress) {
          fmt::print(stderr, "\r\x1b[Kplanning {} {}{}", model.name, layout.name,
                     recomputes ? ", recomputed" : "");
        }
        const auto recompute = recomputes ? gpt::Recompute::all : gpt::Recompute::none;
        rows.push_back(
            {model, layout, recomputes, plan(model.sizes, layout, recompute, machine_of(options))});
      }
      if (layout.name != "1-d") continue;
      for (Row row : {rows[rows.size() - 2], rows.back()}) {
        row.layout.name = "FSDP, counted";
        row.planned =
            counted_as_fsdp(row.planned, model.sizes, options.devices, machine_of(options));
        rows.push_back(std::move(row));
      }
    }
  }
  if (shows_progress) fmt::print(stderr, "\r\x1b[K");
  return rows;
}

void print_table(const Options& options, const std::vector<Row>& rows) {
  fmt::print(
      "One training step in f32 with AdamW, batch {} of 1,024 tokens, on {} devices. Planned, not "
      "run.\n",
      options.batch, sw::Mesh::parse(rows.front().layout.mesh).size());
  fmt::print("{:<6} {:<11} {:<17} {:>12} {:>15} {:>13} {:>9} {:>11}\n", "model", "cut", "mesh",
             "peak GiB", "recomputed GiB", "sent GiB", "MFU %", "plan ms");
  for (std::size_t i = 0; i + 1 < rows.size(); i += 2) {
    const Row &kept = rows[i], &again = rows[i + 1];
    const auto shown = [&](const Planned& planned) {
      const double gib = static_cast<double>(planned.peak_bytes) / kGiB;
      return fmt::format("{:.2f}{}", gib, gib <= options.limit_gib ? " " : "!");
    };
    fmt::print("{:<6} {:<11} {:<17} {:>12} {:>15} {:>13.2f} {:>9.1f} {:>11.0f}\n", kept.model.name,
               kept.layout.name, kept.layout.mesh, shown(kept.planned), shown(again.planned),
               kept.planned.wire_bytes / kGiB, 1e2 * kept.planned.modelled_mfu,
               1e3 * kept.planned.seconds);
  }
  const sw::Machine& machine = machine_of(options);
  fmt::print(
      "! is more than {:g} GiB. MFU is modelled, not measured, on {} ({}): 6 x parameters x tokens "
      "over the devices' peak in that time; collectives and computing take turns.\n",
      options.limit_gib, machine.name, machine.source);
}

/// One row for each model and cut: memory, traffic and utilization, kept and recomputed.
void print_parallelism(const Options& options, const std::vector<Row>& rows) {
  fmt::print(
      "One training step of a GPT in f32 with AdamW, batch {} of 1,024 tokens, on {} devices. "
      "Planned, not run.\n{:<6} {:<14} {:<17} {:>9} {:>9} {:>9} {:>9} {:>7} {:>11}\n",
      options.batch, options.devices, "model", "cut", "mesh", "peak GiB", "again GiB", "sent GiB",
      "bubble %", "MFU %", "again MFU %");
  for (std::size_t i = 0; i + 1 < rows.size(); i += 2) {
    const Row& row = rows[i];
    const Planned &kept = row.planned, &again = rows[i + 1].planned;
    fmt::print("{:<6} {:<14} {:<17} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.1f} {:>7.1f} {:>11.1f}\n",
               row.model.name, row.layout.name, row.layout.mesh,
               static_cast<double>(kept.peak_bytes) / kGiB,
               static_cast<double>(again.peak_bytes) / kGiB, kept.wire_bytes / kGiB,
               1e2 * kept.bubble, 1e2 * kept.modelled_mfu, 1e2 * again.modelled_mfu);
  }
  const sw::Machine& machine = machine_of(options);
  fmt::print(
      "again: with recomputation of the layers. MFU is modelled, not measured, on {} ({}): 6 x "
      "parameters x tokens over the devices' peak in that time; collectives and computing take "
      "turns. \"FSDP, counted\" computes as 1-d does, and sends each weight three times: two "
      "gathers and a reduce-scatter of its gradient.\n",
      machine.name, machine.source);
}

struct Studied {
  std::vector<Row> gpts;
  std::vector<Largest> resnets;
};

/// Searches for ResNet-50 with images or their rows cut over all axes.
std::vector<Largest> search_all(const Options& options) {
  const auto bytes = static_cast<std::size_t>(options.limit_gib * kGiB);
  const std::string mesh = resnet_mesh(options);
  std::vector<Largest> all;
  for (const char* const plan : {"batch", "spatial"}) {
    all.push_back(largest_batch(plan, mesh, 224, bytes));
    for (const std::int64_t batch : {1, 8}) {
      all.push_back(largest_image(plan, mesh, batch, bytes));
    }
  }
  return all;
}

void print_largest(const Options& options, const std::vector<Largest>& all) {
  fmt::print(
      "\nThe largest training step of ResNet-50 in f32 that fits {:g} GiB on each of {} devices.\n",
      options.limit_gib, sw::Mesh::parse(resnet_mesh(options)).size());
  fmt::print("{:<8} {:>18} {:>20} {:>20}\n", "cut", "batch at 224 x 224", "image at a batch of 1",
             "image at a batch of 8");
  for (std::size_t i = 0; i + 2 < all.size(); i += 3) {
    fmt::print("{:<8} {:>18} {:>20} {:>20}\n", all[i].plan, all[i].batch, all[i + 1].image,
               all[i + 2].image);
  }
}

Json to_json(const Studied& studied, const sw::Machine& machine) {
  Json gpts = Json::array(), resnets = Json::array();
  for (const Row& row : studied.gpts) {
    gpts.push_back({{"model", row.model.name},
                    {"parameters", parameters(row.model.sizes)},
                    {"cut", row.layout.name},
                    {"mesh", row.layout.mesh},
                    {"recomputes", row.recomputes},
                    {"planned_peak_bytes", row.planned.peak_bytes},
                    {"planned_wire_bytes", row.planned.wire_bytes},
                    {"bubble", row.planned.bubble},
                    {"modelled_on", machine.id},
                    {"modelled_seconds", row.planned.modelled_seconds},
                    {"modelled_mfu", row.planned.modelled_mfu},
                    {"plan_seconds", row.planned.seconds}});
  }
  for (const Largest& one : studied.resnets) {
    resnets.push_back({{"cut", one.plan},
                       {"mesh", one.mesh},
                       {"batch", one.batch},
                       {"image", one.image},
                       {"planned_peak_bytes", one.peak_bytes}});
  }
  return {{"gpt", gpts}, {"resnet50", resnets}};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw sw::Error(sw::ErrorCode::io, "write \"" + path + "\": failed");
}

void write_charts(const Options& options, const std::vector<Row>& rows) {
  std::vector<Bar> peaks, mfu;
  peaks.reserve(rows.size());
  mfu.reserve(rows.size());
  for (const Row& row : rows) {
    const std::string series = row.layout.name + (row.recomputes ? ", recomputed" : "");
    peaks.push_back({row.model.name, series, static_cast<double>(row.planned.peak_bytes) / kGiB});
    mfu.push_back({row.model.name, series, 1e2 * row.planned.modelled_mfu});
  }
  if (!options.svg.empty()) {
    write(options.svg,
          bar_chart("Peak memory of the fullest device, one GPT training step in f32 (planned)",
                    "GiB", peaks, options.limit_gib));
  }
  if (!options.mfu_svg.empty()) {
    write(options.mfu_svg, bar_chart("Model FLOPS utilization of a GPT training step on " +
                                         machine_of(options).name + " (modelled, not measured)",
                                     "%", mfu, 0));
  }
}

/// Runs a small model under each layout, and returns whether all peaks are as planned.
bool check(const Options& options) {
  const gpt::Sizes small{.layers = 4, .width = 64, .heads = 4, .context = 64, .batch = 16};
  bool all_equal = true;
  for (const Layout& layout : chosen_layouts(options, std::min<std::int64_t>(options.devices, 8))) {
    for (const auto recompute : {gpt::Recompute::none, gpt::Recompute::all}) {
      const std::size_t planned = plan(small, layout, recompute, machine_of(options)).peak_bytes;
      const std::size_t measured = measured_peak(small, layout, recompute);
      fmt::print("{:<11} {:<17} planned {} bytes, measured {}\n", layout.name, layout.mesh, planned,
                 measured);
      all_equal = all_equal && planned == measured;
    }
  }
  return all_equal;
}

}  // namespace

// CLI11 throws while options are declared only if this file has a mistake.
// NOLINTNEXTLINE(bugprone-exception-escape)
int main(int argc, char** argv) {
  Options options;
  CLI::App app{
      "Plans training steps of GPTs of four sizes and of ResNet-50, and prints what memory they "
      "need"};
  app.option_defaults()->always_capture_default();
  app.add_option("--study", options.study,
                 "memory: of GPTs and ResNet-50 under usual cuts; parallelism: the utilization of "
                 "1-d cuts, FSDP, 2-d cuts and a pipeline, of GPTs")
      ->check(CLI::IsMember({"memory", "parallelism"}));
  CLI::Option* const devices =
      app.add_option("--devices", options.devices, "Devices of the meshes of each plan")
          ->check(CLI::Range(1, 4096));
  app.add_option(
         "--mesh", options.mesh,
         "One mesh instead, for GPTs and ResNet-50: axes data or fsdp (the batch) and model, as "
         "data=4,model=4")
      ->excludes(devices);
  app.add_option("--plan", options.plan,
                 "How the weights are cut: data (replicated), fsdp, tensor, 2d; all: those for "
                 "which the mesh has the axes")
      ->check(CLI::IsMember({"all", "data", "fsdp", "tensor", "2d"}));
  app.add_option("--batch", options.batch,
                 "Sequences of 1,024 tokens in a step; 16 for memory, 128 for parallelism")
      ->check(CLI::Range(1, 65536))
      ->default_str("");
  app.add_option("--limit", options.limit_gib, "GiB of one device: what needs more is marked")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--svg", options.svg, "Draw the peaks into this file");
  app.add_option("--mfu-svg", options.mfu_svg,
                 "Draw the modelled utilization of the devices into this file");
  app.add_option("--machine", options.machine, "Machine for which times are modelled")
      ->check(CLI::IsMember(machine_ids()));
  app.add_flag("--json", options.json, "Print one JSON object: an array of rows for each study");
  app.add_flag("--check", options.check,
               "Run a small model instead, and compare planned with measured memory");
  CLI11_PARSE(app, argc, argv);
  const bool compares = options.study == "parallelism";
  if (options.batch == 0) options.batch = compares ? 128 : 16;
  try {
    if (compares) check_parallelism(options);
    if (options.check) return check(options) ? 0 : 1;
    const Studied studied{plan_all(options),
                          compares ? std::vector<Largest>() : search_all(options)};
    if (options.json) {
      fmt::print("{}\n", to_json(studied, machine_of(options)).dump());
    } else if (compares) {
      print_parallelism(options, studied.gpts);
    } else {
      print_table(options, studied.gpts);
      print_largest(options, studied.resnets);
    }
    write_charts(options, studied.gpts);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "memory_report: {}\n", error.what());
    return 3;
  }
}
