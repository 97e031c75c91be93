#include <algorithm>
#include <string>
#include <string_view>

#include "shardwise/runtime/spmd/detail/html/json_writer.h"
#include "shardwise/runtime/spmd/detail/plans/found.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/spmd/plans.h"

namespace shardwise {
namespace {

using detail::JsonWriter;

constexpr std::size_t kLargestInJson = 10;

void put_memory(JsonWriter& json, const Executable& executable, std::size_t peak,
                std::size_t capacity) {
  const bool fits = peak <= capacity;
  const FullestStep fullest = fullest_step(executable);
  json.open('{').key("peak_bytes").number(peak);
  json.key("capacity_bytes").token(capacity == 0 ? "null" : std::to_string(capacity));
  json.key("fits").token(capacity == 0 ? "null" : fits ? "true" : "false");
  json.key("advice");
  capacity == 0 || fits ? json.null() : json.text(suggest(executable, capacity));
  json.key("by_kind").open('{');
  for (const auto& [kind, bytes] : bytes_by_kind(fullest, peak)) json.key(kind).number(bytes);
  json.close('}').key("step").text(fullest.name).key("scope").text(fullest.scope);
  json.key("largest").open('[');
  for (std::size_t i = 0; i < std::min(fullest.held.size(), kLargestInJson); ++i) {
    const FullestStep::Held& held = fullest.held[i];
    json.open('{').key("tensor").text(held.label).key("kind").text(held.kind_name());
    json.key("type").text(to_string(held.type)).key("cut").text(held.cut);
    json.key("bytes").number(held.bytes).close('}');
  }
  json.close(']').close('}');
}

void put_traffic(JsonWriter& json, const Executable& executable) {
  json.open('[');
  for (const Traffic& one : traffic(executable)) {
    json.open('{').key("collective").text(name(one.kind)).key("axes").open('[');
    for (const std::string& axis : one.axes) json.text(axis);
    json.close(']').key("scope").text(one.scope).key("is_asked_for").boolean(one.is_asked_for);
    json.key("tensors").number(one.tensors).key("bytes").number(one.bytes);
    json.key("wire_bytes").number(one.wire_bytes).key("largest").text(one.largest);
    json.key("needed_by").text(one.needed_by).close('}');
  }
  json.close(']');
}

void put_rate(JsonWriter& json, double amount, double by) {
  by > 0 ? json.number(amount / by) : json.null();
}

}  // namespace

std::string plan_json(const Executable& executable, const StepReport& report,
                      const PageOptions& options) {
  JsonWriter json;
  json.open('{').key("program").text(options.program);
  json.key("operations").number(executable.graph().nodes.size());
  json.key("mesh").text(executable.mesh().to_string());
  json.key("devices").number(executable.mesh().size());
  const std::string_view attention = planned_attention(executable.graph());
  json.key("attention");
  attention.empty() ? json.null() : json.text(attention);
  json.key("memory");
  put_memory(json, executable, report.memory.peak_bytes, options.capacity_bytes);
  json.key("traffic");
  put_traffic(json, executable);
  json.key("model_flops").number(report.model_flops);
  json.key("device_flops").number(report.device_flops).key("modelled");
  if (options.has_times) {
    json.open('{').key("machine").text(report.machine.name);
    json.key("compute_seconds").number(report.compute_seconds);
    json.key("collective_seconds").number(report.collective_seconds);
    json.key("source").text(report.machine.source).close('}');
  } else {
    json.null();
  }
  const StorageNeeds needs = storage_needs(executable);
  const std::size_t state = needs.parameter_bytes + needs.optimizer_bytes;
  json.key("checkpoint").open('{').key("parameter_bytes").number(needs.parameter_bytes);
  json.key("optimizer_bytes").number(needs.optimizer_bytes).key("bytes").number(state);
  json.key("modelled_save_seconds");
  put_rate(json, static_cast<double>(state), options.save_bytes_per_second);
  json.key("host_bytes_per_device").number(needs.device_bytes).close('}');
  const double seconds = report.compute_seconds + report.collective_seconds;
  json.key("input").open('{').key("bytes").number(needs.input_bytes);
  json.key("modelled_bytes_per_second");
  put_rate(json, static_cast<double>(needs.input_bytes), options.has_times ? seconds : 0);
  json.close('}');
  detail::put_found(json, options);
  return json.close('}').done();
}

}  // namespace shardwise
