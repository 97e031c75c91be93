#include "objects.h"

#include <cstddef>

namespace shardwise::tools {

nlohmann::ordered_json objects_of(const CheckpointReader& reader) {
  using Json = nlohmann::ordered_json;
  if (reader.objects_json().empty()) return Json::object();
  Json all = Json::parse(reader.objects_json());
  if (!all.is_object()) return {{"objects", all}};
  if (all.contains("objects") && all["objects"].is_object()) return all["objects"];
  all.erase("metrics");
  for (const char* own : {"paths", "containers", "per_rank", "numpy"}) all.erase(own);
  return all;
}

std::string short_text(const nlohmann::ordered_json& value) {
  constexpr std::size_t kMostShown = 60;
  std::string text = value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  if (text.size() <= kMostShown) return text;
  std::size_t end = kMostShown;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "..";
}

}  // namespace shardwise::tools
