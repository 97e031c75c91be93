#include "commands/python/import.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "commands/write_step.h"
#include "parse.h"
#include "shardwise/checkpoint/staged_output.h"
#include "shardwise/convert/model.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"
#include "shardwise/storage/known_format.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::tools {
namespace {

struct ImportOptions : ReshardOptions {
  ImportOptions() { mesh = "1"; }

  std::int64_t step = 0;
};

namespace fs = std::filesystem;

/// Returns the result of `write`; its errors about `operation` name the import of `source`.
template <class Write>
auto told_as_import(const std::string& operation, const std::string& source, const Write& write) {
  try {
    return write();
  } catch (const Error& error) {
    std::string message = error.what();
    if (message.starts_with(operation)) message.replace(0, operation.size(), "import " + source);
    throw Error(error, message);
  }
}

/// Python writes the tensors to a hidden folder next to the root, or one for temporary files if the
/// root is in a bucket; from there they are written as the options say.
SaveStats write_from_python(const ImportOptions& options, const StepWriting& writing,
                            std::string_view format) {
  if (writing.options.group.size() > 1) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("import {}: found {} processes of mpirun, needed is one for what Python "
                    "reads",
                    options.source, writing.options.group.size()));
  }
  const auto files = posix_file_system();
  fs::path neighbour = temporary_place(options.source);
  if (!in_bucket(options.target)) {
    neighbour = fs::absolute(options.target).lexically_normal();
    if (!neighbour.has_filename()) neighbour = neighbour.parent_path();
  }
  StagedOutput staged(*files, neighbour);
  files->make_directory(staged.place());
  const fs::path step = staged.place() / fmt::format("step-{:08}", options.step);
  shardwise::ReshardOptions work = writing.options;
  const std::vector<std::string> select = std::exchange(work.edits.select, {});
  const std::vector<std::string> exclude = std::exchange(work.edits.exclude, {});
  import_by_python(format, options.source, step, {select, exclude});
  // The hidden folder is nobody's to know.
  return told_as_import("reshard " + step.string(), options.source, [&] {
    return reshard_checkpoint(step, options.target, writing.mesh, writing.rules, work);
  });
}

/// Throws for a file of another format, saying what to type if it is a known one.
void refuse_foreign(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored) || fs::is_directory(path, ignored) || is_model(path)) return;
  std::string what = foreign_format(path), advice;
  if (const std::size_t colon = what.find(": "); colon != std::string::npos) {
    advice = "; " + what.substr(colon + 2);
    what.resize(colon);
  }
  throw Error(
      ErrorCode::unsupported,
      fmt::format("import {}: found {}, needed is safetensors, HDF5 or npz{}", path.string(),
                  what.empty() ? "a file of no known format" : what, advice));
}

/// Throws for a folder of checkpoints of others, saying what to type.
void refuse_several(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored) || is_model(path)) return;
  if (const KnownFormat known = known_format(path);
      !known.steps.empty() && known.name != "shardwise") {
    throw Error(ErrorCode::not_found, fmt::format("import {}: found {}, needed is one",
                                                  path.string(), foreign_format(path)));
  }
}

int run_import(ImportOptions& options) {
  return write_step(
      "import", options, [&options] { return options.source; },
      [&options](const fs::path& path, const StepWriting& writing) {
        if (const std::string_view format = python_format(path); !format.empty()) {
          return write_from_python(options, writing, format);
        }
        refuse_several(path);
        refuse_foreign(path);
        const std::unique_ptr<ModelReader> source = open_model(path);
        shardwise::ReshardOptions work = writing.options;
        work.save.user_json = source->user_json();
        return told_as_import("reshard", path.string(), [&] {
          return reshard_checkpoint(*source, {options.target, options.step}, writing.mesh,
                                    writing.rules, work);
        });
      });
}

}  // namespace

void declare_import(CLI::App& app, Run& run) {
  const auto [imported, options] =
      add_command(app, run, "import",
                  "Write the tensors of safetensors, HDF5 or npz as a checkpoint, cut over a mesh",
                  "shardwise import llama/ runs/checkpoints --step 0 --mesh model=4 --spec "
                  "'*norm*=-;*=model,-'",
                  run_import);
  add_path(imported, "source", options.source,
           "A file of safetensors, HDF5 or npz, an .index.json, a folder with one of these, or a "
           "checkpoint of DCP or Orbax, which the Python package reads");
  add_place(imported, "root", options.target, "Directory or s3://bucket/prefix that gets the step");
  imported.add_option("--step", options.step, "Number of the step")->required()->check(whole(0));
  imported.add_option("--mesh", options.mesh, "Mesh: data=2,model=3")->capture_default_str();
  add_step_options(imported, options);
}

}  // namespace shardwise::tools
