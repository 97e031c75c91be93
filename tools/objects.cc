#include "objects.h"

#include <cstddef>

namespace shardwise::tools {

nlohmann::ordered_json objects_of(const CheckpointReader& reader) {
  using Json = nlohmann::ordered_json;
  if (reader.objects_json().empty()) return Json::object();
  const Json document = Json::parse(reader.objects_json());
  const bool has_objects = document.is_object() && document.contains("objects");
  return has_objects && document["objects"].is_object() ? document["objects"] : Json::object();
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
