#include "commands/python/export.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "commands/python/import.h"
#include "output.h"
#include "parse.h"
#include "shardwise/convert/model.h"
#include "shardwise/shard/error.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

void refuse_without_parent(const std::filesystem::path& target) {
  std::error_code ignored;
  const std::filesystem::path folder = target.lexically_normal().parent_path();
  if (folder.empty() || std::filesystem::is_directory(folder, ignored)) return;
  const std::filesystem::path above = target.has_filename() ? folder : folder.parent_path();
  if (above.empty() || std::filesystem::is_directory(above, ignored)) return;
  throw Error(ErrorCode::not_found,
              fmt::format("export: {} is no folder; needed is one to make {} in", above.string(),
                          target.string()));
}

/// The edits do not fit the tensors, or the folder above is not there.
template <class Body>
ExportStats told_as_usage(const ExportOptions& options, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument) throw BadUsage(error.what());
    refuse_without_parent(options.target);
    throw;
  }
}

ExportStats write_model(const ExportOptions& options, const std::filesystem::path& source) {
  ProgressLine line("export");
  if (is_python_format(options.format)) {
    return told_as_usage(options,
                         [&] { return export_by_python(options, source, line.function()); });
  }
  shardwise::ExportOptions work;
  work.format = options.format;
  work.config_from = options.config_from;
  work.max_shard_bytes = options.max_shard_bytes;
  work.existing = options.existing;
  work.memory_budget_bytes = options.memory_budget_bytes;
  work.threads = options.threads;
  work.progress = line.function();
  work.edits = parse_edits("export", options.edits);
  return told_as_usage(options, [&] { return export_model(source, options.target, work); });
}

/// A file name of another format would become a folder.
void refuse_other_ending(const std::filesystem::path& target) {
  std::error_code ignored;
  if (std::filesystem::is_directory(target, ignored)) return;
  const std::string ending = target.extension().string();
  for (const char* const known : {".npy", ".pt", ".pth", ".bin", ".hdf5", ".ckpt", ".zip", ".tar",
                                  ".json", ".gguf", ".onnx", ".parquet", ".msgpack", ".pkl"}) {
    if (ending != known) continue;
    throw BadUsage(fmt::format(
        "export: {}: found the ending {}, needed NAME.safetensors, .npz or .h5, or a folder",
        target.string(), ending));
  }
}

int export_and_print(const ExportOptions& options) {
  const std::filesystem::path source = resolve_checkpoint(options.source);
  const ExportStats stats = write_model(options, source);
  if (options.json) {
    auto files = nlohmann::ordered_json::array();
    for (const std::filesystem::path& file : stats.files) files.push_back(file.string());
    print_json({{"source", source.string()},
                {"target", options.target},
                {"files", files},
                {"logical_bytes", stats.logical_bytes},
                {"file_bytes", stats.file_bytes},
                {"seconds", stats.total_seconds}});
    return 0;
  }
  if (stats.files.empty()) {
    print_shown(fmt::format("{} is already there: nothing was written\n", options.target));
    return 0;
  }
  print_shown(fmt::format("{} -> {}: {} in {} file{}, {:.2f} s\n", source.string(), options.target,
                          human_bytes(stats.logical_bytes), stats.files.size(),
                          stats.files.size() == 1 ? "" : "s", stats.total_seconds));
  return 0;
}

int run_export(ExportOptions& options) {
  choose_with_target("export", options.source, options.step, options.words, options.target);
  refuse_other_ending(options.target);
  const auto run = [&options] { return export_and_print(options); };
  return is_python_format(options.format) ? run_with_python(run) : run();
}

}  // namespace

void declare_export(CLI::App& app, Run& run) {
  const auto [exported, options] = add_command(
      app, run, "export",
      "Write the tensors of a checkpoint as safetensors, npz or HDF5, or in the format of DCP or "
      "Orbax",
      "shardwise export runs/checkpoints 400 model.safetensors\n"
      "  shardwise export runs/checkpoints model/ --max-shard 5GB\n"
      "  shardwise export runs/checkpoints arrays.npz\n"
      "  shardwise export runs/checkpoints distributed/ --format dcp\n"
      "  shardwise export runs/checkpoints model/ --strip-prefix model. --config-from gpt2/ "
      "--cast '*=bf16'",
      run_export);
  add_place(exported, "source", options.source, kCheckpoint);
  add_path(exported, "target", options.words,
           "NAME.safetensors, NAME.npz, NAME.h5, or a folder; the step may stand before it: "
           "run 20 w.npz");
  add_step(exported, options.step, false);
  exported.add_option("--format", options.format,
                      "safetensors, npz, hdf5, dcp or orbax (default: by the ending of target; of "
                      "a folder safetensors). The Python package writes dcp and orbax");
  exported
      .add_option("--config-from", options.config_from,
                  "Folder of Hugging Face: its config and tokenizer files are copied into target, "
                  "so that from_pretrained opens it; tied weights are left out as its config says")
      ->check(local_path());
  add_size(exported, "--max-shard", options.max_shard_bytes, {1, std::size_t{1} << 50},
           "Most bytes of tensors in a file, as 5GB; else all are in one");
  add_edits(exported, options.edits);
  add_existing(exported, options.existing,
               "Where the target exists: replace it, if it holds only files of an export",
               "Where the target exists: write nothing");
  add_memory_budget(exported, options.memory_budget_bytes);
  add_threads(exported, options.threads);
}

}  // namespace shardwise::tools
