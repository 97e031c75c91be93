#include "shardwise/checkpoint/detail/format/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string_view>

#include "shardwise/checkpoint/detail/format/json_document.h"
#include "shardwise/checkpoint/detail/format/json_text.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

constexpr const char* kKey = "metrics";

// As the Python package encodes floats: JSON has no NaN.
std::string number_text(double value) {
  if (std::isfinite(value)) return fmt::format("{}", value);
  return fmt::format(R"({{"$float":"{}"}})", std::isnan(value) ? "nan"
                                             : value > 0       ? "inf"
                                                               : "-inf");
}

std::optional<double> number_of(const JsonValue& value) {
  if (value.IsNumber()) return value.GetDouble();
  if (!value.IsObject() || value.MemberCount() != 1) return std::nullopt;
  const auto& member = *value.MemberBegin();
  if (text_of(member.name) != "$float" || !member.value.IsString()) return std::nullopt;
  const std::string_view text = text_of(member.value);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  return std::nullopt;
}

}  // namespace

std::string with_metrics(const std::string& objects_json,
                         const std::map<std::string, double>& metrics) {
  if (metrics.empty()) return objects_json;
  std::string list;
  for (const auto& [name, value] : metrics) {
    if (!is_utf8(name)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("save: the metric {} is not UTF-8", shown(name)));
    }
    if (!list.empty()) list += ',';
    append_json(list, name);
    list += ':' + number_text(value);
  }
  if (objects_json.empty()) return fmt::format(R"({{"metrics":{{{}}}}})", list);
  const JsonDocument document(objects_json, kMaxNesting);
  const JsonValue& root = document.root();
  if (!root.IsObject() || root.HasMember(kKey)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: objects_json is a JSON {}{}, needed with metrics is an object "
                            "without \"metrics\"",
                            kind_name(root), root.IsObject() ? " with \"metrics\"" : ""));
  }
  const std::string_view rest = std::string_view(objects_json).substr(objects_json.find('{') + 1);
  return fmt::format(R"({{"metrics":{{{}}}{}{})", list, root.MemberCount() == 0 ? "" : ",", rest);
}

std::map<std::string, double> metrics_of(const std::string& objects_json) {
  std::map<std::string, double> metrics;
  if (objects_json.empty()) return metrics;
  const JsonDocument document(objects_json, kMaxNesting);
  const JsonValue& root = document.root();
  if (!root.IsObject()) return metrics;
  const auto found = root.FindMember(kKey);
  if (found == root.MemberEnd() || !found->value.IsObject()) return metrics;
  for (const auto& member : found->value.GetObject()) {
    if (const auto value = number_of(member.value)) {
      metrics.emplace(text_of(member.name), *value);
    }
  }
  return metrics;
}

}  // namespace shardwise::detail
