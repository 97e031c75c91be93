#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"
#include "parts.h"
#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/reshard.h"
#include "shardwise/convert/model.h"
#include "work.h"

namespace shardwise::python {
namespace {

std::string reshard(const std::string& source, const std::string& root, const std::string& mesh,
                    const std::string& rules, const std::string& codec, std::size_t memory,
                    std::int64_t files, int threads, const std::string& existing,
                    nb::object progress, const EditArgument& edits) {
  Work work(std::move(progress));
  ReshardOptions options;
  options.save.codec = parse_codec(codec);
  options.save.memory_budget_bytes = memory;
  options.save.writers = files;
  options.save.existing = parse_existing(existing);
  options.save.progress = work.progress();
  options.threads = threads;
  options.edits = edits_of(edits);
  const Mesh parsed = Mesh::parse(mesh);
  const SpecRules parsed_rules = SpecRules::parse(rules);
  const SaveStats stats =
      work.run([&] { return reshard_checkpoint(source, root, parsed, parsed_rules, options); });
  return stats.directory.string();
}

std::string import_safetensors(const std::string& source, const std::string& target,
                               const std::string& existing, const std::string& codec,
                               std::size_t memory, nb::object progress,
                               const EditArgument& edit_argument) {
  const TensorEdits edits = edits_of(edit_argument);
  Work work(std::move(progress));
  const EncodeOptions options{
      .codec = parse_codec(codec), .memory_budget_bytes = memory, .progress = work.progress()};
  const Existing if_existing = parse_existing(existing);
  return work.run([&] {
    const auto weights = std::make_shared<const ModelReader>(source);
    std::shared_ptr<const BoxReader> reader = weights;
    if (!edits.empty()) {
      reader = std::make_shared<const EditedTensors>(weights, edits, "import " + source);
    }
    std::vector<TensorSource> sources;
    for (std::size_t t = 0; t < reader->tensors().size(); ++t) {
      sources.push_back({.name = reader->tensors()[t].name, .reader = reader, .tensor = t});
    }
    return save_checkpoint(target, std::move(sources), if_existing, options,
                           {.user_json = weights->user_json()})
        .directory.string();
  });
}

std::vector<std::string> write_safetensors(const std::string& source, const std::string& target,
                                           std::size_t max_shard, const std::string& metadata,
                                           const std::string& existing, std::size_t memory,
                                           nb::object progress, const EditArgument& edits) {
  Work work(std::move(progress));
  ExportOptions options{.max_shard_bytes = max_shard,
                        .metadata = metadata,
                        .edits = edits_of(edits),
                        .existing = parse_existing(existing),
                        .memory_budget_bytes = memory};
  options.progress = work.progress();
  const ExportStats stats = work.run([&] {
    return export_model(std::filesystem::path(source), std::filesystem::path(target),
                              options);
  });
  std::vector<std::string> files;
  for (const std::filesystem::path& file : stats.files) files.push_back(file.string());
  return files;
}

}  // namespace

void bind_convert(nb::module_& module) {
  nb::class_<SpecRules>(module, "SpecRules")
      .def_static(
          "parse", [](const std::string& text) { return SpecRules::parse(text); }, nb::arg("text"))
      .def(
          "find",
          [](const SpecRules& self, const std::string& name, std::size_t rank) {
            return self.find(name, rank);
          },
          nb::arg("name"), nb::arg("rank"))
      .def(
          "unmatched",
          [](const SpecRules& self, const std::vector<std::string>& names) {
            return self.unmatched(std::vector<std::string_view>(names.begin(), names.end()));
          },
          nb::arg("names"));
  module.def("reshard", &reshard, nb::arg("source"), nb::arg("root"), nb::arg("mesh"),
             nb::arg("rules") = "", nb::arg("codec") = "zstd",
             nb::arg("memory") = std::size_t{1} << 30, nb::arg("files") = 1, nb::arg("threads") = 0,
             nb::arg("existing") = "fail", nb::arg("progress") = nb::none(),
             nb::arg("edits") = EditArgument());
  module.def("import_safetensors", &import_safetensors, nb::arg("source"), nb::arg("target"),
             nb::arg("existing"), nb::arg("codec"), nb::arg("memory"),
             nb::arg("progress") = nb::none(), nb::arg("edits") = EditArgument());
  module.def("export_safetensors", &write_safetensors, nb::arg("source"), nb::arg("target"),
             nb::arg("max_shard"), nb::arg("metadata"), nb::arg("existing"), nb::arg("memory"),
             nb::arg("progress") = nb::none(), nb::arg("edits") = EditArgument());
}

}  // namespace shardwise::python
