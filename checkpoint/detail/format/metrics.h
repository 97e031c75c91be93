#pragma once

#include <map>
#include <string>

// Metrics of a step: numbers by name, in the member "metrics" of the manifest's `objects`.
namespace shardwise::detail {

/// The objects, which are JSON, with the metrics in them; unchanged without metrics. Throws
/// invalid_argument if the objects are something else than an object without metrics.
std::string with_metrics(const std::string& objects_json,
                         const std::map<std::string, double>& metrics);

/// The metrics that with_metrics() has put there; empty if it has put none there. Requires JSON.
std::map<std::string, double> metrics_of(const std::string& objects_json);

}  // namespace shardwise::detail
