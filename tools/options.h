#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "commands/commands.h"
#include "parse.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

// Options that several commands have, and what their words may be.
namespace shardwise::tools {

/// Whole numbers of a range. CLI11's own check says in floating point what is allowed.
CLI::Validator whole(std::int64_t least,
                     std::int64_t most = std::numeric_limits<std::int64_t>::max());

/// Paths of file systems that are mounted here: a URL would be taken for a folder of an odd name.
CLI::Validator local_path();

void add_threads(CLI::App& command, int& threads);

void add_size(CLI::App& command, const std::string& name, std::size_t& bytes, ByteRange allowed,
              const std::string& description);

/// A size a second: "2GB/s", or without the "/s".
void add_rate(CLI::App& command, const std::string& name, std::size_t& bytes_per_second,
              const std::string& description);

void add_memory_budget(CLI::App& command, std::size_t& bytes);

/// Each may be repeated and takes one word, so that others may follow.
void add_edits(CLI::App& command, EditOptions& edits);

}  // namespace shardwise::tools
