#pragma once

#include <filesystem>
#include <memory>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class FileSystem;
class SpecRules;

// A program as files: the text that dump() writes and, if it has literals, their elements in a
// safetensors file next to it, PATH.safetensors, each under its hash. The library is separate,
// shardwise::program_files, so that checkpoints need no BLAS.

/// Writes the program; files of these names are replaced. A file appears under its name only when
/// all of it is on the disk. A null file_system is the real one. Throws not_found if the folder
/// does not exist, already_exists if the name is not a file's, io.
///
/// The step that was run or planned last:
///
///   save_program(tracer.last()->graph(), "step.swp");
void save_program(const Graph& graph, const std::filesystem::path& path,
                  const std::shared_ptr<FileSystem>& file_system = nullptr);

/// Reads it again. Throws not_found and io; errors of parse_graph(), naming the file and the line;
/// corrupt for an invalid file of literals, or a text of more than 256 MiB.
///
///   const auto graph = std::make_shared<const Graph>(load_program("step.swp"));
///   Executable(graph, Mesh::parse("data=8"), {}).memory(0).peak_bytes;
Graph load_program(const std::filesystem::path& path,
                   const std::shared_ptr<FileSystem>& file_system = nullptr);

/// Marks the inputs whose labels the rules match ("*.w1=-,model;*=-"), and their replacements
/// (mark_inputs() of spmd/executable.h); other marks stay. Throws no_such_name for a rule that
/// matches no input, and invalid_argument for a spec of another rank.
void mark_inputs(Graph& graph, const SpecRules& rules);

}  // namespace shardwise
