#include "shardwise/convert/program_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/detail/safetensors/safetensors_dtypes.h"
#include "shardwise/convert/detail/write/new_target.h"
#include "shardwise/convert/model.h"
#include "shardwise/reshape/reshard.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/file.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostTextBytes = std::uint64_t{256} << 20;

fs::path literals_path(const fs::path& path) { return path.string() + ".safetensors"; }

/// The literals of a graph, each once, as tensors named by their hash. A dtype that safetensors
/// lacks is stored as bytes.
class Literals final : public BoxReader {
 public:
  explicit Literals(const Graph& graph) {
    for (const Node* const node : literals(graph)) {
      const auto& literal = std::get<LiteralAttributes>(node->attributes);
      TensorInfo info{.name = fmt::format("{:016x}", literal.hash()),
                      .dtype = node->type.dtype,
                      .shape = node->type.shape};
      if (!detail::safetensors_dtype(info.dtype)) {
        info.dtype = DType::u8;
        info.shape = {static_cast<std::int64_t>(literal.bytes().size())};
      }
      infos_.push_back(std::move(info));
      elements_.push_back(literal);
    }
  }

  std::span<const TensorInfo> tensors() const override { return infos_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const TensorInfo& info = infos_[tensor];
    copy_box(box, size_bytes(info.dtype),
             {elements_[tensor].bytes().data(), Box::whole(info.shape)}, {out.data(), box});
  }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<LiteralAttributes> elements_;
};

std::vector<LiteralAttributes> read_literals(const fs::path& path,
                                             const std::shared_ptr<FileSystem>& file_system) {
  const ModelReader reader(path, file_system);
  std::vector<LiteralAttributes> literals;
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < reader.tensors().size(); ++i) {
    const TensorInfo& info = reader.tensors()[i];
    bytes.resize(num_bytes(info.shape, size_bytes(info.dtype)));
    reader.read(i, Box::whole(info.shape), bytes);
    literals.emplace_back(bytes);
  }
  return literals;
}

std::string read_text(const fs::path& path, FileSystem& file_system) {
  const std::unique_ptr<File> file = file_system.open(path);
  const std::uint64_t size = file->size();
  if (size > kMostTextBytes) {
    throw Error(ErrorCode::corrupt,
                fmt::format("{}: read a program: found {} bytes, needed at most {}", path.string(),
                            size, kMostTextBytes));
  }
  std::string text(size, '\0');
  file->read_at(0, reinterpret_cast<std::byte*>(text.data()), text.size());
  return text;
}

/// True if a line of the text is a node of a literal.
bool has_literals(std::string_view text) {
  for (const std::string_view line : split(text, '\n')) {
    const std::string_view node = trim(line);
    const std::size_t at = node.find('=');
    if (at == std::string_view::npos || !node.starts_with('%')) continue;
    if (trim(node.substr(at + 1)).starts_with(name(Op::literal))) return true;
  }
  return false;
}

/// True if the text is a module of MLIR, in bytecode or as text, and no program.
bool is_mlir(std::string_view text) {
  if (text.starts_with("ML\xefR")) return true;
  for (const std::string_view line : split(text, '\n')) {
    const std::string_view words = trim(line);
    if (words.empty() || words.starts_with('#') || words.starts_with("//")) continue;
    return words.starts_with("module") || words.starts_with("func.func") ||
           words.starts_with("\"builtin.module\"");
  }
  return false;
}

}  // namespace

void save_program(const Graph& graph, const fs::path& path,
                  const std::shared_ptr<FileSystem>& file_system) {
  const std::shared_ptr<FileSystem> files = file_system ? file_system : posix_file_system();
  const Literals literals(graph);
  if (!literals.tensors().empty()) {
    export_model(literals, literals_path(path),
                 {.existing = Existing::replace, .file_system = files});
  }
  const std::string text = dump(graph);
  detail::NewTarget target(*files, path, detail::TargetKind::file, Existing::replace);
  const std::unique_ptr<File> file = target.create(path.filename().string());
  file->write_at(0, reinterpret_cast<const std::byte*>(text.data()), text.size());
  file->sync();
  file->close();
  target.publish();
}

Graph load_program(const fs::path& path, const std::shared_ptr<FileSystem>& file_system) {
  const std::shared_ptr<FileSystem> files = file_system ? file_system : posix_file_system();
  const std::string text = read_text(path, *files);
  if (is_mlir(text)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "{}: read a program: found MLIR, needed the text of a program: of the function, "
            "shardwise.jax.capture(step, x).save(\"step.swp\") makes one in Python",
            path.string()));
  }
  std::vector<LiteralAttributes> literals;
  if (has_literals(text)) literals = read_literals(literals_path(path), files);
  try {
    return parse_graph(text, literals);
  } catch (const Error& error) {
    throw Error(error, fmt::format("{}: {}", path.string(), error.what()));
  }
}

void mark_inputs(Graph& graph, const SpecRules& rules) {
  constexpr std::size_t kMostShown = 10;
  std::vector<std::string_view> labels;
  std::vector<std::optional<PartitionSpec>> specs;
  for (const GraphInput& input : graph.inputs) {
    labels.push_back(input.label);
    specs.push_back(rules.find(input.label, graph.node(input.node).type.shape.size()));
  }
  if (const auto unmatched = rules.unmatched(labels); !unmatched.empty()) {
    throw Error(
        ErrorCode::no_such_name,
        fmt::format("found no input that \"{}\" matches, needed one: the program has {}",
                    unmatched.front(),
                    fmt::join(std::span(labels).first(std::min(labels.size(), kMostShown)), ", ")));
  }
  mark_inputs(graph, specs);
}

}  // namespace shardwise
