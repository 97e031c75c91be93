#include "shardwise/checkpoint/detail/format/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "shardwise/checkpoint/detail/format/json_document.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

/// Appends JSON to a text; each tensor and file on a line of its own. What there may be thousands
/// of is put together without format strings, which took most of the time.
class Printer {
 public:
  template <class... Arguments>
  void put(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
  }

  /// JSON as it is, and integers.
  template <class... Parts>
  void add(const Parts&... parts) {
    (append(parts), ...);
  }

  void quoted(std::string_view text) { append_json(text_, text); }

  template <class Integers>
  void integers(const Integers& values) {
    const char* separator = "[";
    for (const std::int64_t value : values) {
      add(separator, value);
      separator = ",";
    }
    add(values.empty() ? "[]" : "]");
  }

  void writers(const WriterMap& writers) {
    const std::int64_t count = writers.num_writers();
    add(R"({"count":)", count);
    if (count > 1 && writers == WriterMap::even(writers.num_devices(), count)) {
      add(R"(,"devices":)", writers.num_devices());
    } else if (count > 1) {
      add(R"(,"starts":)");
      integers(writers.starts());
    }
    add("}");
  }

  void tensor(const TensorEntry& tensor, std::int64_t mesh) {
    add(R"({"name":)");
    quoted(tensor.name);
    add(R"(,"dtype":")", shardwise::name(tensor.dtype), R"(","shape":)");
    integers(tensor.shape);
    if (!tensor.sharding) return pieces(tensor.listed);
    texts_.set(*tensor.sharding);
    add(R"(,"mesh":)", mesh, R"(,"spec":)");
    quoted(texts_.spec);
    if (texts_.policy != kUsualPolicy) {
      add(R"(,"policy":)");
      quoted(texts_.policy);
    }
    add("}");
  }

  void pieces(std::span<const WriterPiece> pieces) {
    add(R"(,"pieces":[)");
    const char* separator = "\n";
    for (const auto& [writer, box] : pieces) {
      add(separator, R"({"writer":)", writer, R"(,"box":[)");
      for (std::size_t d = 0; d < box.rank(); ++d) {
        add(d == 0 ? "[" : ",[", box.begin(d), ",", box.end(d), "]");
      }
      add("]}");
      separator = ",\n";
    }
    add("]}");
  }

  template <class Entries, class Print>
  void list(const Entries& entries, Print print) {
    const char* separator = "[\n";
    for (const auto& entry : entries) {
      text_ += separator;
      print(entry);
      separator = ",\n";
    }
    text_ += entries.empty() ? "[]" : "]";
  }

  void reserve(std::size_t bytes) { text_.reserve(bytes); }
  std::string take() { return std::move(text_); }
  const std::string& text() const { return text_; }

 private:
  void append(std::string_view text) { text_ += text; }
  void append(std::int64_t value) {
    const fmt::format_int digits(value);
    text_.append(digits.data(), digits.size());
  }

  std::string text_;
  ShardingTexts texts_;
};

/// The distinct texts, ordered by first use, and the number of each tensor's text.
struct MeshTexts {
  explicit MeshTexts(std::span<const TensorEntry> tensors) {
    std::unordered_map<std::string, std::int64_t> numbers;
    const Mesh* before = nullptr;
    std::int64_t number = -1;  // of the mesh before
    for (const TensorEntry& tensor : tensors) {
      if (!tensor.sharding) {
        of_tensor.push_back(-1);
        continue;
      }
      const Mesh& mesh = tensor.sharding->mesh();
      if (before == nullptr || !(*before == mesh)) {
        const auto [at, is_new] = numbers.emplace(mesh.to_string(), std::ssize(texts));
        if (is_new) texts.push_back(at->first);
        number = at->second;
      }
      before = &mesh;
      of_tensor.push_back(number);
    }
  }

  std::vector<std::string> texts;
  std::vector<std::int64_t> of_tensor;
};

}  // namespace

std::vector<TensorEntry> without_pieces(std::span<const TensorEntry> tensors) {
  std::vector<TensorEntry> copies;
  copies.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) {
    copies.push_back({.name = tensor.name,
                      .dtype = tensor.dtype,
                      .shape = tensor.shape,
                      .pieces = {},
                      .sharding = tensor.sharding,
                      .listed = tensor.listed});
  }
  return copies;
}

std::string name_problem(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxNameBytes) {
    return fmt::format("has {} bytes, needed is at most {}", name.size(), kMaxNameBytes);
  }
  if (name.find('\0') != std::string_view::npos) return "has a NUL character";
  return is_utf8(name) ? "" : "is not UTF-8";
}

