#pragma once

#include <filesystem>
#include <string_view>

namespace shardwise::tools {

/// Has Shardwise's Python package write a checkpoint of DCP or Orbax anew, as the checkpoint
/// `target`: these formats are read by packages of Python alone. Nothing of the source is
/// unpickled that could run code. The interpreter is python3, or what SHARDWISE_PYTHON names, in a
/// process of its own, which ends with this one. Throws what the package says is wrong;
/// unsupported, saying what to type, if it is not there; cancelled after Ctrl-C.
void import_by_python(std::string_view format, const std::filesystem::path& source,
                      const std::filesystem::path& target);

}  // namespace shardwise::tools
