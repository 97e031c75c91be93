#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::tools {
namespace {

std::vector<TensorInfo> selected(const CheckpointReader& reader, const InspectOptions& options) {
  if (options.tensors.empty()) return {reader.tensors().begin(), reader.tensors().end()};
  std::vector<TensorInfo> tensors;
  for (const std::string& name : options.tensors) tensors.push_back(reader.tensor(name));
  return tensors;
}

std::string spec_text(const TensorInfo& tensor) {
  if (tensor.spec.empty()) return "(scalar)";
  return tensor.policy == "ceil" ? tensor.spec : tensor.spec + " " + tensor.policy;
}

// A reader does not open every one of very many shard files.
bool knows_pieces(const TensorInfo& tensor) {
  return tensor.pieces > 0 || tensor.logical_bytes == 0;
}

nlohmann::ordered_json tensor_json(const TensorInfo& t) {
  nlohmann::ordered_json json = {{"name", t.name},
                                 {"dtype", name(t.dtype)},
                                 {"shape", dims_json(t.shape)},
                                 {"mesh", t.mesh},
                                 {"spec", t.spec},
                                 {"policy", t.policy},
                                 {"pieces", t.pieces},
                                 {"chunks", t.chunks},
                                 {"logical_bytes", t.logical_bytes},
                                 {"stored_bytes", t.stored_bytes}};
  if (!knows_pieces(t)) json["pieces"] = json["chunks"] = json["stored_bytes"] = nullptr;
  return json;
}

std::vector<std::string> tensor_row(const TensorInfo& t) {
  std::vector<std::string> row{t.name, std::string(name(t.dtype)), to_string(t.shape), t.mesh,
                               spec_text(t)};
  const std::string bytes = human_bytes(t.logical_bytes);
  if (!knows_pieces(t)) {
    row.insert(row.end(), {"-", "-", bytes, "-", "-"});
    return row;
  }
  const double ratio = t.stored_bytes == 0 ? 1.0
                                           : static_cast<double>(t.logical_bytes) /
                                                 static_cast<double>(t.stored_bytes);
  row.insert(row.end(), {std::to_string(t.pieces), std::to_string(t.chunks), bytes,
                         human_bytes(t.stored_bytes), fmt::format("{:.3f}", ratio)});
  return row;
}

}  // namespace

int run_inspect(const InspectOptions& options) {
  const CheckpointReader reader(resolve_checkpoint(options.path));
  const auto tensors = selected(reader, options);

  if (options.json) {
    auto list = nlohmann::ordered_json::array();
    for (const TensorInfo& t : tensors) list.push_back(tensor_json(t));
    print_json({{"directory", reader.directory().string()},
                {"step", reader.step()},
                {"user", nlohmann::ordered_json::parse(reader.user_json())},
                {"index", reader.has_index()},
                {"tensors", list}});
    return 0;
  }
  fmt::print("{}: step {}, user {}\n\n", reader.directory().string(), reader.step(),
             reader.user_json());
  Table table(
      {"tensor", "dtype", "shape", "mesh", "spec", "pieces", "chunks", "bytes", "stored", "ratio"});
  for (const TensorInfo& t : tensors) table.add(tensor_row(t));
  table.print();
  if (!reader.has_index()) {
    fmt::print("\nno index.h5: there are too many shard files or pieces for HDF5 to map\n");
  }
  return 0;
}

}  // namespace shardwise::tools
