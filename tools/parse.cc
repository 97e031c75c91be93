#include "parse.h"

#include <fmt/core.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace fs = std::filesystem;

Mesh parse_mesh(const std::string& mesh, const std::string& devices) {
  if (devices.empty()) return Mesh::parse(mesh);
  if (mesh.find('@') != std::string::npos) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("mesh \"{}\" has a device order of its own, and --devices gives another",
                    mesh));
  }
  return Mesh::parse(mesh + "@" + devices);
}

bool is_checkpoint(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "manifest.json", ignored);
}

fs::path existing_root(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    throw Error(ErrorCode::not_found, fmt::format("{} is not a directory", path));
  }
  return path;
}

fs::path resolve_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  const fs::path root = existing_root(path);
  // A step directory without a manifest is damaged, not a root.
  if (root.filename().string().rfind("step-", 0) == 0) {
    throw Error(ErrorCode::not_found,
                fmt::format("{} holds no manifest.json: not a committed checkpoint", path));
  }
  const CheckpointManager manager(root, {.collect_garbage = false});
  const auto latest = manager.latest();
  if (!latest) {
    throw Error(ErrorCode::not_found, fmt::format("{} holds no committed checkpoint", path));
  }
  for (const RejectedStep& step : latest->rejected) {
    fmt::print(stderr, "passed over {}: {}\n", step.directory.string(), step.reason);
  }
  return latest->step.directory;
}

std::string text_or_file(const std::string& argument) {
  if (argument.empty() || argument[0] != '@') return argument;
  const std::string path = argument.substr(1);
  if (!fs::exists(path)) {
    throw Error(ErrorCode::not_found, fmt::format("rules file {} is not there", path));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) throw Error(ErrorCode::io, fmt::format("rules file {} cannot be read", path));
  return text.str();
}

}  // namespace shardwise::tools
