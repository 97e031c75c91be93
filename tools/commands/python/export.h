#pragma once

#include <filesystem>
#include <string_view>

#include "options.h"
#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/model.h"

namespace shardwise::tools {

struct ExportOptions {
  std::string source, step, target;
  std::string format;               ///< empty: by the target's ending
  std::vector<std::string> words;   ///< after the source
  std::string config_from;          ///< empty: none
  std::size_t max_shard_bytes = 0;  ///< 0: one file
  std::size_t memory_budget_bytes = SaveOptions().memory_budget_bytes;
  int threads = 0;
  EditOptions edits;
  Existing existing = Existing::fail;
  bool json = false;
};

/// True if only packages of Python write this format: DCP and Orbax.
bool is_python_format(std::string_view format);

/// Has Shardwise's Python package write a checkpoint in such a format, to a hidden folder that gets
/// the target's name. The interpreter is that of import_by_python(). Throws BadUsage for edits that
/// do not fit, unsupported, naming what to install, if the package is not there; its errors;
/// and cancelled if the user has interrupted it.
shardwise::ExportStats export_by_python(const ExportOptions& options,
                                        const std::filesystem::path& source,
                                        const ProgressFunction& progress);

}  // namespace shardwise::tools
