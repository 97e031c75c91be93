#include "shardwise/shard/view/explain.h"

#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::tools {
namespace {

/// Two shardings, from and to, or a mesh and a spec for it.
struct ExplainOptions {
  std::optional<std::string> from, to, mesh, spec;
  std::string shape, dtype = "f32", policy = "ceil";
  bool json = false;
};

using Json = nlohmann::ordered_json;

/// "MESH;SPEC" or "MESH;SPEC;POLICY".
Sharding parse_sharding(const char* option, const std::string& text) {
  const std::size_t first = text.find(';');
  if (first == std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} \"{}\" has no \";\"; needed is MESH;SPEC, as in "
                            "\"data=4,model=2;data,-\"",
                            option, text));
  }
  const std::size_t second = text.find(';', first + 1);
  UnevenPolicy policy;
  if (second != std::string::npos) policy = UnevenPolicy::parse(text.substr(second + 1));
  const std::string spec =
      text.substr(first + 1, second == std::string::npos ? std::string::npos : second - first - 1);
  return Sharding(parse_mesh(text.substr(0, first)), PartitionSpec::parse(spec), std::move(policy));
}

Json copies_json(const TransferPlan& plan) {
  Json copies = Json::array();
  for (const Copy& copy : plan.copies()) {
    copies.push_back({{"from", plan.sources()[static_cast<std::size_t>(copy.source)].place},
                      {"to", plan.targets()[static_cast<std::size_t>(copy.target)].place},
                      {"box", box_json(copy.box)}});
  }
  return copies;
}

Json reshard_json(const ReshardExplanation& change, const TransferPlan& plan,
                  std::size_t element_bytes) {
  const auto bytes = [element_bytes](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * element_bytes;
  };
  std::map<DeviceId, std::size_t> sent;
  Json devices = Json::object();
  for (const DeviceChange& device : change.devices) {
    for (const DeviceChange::Fetch& fetch : device.fetches) {
      sent[fetch.from] += bytes(fetch.elements);
    }
  }
  for (const DeviceChange& device : change.devices) {
    Json fetches = Json::array();
    for (const DeviceChange::Fetch& fetch : device.fetches) {
      fetches.push_back({{"from", fetch.from}, {"bytes", bytes(fetch.elements)}});
    }
    devices[std::to_string(device.device)] = {{"bytes_kept", bytes(device.kept)},
                                              {"bytes_received", bytes(device.fetched)},
                                              {"bytes_sent", sent[device.device]},
                                              {"bytes_dropped", bytes(device.dropped)},
                                              {"fetches", std::move(fetches)}};
  }
  return {{"class", name(change.transfer)},
          {"same_placement", change.same_placement},
          {"needs_communication", change.needs_communication()},
          {"bytes_moved", bytes(change.fetched)},
          {"bytes_kept", bytes(change.kept)},
          {"bytes_dropped", bytes(change.dropped)},
          {"num_copies", plan.copies().size()},
          {"copies", copies_json(plan)},
          {"devices", std::move(devices)}};
}

int explain_reshard_command(const ExplainOptions& options, const Shape& shape, DType dtype) {
  const Sharding from = parse_sharding("--from", *options.from);
  const Sharding to = parse_sharding("--to", *options.to);
  check_listed(from.mesh(), "explain");
  check_listed(to.mesh(), "explain");
  num_bytes(shape, size_bytes(dtype));  // throws if the whole tensor cannot be addressed
  const ReshardExplanation change = explain_reshard(from, to, shape);
  if (options.json) {
    print_json(reshard_json(change, TransferPlan::reshard(from, to, shape), size_bytes(dtype)));
  } else {
    print_shown(fmt::format("{} {}\n  from {}\n  to   {}\n{}", name(dtype), to_string(shape),
                            from.to_string(), to.to_string(), change.to_string(size_bytes(dtype))));
  }
  return 0;
}

const char* name(SpecProblem::Kind kind) {
  switch (kind) {
    case SpecProblem::Kind::unknown_axis:
      return "unknown_axis";
    case SpecProblem::Kind::bad_part:
      return "bad_part";
    case SpecProblem::Kind::used_twice:
      return "used_twice";
    case SpecProblem::Kind::rank:
      return "rank";
    case SpecProblem::Kind::uneven:
      return "uneven";
    case SpecProblem::Kind::tile_sizes:
      return "tile_sizes";
  }
  return "unknown";
}

Json advice_json(const SpecAdvice& advice) {
  Json problems = Json::array(), specs = Json::array(), shapes = Json::array();
  for (const SpecProblem& problem : advice.problems) {
    problems.push_back({{"kind", name(problem.kind)},
                        {"dim", problem.dim},
                        {"axes", problem.axes},
                        {"what", problem.what},
                        {"other_axes", problem.other_axes}});
  }
  for (const PartitionSpec& spec : advice.specs) specs.push_back(spec.to_string());
  for (const Shape& shape : advice.shapes) shapes.push_back(dims_json(shape));
  return {{"valid", advice.problems.empty()},
          {"problems", std::move(problems)},
          {"nearest_specs", std::move(specs)},
          {"nearest_shapes", std::move(shapes)}};
}

int explain_spec_command(const ExplainOptions& options, const Shape& shape) {
  const SpecAdvice advice = advise(parse_mesh(*options.mesh), PartitionSpec::parse(*options.spec),
                                   shape, UnevenPolicy::parse(options.policy));
  if (options.json) {
    print_json(advice_json(advice));
  } else {
    print_shown(
        fmt::format("{}", advice.problems.empty() ? "the spec is valid\n" : advice.to_string()));
  }
  return advice.problems.empty() ? 0 : 1;
}

/// Status 1 if the spec is not valid.
int run_explain(ExplainOptions& options) {
  const Shape shape = words_of("explain", "--shape", [&] { return parse_shape(options.shape); });
  if (options.from && options.to && !options.mesh && !options.spec) {
    return words_of("explain", "--from, --to and --shape", [&] {
      return explain_reshard_command(options, shape, parse_dtype(options.dtype));
    });
  }
  if (options.mesh && options.spec && !options.from && !options.to) {
    return words_of("explain", "--mesh, --spec and --shape",
                    [&] { return explain_spec_command(options, shape); });
  }
  throw BadUsage(
      "explain: needed are --from and --to, to compare two shardings, or --mesh and --spec, to "
      "judge one");
}

}  // namespace

void declare_explain(CLI::App& app, Run& run) {
  const auto [explain, options] = add_command(
      app, run, "explain", "Show the moves of a reshard, or why a spec does not fit",
      "shardwise explain --from 'data=4,model=2;data,model' --to 'data=2,model=4;-,model' "
      "--shape 8,16\n  shardwise explain --mesh data=4,model=2 --spec data,modle --shape 8,16",
      run_explain);
  explain.add_option("--from", options.from, "MESH;SPEC or MESH;SPEC;POLICY as it is now");
  explain.add_option("--to", options.to, "The same as it is wanted");
  explain.add_option("--mesh", options.mesh, "Mesh that a spec is judged on");
  explain.add_option("--spec", options.spec, "Spec to judge; exit status 1: not valid");
  explain.add_option("--policy", options.policy, "Policy for --spec")->capture_default_str();
  explain.add_option("--shape", options.shape, "Extents: 10,6; \"\" for a scalar")->required();
  explain.add_option("--dtype", options.dtype, "Element type")->capture_default_str();
}

}  // namespace shardwise::tools
