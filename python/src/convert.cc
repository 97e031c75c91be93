#include <filesystem>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "gil.h"
#include "parts.h"
#include "python_source.h"
#include "python_tensors.h"
#include "shardwise/convert/model.h"
#include "shardwise/jobs/save_together.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/storage/known_format.h"
#include "work.h"

namespace shardwise::python {
namespace {

namespace fs = std::filesystem;

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

/// Returns the path, and the names that were left out.
std::pair<std::string, std::vector<std::string>> import_model(
    const std::string& source, const std::string& target, const std::string& existing,
    const std::string& codec, std::size_t memory, nb::object progress,
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
    const std::string path =
        save_together(GroupRendezvous({}, "import " + source), target, std::move(sources),
                      {.existing = if_existing}, options, {.user_json = weights->user_json()})
            .directory.string();
    const auto left_out = weights->left_out();
    return std::pair(path, std::vector<std::string>(left_out.begin(), left_out.end()));
  });
}

std::vector<std::string> names_of(const ExportStats& stats) {
  std::vector<std::string> files;
  for (const fs::path& file : stats.files) files.push_back(file.string());
  return files;
}

/// Options of an export other than source, target and edits.
using ExportWords = std::tuple<std::string, std::string, std::string>;  // format, metadata, config

std::vector<std::string> write_model(const std::string& source, const std::string& target,
                                     const ExportWords& words, std::size_t max_shard,
                                     const std::string& existing, std::size_t memory,
                                     nb::object progress, const EditArgument& edits,
                                     const nb::object& reader) {
  const std::shared_ptr<const BoxReader> foreign = reader.is_none() ? nullptr : tensors_of(reader);
  Work work(std::move(progress));
  const auto& [format, metadata, config_from] = words;
  ExportOptions options{.format = format,
                        .max_shard_bytes = max_shard,
                        .metadata = metadata,
                        .config_from = config_from,
                        .edits = edits_of(edits),
                        .existing = parse_existing(existing),
                        .memory_budget_bytes = memory};
  options.progress = work.progress();
  const ExportStats stats = work.run([&] {
    return foreign ? export_model(*foreign, fs::path(target), options)
                   : export_model(fs::path(source), fs::path(target), options);
  });
  return names_of(stats);
}

/// `write` is called with the folder that is to be filled.
std::vector<std::string> write_folder(const std::string& target, const std::string& format,
                                      const std::string& existing, nb::object write) {
  const std::shared_ptr<nb::object> function = held(std::move(write));
  const Existing if_existing = parse_existing(existing);
  const GilRelease released;
  return names_of(export_folder(target, format, if_existing, [&](const fs::path& folder) {
    with_gil([&] {
      try {
        (*function)(folder.string());
      } catch (const nb::python_error& error) {
        throw PythonRaised(error);
      }
    });
  }));
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
  module.def("import_model", &import_model, nb::arg("source"), nb::arg("target"),
             nb::arg("existing"), nb::arg("codec"), nb::arg("memory"),
             nb::arg("progress") = nb::none(), nb::arg("edits") = EditArgument());
  module.def("export_model", &write_model, nb::arg("source"), nb::arg("target"), nb::arg("words"),
             nb::arg("max_shard"), nb::arg("existing"), nb::arg("memory"),
             nb::arg("progress") = nb::none(), nb::arg("edits") = EditArgument(),
             nb::arg("reader") = nb::none());
  module.def("export_folder", &write_folder, nb::arg("target"), nb::arg("format"),
             nb::arg("existing"), nb::arg("write"));
  module.def(
      "known_format",
      [](const std::string& path) {
        const KnownFormat known = known_format(path);
        return std::tuple(std::string(known.name), to_string(known), known.steps);
      },
      nb::arg("path"));
  module.def(
      "model_format", [](const std::string& path) { return std::string(model_format(path)); },
      nb::arg("path"));
}

}  // namespace shardwise::python