std::string user_json_problem(std::string_view text) {
  try {
    const JsonDocument document(text, kMaxNesting - 1);  // one level down in the manifest
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

bool ShardingTexts::set(const Sharding& sharding) {
  const bool is_first = !last_;
  const bool other_mesh = is_first || !(last_->mesh() == sharding.mesh());
  const bool other_spec = is_first || !(last_->spec() == sharding.spec());
  const bool other_policy = is_first || !(last_->policy() == sharding.policy());
  if (!other_mesh && !other_spec && !other_policy) return false;
  if (other_mesh) mesh = sharding.mesh().to_string();
  if (other_spec) spec = sharding.spec().to_string();
  if (other_policy) policy = sharding.policy().to_string();
  last_ = sharding;
  return true;
}

std::string LinkedFile::name() const {
  return fmt::format("{}{}.h5", kLinkedPrefix, to_hex(description_hash));
}

std::string shard_file_name(std::int64_t writer, std::int64_t writers) {
  return fmt::format("shards-{:05}-of-{:05}.h5", writer, writers);
}

PieceDataset PieceDatasets::next(std::size_t tensor) {
  if (tensor != last_) {
    last_ = tensor;
    next_ = {.tensor = next_.tensor + 1, .piece = 0};
  }
  const PieceDataset dataset = next_;
  ++next_.piece;
  return dataset;
}

void add_pieces_of(std::int64_t writer, const WriterMap& writers, const TensorEntry& tensor,
                   std::vector<Box>& boxes) {
  if (tensor.sharding) {
    PieceRule(writers, *tensor.sharding, tensor.shape, size_bytes(tensor.dtype), tensor.name)
        .add_pieces_of(writer, boxes);
    return;
  }
  auto at = std::lower_bound(
      tensor.listed.begin(), tensor.listed.end(), writer,
      [](const WriterPiece& piece, std::int64_t number) { return piece.writer < number; });
  for (; at != tensor.listed.end() && at->writer == writer; ++at) boxes.push_back(at->box);
}

void add_pieces_in(const Box& box, const WriterMap& writers, const TensorEntry& tensor,
                   std::vector<WriterPiece>& pieces) {
  if (tensor.sharding) {
    PieceRule(writers, *tensor.sharding, tensor.shape, size_bytes(tensor.dtype), tensor.name)
        .add_pieces_in(box, pieces);
    return;
  }
  std::ranges::copy_if(tensor.listed, std::back_inserter(pieces), [&](const WriterPiece& piece) {
    return !intersect(piece.box, box).empty();
  });
}

void place_pieces(Manifest& manifest) {
  std::vector<Box> boxes;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    PieceDatasets datasets;
    for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
      TensorEntry& tensor = manifest.tensors[t];
      boxes.clear();
      add_pieces_of(manifest.files[f].writer, manifest.writers, tensor, boxes);
      for (const Box& box : boxes) {
        tensor.pieces.push_back({.box = box,
                                 .file = static_cast<std::int64_t>(f),
                                 .dataset = datasets.next(t),
                                 .chunk = box.shape()});
      }
    }
  }
}

std::string print_manifest(const Manifest& manifest) {
  Printer printer;
  printer.reserve(128 * manifest.tensors.size() + manifest.user_json.size() +
                  manifest.objects_json.size() + 72 * (manifest.files.size() + 8));
  printer.put("{{\"format\":\"{}\",\"version\":{},", kFormatName, kFormatVersion);
  if (manifest.minor != 0) printer.put("\"minor\":{},", manifest.minor);
  printer.put("\"id\":\"{}\",", manifest.id);
  if (manifest.step != kNoStep) printer.put("\"step\":{},", manifest.step);
  printer.add("\n\"user\":", manifest.user_json);
  if (!manifest.objects_json.empty()) printer.add(",\n\"objects\":", manifest.objects_json);
  printer.add(",\n\"writers\":");
  printer.writers(manifest.writers);
  const MeshTexts meshes(manifest.tensors);
  printer.add(",\n\"meshes\":");
  printer.list(meshes.texts, [&](std::string_view text) { printer.quoted(text); });
  printer.add(",\n\"tensors\":");
  printer.list(manifest.tensors, [&](const TensorEntry& tensor) {
    printer.tensor(tensor,
                   meshes.of_tensor[static_cast<std::size_t>(&tensor - manifest.tensors.data())]);
  });
  // Ordered by writer; null for one that has written nothing.
  std::vector<const FileEntry*> files(static_cast<std::size_t>(manifest.writers.num_writers()));
  for (const FileEntry& file : manifest.files) files[static_cast<std::size_t>(file.writer)] = &file;
  printer.add(",\n\"files\":");
  printer.list(files, [&](const FileEntry* file) {
    if (file == nullptr) return printer.add("null");
    printer.add("[", static_cast<std::int64_t>(file->bytes), ",",
                static_cast<std::int64_t>(file->data_end), ",\"", to_hex(file->description_hash),
                "\"]");
  });
  if (manifest.has_index()) {
    printer.put(",\n\"index\":{{\"name\":\"{}\",\"bytes\":{},\"xxh3\":\"{}\"}}", kIndexName,
                manifest.index_bytes, to_hex(manifest.index_hash));
  }
  printer.put(",\n\"checksum\":\"{}\"}}\n", to_hex(hash128(printer.text())));
  return printer.take();
}

}  // namespace shardwise::detail
