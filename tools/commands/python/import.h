#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/read_options.h"

namespace shardwise::tools {

/// Which names are taken: patterns, as in TensorEdits. Both empty: all, objects too.
struct Selection {
  std::span<const std::string> select, exclude;
};

/// Has Shardwise's Python package rewrite a checkpoint of DCP or Orbax as the checkpoint
/// `target`: these formats are read by packages of Python alone. Nothing of the source is
/// unpickled that could run code. SHARDWISE_PYTHON names the interpreter; it is python3 else.
/// Throws unsupported, naming what to install, if that lacks the package; the package's errors;
/// and cancelled if the user has interrupted it.
void import_by_python(std::string_view format, const std::filesystem::path& source,
                      const std::filesystem::path& target, const Selection& selection = {});

/// A place for hidden folders of this user in the system's folder for temporary files. Throws
/// not_found without one.
std::filesystem::path temporary_place(const std::filesystem::path& source);

/// The tensors of such a checkpoint, by its metadata alone: their elements cannot be read. Throws
/// as import_by_python(), and corrupt for an answer that describes no tensors.
std::unique_ptr<BoxReader> describe_by_python(std::string_view format,
                                              const std::filesystem::path& source);

/// The tensors of such a checkpoint, imported into a hidden folder of the system's folder for
/// temporary files, which the reader removes at its end; if the command is killed, the next one
/// does. A read throws cancelled if the user has interrupted it.
std::unique_ptr<BoxReader> open_by_python(std::string_view format,
                                          const std::filesystem::path& source,
                                          const ReadOptions& options, const Selection& selection);

/// Runs a command that may call the above. If the user interrupts it, it removes its files, and
/// then the process ends by the signal.
int run_with_python(const std::function<int()>& command);

/// The same if one of these paths is of a format that Python reads; else runs the command alone.
int run_reading(std::initializer_list<std::string_view> paths, const std::function<int()>& command);

}  // namespace shardwise::tools
