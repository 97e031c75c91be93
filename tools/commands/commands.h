#pragma once

#include <optional>
#include <string>
#include <vector>

namespace shardwise::tools {

// Each command: its options as plain values, and a function that does the work, prints the result
// on stdout and returns the exit status (0 done, 1 the answer is no). Failures are thrown.

/// Exactly one of spec, placements and sharding says how the tensor is cut.
struct ShardsOptions {
  std::string mesh, devices, shape, dtype = "f32", policy = "ceil";
  std::optional<std::string> spec, placements, sharding;
  std::optional<std::string> svg;
  bool short_spec = false;
  bool json = false;
};
int run_shards(const ShardsOptions& options);

/// Two shardings, from and to, or a mesh and a spec for it.
struct ExplainOptions {
  std::optional<std::string> from, to, mesh, spec;
  std::string shape, dtype = "f32", policy = "ceil";
  bool json = false;
};
/// Status 1 where the spec is not valid.
int run_explain(const ExplainOptions& options);

struct LsOptions {
  std::string root;
  bool json = false;
};
int run_ls(const LsOptions& options);

struct InspectOptions {
  std::string path;
  std::vector<std::string> tensors;
  bool json = false;
};
int run_inspect(const InspectOptions& options);

struct VerifyOptions {
  std::string path;
  bool json = false;
};
int run_verify(const VerifyOptions& options);

struct ReshardOptions {
  std::string source, target, mesh, devices, rules, codec = "auto";
  bool json = false;
};
int run_reshard(const ReshardOptions& options);

}  // namespace shardwise::tools
