#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "commands/name_tree.h"
#include "commands/python/import.h"
#include "objects.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/view/picture.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct InspectOptions {
  std::string path, step;
  std::vector<std::string> patterns, tensors;
  std::int64_t depth = -1;  ///< negative: all levels
  std::optional<std::string> svg;
  bool flat = false;
  bool json = false;
};

std::string mesh_text(const TensorInfo& tensor) {
  return tensor.sharding ? tensor.sharding->mesh().to_string() : "";
}

std::string spec_text(const TensorInfo& tensor) {
  if (tensor.shape.empty()) return "(scalar)";
  if (!tensor.sharding) return "(boxes)";
  const std::string spec = tensor.sharding->spec().to_string();
  const UnevenPolicy& policy = tensor.sharding->policy();
  return policy == UnevenPolicy() ? spec : spec + " " + policy.to_string();
}

nlohmann::ordered_json tensor_json(const TensorInfo& t) {
  nlohmann::ordered_json json = {
      {"name", t.name},
      {"dtype", dtype_name(t)},
      {"shape", dims_json(t.shape)},
      {"mesh", mesh_text(t)},
      {"spec", t.sharding ? t.sharding->spec().to_string() : ""},
      {"policy", (t.sharding ? t.sharding->policy() : UnevenPolicy()).to_string()},
      {"pieces", t.pieces},
      {"chunks", t.chunks},
      {"logical_bytes", t.logical_bytes},
      {"stored_bytes", t.stored_bytes}};
  if (!knows_pieces(t)) json["pieces"] = json["chunks"] = json["stored_bytes"] = nullptr;
  return json;
}

std::vector<std::string> tensor_row(const TensorInfo& t) {
  std::vector<std::string> row{t.name, std::string(dtype_name(t)), to_string(t.shape), mesh_text(t),
                               spec_text(t)};
  const std::string bytes = human_bytes(t.logical_bytes);
  if (!knows_pieces(t)) {
    row.insert(row.end(), {"-", "-", bytes, "-", "-"});
    return row;
  }
  const double ratio = t.stored_bytes == 0 ? 1.0
                                           : static_cast<double>(t.logical_bytes) /
                                                 static_cast<double>(t.stored_bytes);
  row.insert(row.end(), {std::to_string(t.pieces), std::to_string(t.chunks), bytes,
                         human_bytes(t.stored_bytes), fmt::format("{:.3f}", ratio)});
  return row;
}

/// The mesh of all tensors that have a sharding; empty if they differ.
std::string common_mesh(const std::vector<TensorInfo>& tensors) {
  std::string common;
  for (const TensorInfo& tensor : tensors) {
    const std::string mesh = mesh_text(tensor);
    if (!common.empty() && !mesh.empty() && mesh != common) return {};
    if (!mesh.empty()) common = mesh;
  }
  return common;
}

TensorTotals totals_of(const std::vector<TensorInfo>& tensors) {
  TensorTotals totals;
  for (const TensorInfo& tensor : tensors) totals.add(tensor);
  return totals;
}

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

nlohmann::ordered_json totals_json(const TensorTotals& totals) {
  nlohmann::ordered_json json = {{"tensors", totals.tensors},
                                 {"elements", totals.elements},
                                 {"logical_bytes", totals.logical_bytes},
                                 {"stored_bytes", nullptr}};
  if (totals.stored_bytes) json["stored_bytes"] = *totals.stored_bytes;
  return json;
}

