#pragma once

#include <filesystem>
#include <memory>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class FileSystem;
class SpecRules;

// A program as files: its text, which is what dump() writes, and, if it has literals, their
// elements in a safetensors file beside it, PATH.safetensors, each under its hash. In a library of
// its own, shardwise::program_files: checkpoints need no BLAS.

/// Writes the program; files of these names are replaced. Each has its name when all of it is on
/// the disk. A null file_system is the real one. Throws not_found if the folder is not there,
/// already_exists if the name is not a file's, io.
///
/// The step that was run or planned last:
///
///   save_program(tracer.last()->graph(), "step.swp");
void save_program(const Graph& graph, const std::filesystem::path& path,
                  const std::shared_ptr<FileSystem>& file_system = nullptr);

/// Reads it again. Throws not_found, io, and, naming the file and the line, what parse_graph()
/// throws; corrupt for a file of literals that is none, or a text of more than 256 MiB.
///
///   const auto graph = std::make_shared<const Graph>(load_program("step.swp"));
///   Executable(graph, Mesh::parse("data=8"), {}).memory(0).peak_bytes;
Graph load_program(const std::filesystem::path& path,
                   const std::shared_ptr<FileSystem>& file_system = nullptr);

/// Marks the inputs whose labels the rules match ("*.w1=-,model;*=-"), and what replaces them
/// (mark_inputs() of spmd/executable.h); other marks stay. Throws no_such_name for a rule that
/// matches none, and invalid_argument for a spec of another rank.
void mark_inputs(Graph& graph, const SpecRules& rules);

}  // namespace shardwise
