#include "commands/python/export.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands/python/package.h"
#include "parse.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::tools {
namespace {

namespace fs = std::filesystem;

/// Both sides of the first "=" of rules.
nlohmann::json sides_of(const std::vector<std::string>& rules) {
  auto pairs = nlohmann::json::array();
  for (const std::string& rule : rules) {
    const std::size_t at = rule.find('=');
    pairs.push_back({rule.substr(0, at), rule.substr(at + 1)});
  }
  return pairs;
}

/// As the package takes them.
nlohmann::json edits_json(const EditOptions& options) {
  const TensorEdits edits = parse_edits("export", options);
  auto renames = nlohmann::json::array(), casts = nlohmann::json::array();
  for (const auto& rule : edits.renames) renames.push_back({rule.pattern, rule.name});
  for (const auto& rule : edits.casts) casts.push_back({rule.pattern, name(rule.dtype)});
  return {edits.select,
          edits.exclude,
          std::move(renames),
          std::move(casts),
          sides_of(options.transposes),
          sides_of(options.splits),
          sides_of(options.joins),
          sides_of(options.resizes)};
}

/// "progress DONE TOTAL"
void tell_progress(std::string_view line, const ProgressFunction& progress) {
  static constexpr std::string_view kBegin = "progress ";
  if (!progress || !line.starts_with(kBegin)) return;
  Progress said;
  const char* const end = line.data() + line.size();
  const auto [rest, done] = std::from_chars(line.data() + kBegin.size(), end, said.done_bytes);
  if (done != std::errc() || rest == end) return;
  if (std::from_chars(rest + 1, end, said.total_bytes).ec == std::errc()) progress(said);
}

std::size_t bytes_said(const std::string& answer, const std::string& target) {
  const auto said = nlohmann::json::parse(answer, nullptr, false);
  if (said.is_object() && said.contains("logical_bytes") &&
      said["logical_bytes"].is_number_unsigned()) {
    return said["logical_bytes"].get<std::size_t>();
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("export to {}: the Python package has ended with {:?}, needed is how "
                          "many bytes it has written",
                          target, answer));
}

}  // namespace

bool is_python_format(std::string_view format) { return format == "dcp" || format == "orbax"; }

shardwise::ExportStats export_by_python(const ExportOptions& options, const fs::path& source,
                                        const ProgressFunction& progress) {
  if (!options.config_from.empty()) {
    throw BadUsage(
        fmt::format("export to {}: a config needs a folder of safetensors", options.target));
  }
  const nlohmann::json given = {{"target", options.target},
                                {"max_shard", options.max_shard_bytes},
                                {"memory", options.memory_budget_bytes},
                                {"threads", options.threads},
                                {"edits", edits_json(options.edits)}};
  const fs::path from = in_bucket(source) ? source : fs::absolute(source);
  const std::string words = given.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  std::size_t logical_bytes = 0;
  shardwise::ExportStats stats =
      export_folder(options.target, options.format, options.existing, [&](const fs::path& folder) {
        logical_bytes = bytes_said(
            run_package(
                "shardwise._convert.export_command",
                {options.format, from.string(), fs::absolute(folder).string(), words}, "export",
                [&options](const std::string& end) {
                  return fmt::format(
                      "export to {}: the Python package writes this format, and {}; needed "
                      "is a python3 with shardwise and {}, which SHARDWISE_PYTHON may name",
                      options.target, end, options.format == "dcp" ? "torch" : "orbax-checkpoint");
                },
                [&progress](std::string_view line) { tell_progress(line, progress); }),
            options.target);
      });
  stats.logical_bytes = logical_bytes;
  return stats;
}

}  // namespace shardwise::tools