void print_tree(const std::vector<TensorInfo>& tensors, std::int64_t depth) {
  const std::string mesh = common_mesh(tensors);
  if (!mesh.empty()) print_shown(fmt::format("mesh {}\n\n", mesh));
  std::vector<std::string> heading{"name", "tensors",    "dtype", "shape", "spec",
                                   "mesh", "parameters", "bytes", "stored"};
  const auto without_mesh = [&mesh](std::vector<std::string> row) {
    if (!mesh.empty()) row.erase(row.begin() + 5);
    return row;
  };
  TextTable table(without_mesh(std::move(heading)));
  const auto add = [&](const TreeLine& line) {
    const TensorInfo* tensor = line.tensor;
    const TensorTotals& totals = line.totals;
    table.add(without_mesh({std::string(2 * static_cast<std::size_t>(line.level), ' ') + line.name,
                            tensor == nullptr ? std::to_string(totals.tensors) : "",
                            tensor == nullptr ? "" : std::string(dtype_name(*tensor)),
                            tensor == nullptr ? "" : to_string(tensor->shape),
                            tensor == nullptr ? "" : spec_text(*tensor),
                            tensor == nullptr ? "" : mesh_text(*tensor), grouped(totals.elements),
                            human_bytes(totals.logical_bytes),
                            totals.stored_bytes ? human_bytes(*totals.stored_bytes) : "-"}));
  };
  add({0, "all", nullptr, totals_of(tensors)});
  for (const TreeLine& line : name_tree(tensors, depth)) add(line);
  print_shown(table);
}

void print_list(const std::vector<TensorInfo>& tensors) {
  TextTable table(
      {"tensor", "dtype", "shape", "mesh", "spec", "pieces", "chunks", "bytes", "stored", "ratio"});
  for (const TensorInfo& t : tensors) table.add(tensor_row(t));
  print_shown(table);
  const TensorTotals totals = totals_of(tensors);
  print_shown(fmt::format(
      "\n{} tensors, {} parameters, {}{}\n", totals.tensors, grouped(totals.elements),
      human_bytes(totals.logical_bytes),
      totals.stored_bytes ? fmt::format(", {} stored", human_bytes(*totals.stored_bytes)) : ""));
}

void write_picture(const InspectOptions& options, const std::vector<TensorInfo>& tensors) {
  if (tensors.size() != 1) {
    throw BadUsage(
        fmt::format("inspect: --svg draws one tensor, found {}; its NAME after the path says which",
                    tensors.size()));
  }
  const TensorInfo& tensor = tensors[0];
  if (!tensor.sharding) {
    throw Error(ErrorCode::unsupported,
                fmt::format("inspect: --svg: tensor \"{}\" was saved as boxes; needed is one that "
                            "is cut over a mesh",
                            tensor.name));
  }
  check_listed(tensor.sharding->mesh(), "inspect");
  write_file("--svg", *options.svg, svg_picture(*tensor.sharding, tensor.shape));
}

/// Those that the options ask for.
std::vector<TensorInfo> tensors_of(const BoxReader& reader, const InspectOptions& options) {
  std::vector<std::string> patterns = options.patterns;
  patterns.insert(patterns.end(), options.tensors.begin(), options.tensors.end());
  std::vector<TensorInfo> tensors;
  for (const std::size_t i : find_tensors(reader, options.path, patterns)) {
    tensors.push_back(reader.tensors()[i]);
  }
  return tensors;
}

nlohmann::ordered_json list_json(const std::vector<TensorInfo>& tensors) {
  auto list = nlohmann::ordered_json::array();
  for (const TensorInfo& t : tensors) list.push_back(tensor_json(t));
  return list;
}

void print_tensors(const std::vector<TensorInfo>& tensors, const InspectOptions& options) {
  if (options.flat) {
    print_list(tensors);
  } else {
    print_tree(tensors, options.depth);
  }
}

/// Facts about a file of another format, apart from its tensors.
struct Foreign {
  std::string_view format;
  std::string user_json = "{}";
  std::span<const std::string> left_out = {};
};

void refuse_uncut(const InspectOptions& options, std::string_view format) {
  if (!options.svg) return;
  throw BadUsage(fmt::format(
      "inspect: --svg: found {}, needed is a checkpoint, whose tensors are cut over a mesh",
      format));
}

int inspect_foreign(const InspectOptions& options, const BoxReader& reader,
                    const Foreign& foreign) {
  const std::vector<TensorInfo> tensors = tensors_of(reader, options);
  if (options.json) {
    auto left_out = nlohmann::ordered_json::array();
    for (const std::string& name : foreign.left_out) left_out.push_back(name);
    print_json_text(exact_text({{"path", options.path},
                                {"format", foreign.format},
                                {"user", exact_json(foreign.user_json)},
                                {"left_out", left_out},
                                {"tensors", list_json(tensors)},
                                {"totals", totals_json(totals_of(tensors))}}));
    return 0;
  }
  print_shown(fmt::format("{}: {}, user {}\n\n", options.path, foreign.format, foreign.user_json));
  print_tensors(tensors, options);
  return 0;
}

