#include "parse.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <fstream>
#include <span>
#include <sstream>

#include "commands/python/import.h"
#include "output.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
Mesh parse_mesh(const std::string& mesh, const std::string& devices) {
  if (mesh.find_first_not_of(' ') == std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mesh \"{}\": it has no axis; needed is at least one, as in "
                            "\"data=4,model=2\", or \"1\" for one device",
                            mesh));
  }
  if (devices.empty()) return Mesh::parse(mesh);
  if (mesh.find('@') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("mesh \"{}\": it has a device order, and --devices gives another; "
                            "needed is one of the two",
                            mesh));
  }
  return Mesh::parse(mesh + "@" + devices);
}

void check_listed(const Mesh& mesh, std::string_view command) {
  constexpr std::int64_t kMostDevices = std::int64_t{1} << 20;  // about 1 GB of JSON
  if (mesh.size() <= kMostDevices) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("{}: mesh \"{}\" has {} devices, which would all be listed; needed are at "
                  "most {}",
                  command, mesh.to_string(), mesh.size(), kMostDevices));
}

std::size_t parse_bytes(std::string_view text, ByteRange allowed) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr Unit kUnits[] = {
      {"", 1},       {"b", 1},        {"k", 0x1p10},   {"kib", 0x1p10}, {"kb", 1e3},
      {"m", 0x1p20}, {"mib", 0x1p20}, {"mb", 1e6},     {"g", 0x1p30},   {"gib", 0x1p30},
      {"gb", 1e9},   {"t", 0x1p40},   {"tib", 0x1p40}, {"tb", 1e12}};
  const char* const end = text.data() + text.size();
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string unit(rest, end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Unit& known : kUnits) {
    if (error != std::errc() || unit != known.name) continue;
    const double bytes = std::round(number * known.bytes);
    const bool fits = bytes >= static_cast<double>(allowed.least) &&
                      bytes <= static_cast<double>(allowed.most);  // "nan" does not
    if (!fits) break;
    return static_cast<std::size_t>(bytes);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("\"{}\" is not a size that is allowed; needed are {} to {}: bytes, or a "
                          "number with a unit as in 512M, 64MiB, 1.5G (powers of 1024) or 2GB (of "
                          "1000)",
                          text, human_bytes(allowed.least), human_bytes(allowed.most)));
}

std::string suggestion(std::string_view word, const std::vector<std::string>& known) {
  std::string small(word);  // LS
  std::ranges::transform(small, small.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::vector<std::string_view> nearest = nearest_names({known.begin(), known.end()}, word);
  if (const auto same = std::ranges::find(known, small); same != known.end()) nearest = {*same};
  if (nearest.empty()) return fmt::format("there are {}", fmt::join(known, ", "));
  return fmt::format("did you mean \"{}\"?", fmt::join(nearest, "\" or \""));
}

TensorEdits parse_edits(std::string_view command, const EditOptions& options) {
  TensorEdits edits{.select = options.select, .exclude = options.exclude};
  const auto parse = [command]<class Rule>(std::string_view option,
                                           const std::vector<std::string>& texts,
                                           std::vector<Rule>& rules) {
    for (const std::string& text : texts) {
      rules.push_back(words_of(command, option, [&] { return Rule::parse(text); }));
    }
  };
  parse("--rename", options.renames, edits.renames);
  if (const std::string& prefix = options.strip_prefix; !prefix.empty()) {
    if (prefix.find_first_of("*?") != std::string::npos || !options.select.empty()) {
      throw BadUsage(
          fmt::format("{}: --strip-prefix: found {}, needed is a prefix without * and ?, "
                      "and no --select",
                      command, options.select.empty() ? prefix : "--select"));
    }
    edits.select = {prefix + "*"};
    edits.renames.push_back({prefix + "*", "*"});
  }
  parse("--cast", options.casts, edits.casts);
  parse("--transpose", options.transposes, edits.transposes);
  parse("--resize", options.resizes, edits.resizes);
  parse("--split", options.splits, edits.splits);
  parse("--join", options.joins, edits.joins);
  return edits;
}

bool is_model(const fs::path& path) {
  if (model_format(path).empty()) return false;
  return !is_checkpoint(path.has_parent_path() ? path.parent_path() : fs::path("."));
}

std::unique_ptr<ModelReader> open_model(const fs::path& path) {
  auto reader = std::make_unique<ModelReader>(path);
  const std::span<const std::string> left_out = reader->left_out();
  if (left_out.empty()) return reader;
  constexpr std::size_t kMostShown = 5;
  const std::size_t shown = std::min(left_out.size(), kMostShown);
  print_note(fmt::format(
      "{}: left out {}{}", path.string(), fmt::join(left_out.first(shown), ", "),
      shown == left_out.size() ? "" : fmt::format(", and {} more", left_out.size() - shown)));
  return reader;
}

std::unique_ptr<BoxReader> describe_tensors(const std::string& path) {
  const std::string_view format = python_format(path);
  return format.empty() ? open_tensors(path, {}) : describe_by_python(format, path);
}

std::unique_ptr<BoxReader> open_tensors(const std::string& path, const ReadOptions& options,
                                        const std::vector<std::string>& patterns) {
  if (const std::string_view format = python_format(path); !format.empty()) {
    // Throws for a pattern that matches nothing, before anything is imported.
    if (!patterns.empty()) find_tensors(*describe_by_python(format, path), path, patterns);
    return open_by_python(format, path, options, {.select = patterns, .exclude = {}});
  }
  if (is_model(path)) return open_model(path);
  return std::make_unique<CheckpointReader>(resolve_checkpoint(path), options);
}

std::size_t find_tensor(const BoxReader& reader, const std::string& path, const std::string& name) {
  std::vector<std::string_view> names;
  for (const TensorInfo& info : reader.tensors()) {
    if (info.name == name) return names.size();
    names.push_back(info.name);
  }
  const std::vector<std::string_view> nearest = nearest_names(names, name);
  throw Error(
      ErrorCode::no_such_name,
      fmt::format("{} has no tensor \"{}\" among its {}; {}", path, name, names.size(),
                  nearest.empty()
                      ? fmt::format("`shardwise inspect {} --flat` shows them", path)
                      : fmt::format("did you mean \"{}\"?", fmt::join(nearest, "\" or \""))));
}

std::vector<std::size_t> find_tensors(const BoxReader& reader, const std::string& path,
                                      const std::vector<std::string>& patterns) {
  return shardwise::find_tensors(reader, patterns, [&](const std::string& pattern) {
    find_tensor(reader, path, pattern);  // throws
  });
}

Sharding saved_sharding(const TensorInfo& tensor) {
  return tensor.sharding.value_or(Sharding::replicated(Mesh::line(1), tensor.shape.size()));
}

std::string text_or_file(const std::string& argument) {
  if (argument.empty() || argument[0] != '@') return argument;
  const std::string path = argument.substr(1);
  if (!fs::exists(path)) {
    throw Error(ErrorCode::not_found, fmt::format("rules file {} does not exist", path));
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) throw Error(ErrorCode::io, fmt::format("rules file {} cannot be read", path));
  return text.str();
}

}  // namespace shardwise::tools