/// Prints the lines that follow a checkpoint's tensors.
void print_objects(const Metrics& metrics, const nlohmann::ordered_json& objects) {
  constexpr std::size_t kMostShown = 20;
  TextTable table({"object", "value"});
  if (!metrics.empty()) table.add({"metrics", short_text(nlohmann::ordered_json(metrics))});
  std::size_t shown = 0;
  for (const auto& [name, value] : objects.items()) {
    if (++shown <= kMostShown) table.add({name, short_text(value)});
  }
  if (metrics.empty() && objects.empty()) return;
  print_shown("\n" + table.to_string());
  if (shown <= kMostShown) return;
  print_shown(fmt::format("and {} more, which --json shows\n", shown - kMostShown));
}

int run_inspect(InspectOptions& options) {
  choose_step(options.path, options.step, options.patterns);
  if (const std::string_view format = python_format(options.path); !format.empty()) {
    refuse_uncut(options, format);
    return inspect_foreign(options, *describe_by_python(format, options.path), {format});
  }
  if (is_model(options.path)) {
    refuse_uncut(options, model_format(options.path));
    const std::unique_ptr<ModelReader> reader = open_model(options.path);
    return inspect_foreign(options, *reader,
                           {reader->format(), reader->user_json(), reader->left_out()});
  }
  const CheckpointReader reader(resolve_checkpoint(options.path));
  const std::vector<TensorInfo> tensors = tensors_of(reader, options);
  if (options.svg) write_picture(options, tensors);

  if (options.json) {
    nlohmann::ordered_json json = {{"directory", reader.directory().string()},
                                   {"step", nullptr},
                                   {"user", exact_json(reader.user_json())},
                                   {"metrics", reader.metrics()},
                                   {"objects", objects_of(reader)},
                                   {"index", reader.has_index()},
                                   {"tensors", list_json(tensors)},
                                   {"totals", totals_json(totals_of(tensors))}};
    if (reader.step() >= 0) json["step"] = reader.step();
    print_json_text(exact_text(json));
    return 0;
  }
  const std::string step = reader.step() < 0 ? "no step" : fmt::format("step {}", reader.step());
  print_shown(
      fmt::format("{}: {}, user {}\n\n", reader.directory().string(), step, reader.user_json()));
  print_tensors(tensors, options);
  if (options.patterns.empty() && options.tensors.empty()) {
    print_objects(reader.metrics(), objects_of(reader));
  }
  if (!reader.has_index()) {
    print_shown(
        fmt::format("\nno index.h5: there are too many shard files or pieces for HDF5 to map\n"));
  }
  return 0;
}

}  // namespace

void declare_inspect(CLI::App& app, Run& run) {
  const auto [inspect, options] =
      add_command(app, run, "inspect", "Show the tensors, objects and user data of a checkpoint",
                  "shardwise inspect runs/checkpoints/step-00000400 'h.0.*'\n"
                  "  shardwise inspect runs/checkpoints 400 --depth 2\n"
                  "  shardwise inspect runs/checkpoints w1 --svg w1.svg",
                  run_inspect);
  add_place(inspect, "path", options.path, kTensors);
  inspect.add_option("pattern", options.patterns,
                     "Names of tensors; * and ? stand for any characters (default: all)");
  add_step(inspect, options.step, false);
  inspect.add_option("--tensor", options.tensors, "Also these (may be repeated)");
  inspect
      .add_option("--depth", options.depth,
                  "Levels of names to show, as . and / split them (default: all)")
      ->check(whole(1));
  inspect.add_flag("--flat", options.flat, "Show a list of whole names, with pieces and chunks")
      ->excludes("--depth");
  inspect.add_option("--svg", options.svg,
                     "Also draw the one tensor to this SVG file: which devices hold which tile");
}

}  // namespace shardwise::tools
