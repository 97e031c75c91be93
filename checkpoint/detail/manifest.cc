#include "shardwise/checkpoint/detail/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "shardwise/checkpoint/detail/json_document.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

std::string_view text_of(Layout layout) {
  return layout == Layout::contiguous ? "contiguous" : "chunked";
}

std::string_view text_of(StoredCodec codec) { return codec == StoredCodec::none ? "none" : "zstd"; }

/// Appends JSON to a text; each value on the line of its tensor, piece or file. What there may be
/// millions of is put together without format strings, which took most of the time.
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

  void quoted(std::string_view text) {
    const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
      return c >= ' ' && c <= '~' && c != '"' && c != '\\';
    });
    if (plain) return add("\"", text, "\"");
    // Names are checked to be UTF-8; mesh, spec and policy are only descriptions, so they may lose
    // a byte.
    text_ += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  void dims(const Dims& dims) {
    const char* separator = "[";
    for (const std::int64_t value : dims) {
      add(separator, value);
      separator = ",";
    }
    add(dims.empty() ? "[]" : "]");
  }

  void box(const Box& box) {
    const char* separator = "[[";
    for (std::size_t d = 0; d < box.rank(); ++d) {
      add(separator, box.begin(d), ",", box.end(d), "]");
      separator = ",[";
    }
    add(box.rank() == 0 ? "[]" : "]");
  }

  void piece(const PieceEntry& piece) {
    add(R"({"box":)");
    box(piece.box);
    add(R"(,"file":)", piece.file, R"(,"dataset":)");
    quoted(piece.dataset);
    add(R"(,"layout":")", text_of(piece.layout), R"(","chunk":)");
    dims(piece.chunk);
    add(R"(,"codec":")", text_of(piece.codec), R"(","first_chunk":)", piece.first_chunk, "}");
  }

  void tensor(const TensorEntry& tensor) {
    add(R"({"name":)");
    quoted(tensor.name);
    add(R"(,"dtype":")", shardwise::name(tensor.dtype), R"(","shape":)");
    dims(tensor.shape);
    add(R"(,"mesh":)");
    quoted(tensor.mesh);
    add(R"(,"spec":)");
    quoted(tensor.spec);
    if (tensor.policy != kUsualPolicy) {
      add(R"(,"policy":)");
      quoted(tensor.policy);
    }
    add(R"(,"index":)");
    quoted(tensor.index);
    add(R"(,"pieces":)");
    list(tensor.pieces, [this](const PieceEntry& entry) { piece(entry); });
    add("}");
  }

  void file(const FileEntry& file, bool has_decoded_hashes) {
    add(R"({"name":)");
    quoted(file.name);
    put(R"(,"bytes":{},"data":[{},{}],)", file.bytes, file.data_begin, file.data_end);
    put(R"("table":{{"address":{},"chunks":{},"xxh3":"{}"}},)", file.table_address, file.chunks,
        to_hex(file.table_hash));
    if (has_decoded_hashes) {
      put(R"("decoded":{{"address":{},"xxh3":"{}"}},)", file.decoded_address,
          to_hex(file.decoded_hash));
    }
    put(R"("structure":"{}"}})", to_hex(file.structure_hash));
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
};

}  // namespace

std::string name_problem(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxNameBytes) {
    return fmt::format("has {} bytes, at most {} are possible", name.size(), kMaxNameBytes);
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

std::string print_tensors(std::span<const TensorEntry> tensors) {
  Printer printer;
  printer.reserve(256 * tensors.size());
  printer.list(tensors, [&](const TensorEntry& tensor) { printer.tensor(tensor); });
  return printer.take();
}

std::string print_manifest(const Manifest& manifest) {
  return print_manifest(manifest, print_tensors(manifest.tensors));
}

std::string print_manifest(const Manifest& manifest, std::string_view tensors) {
  Printer printer;
  printer.reserve(tensors.size() + manifest.user_json.size() + 512 * (manifest.files.size() + 1));
  printer.put("{{\"format\":\"{}\",\"version\":{},", kFormatName, kFormatVersion);
  if (manifest.minor != 0) printer.put("\"minor\":{},", manifest.minor);
  printer.put("\"id\":\"{}\",\"step\":{},\n", manifest.id, manifest.step);
  printer.put("\"user\":{},\n\"tensors\":", manifest.user_json);
  printer.add(tensors);
  printer.put(",\n\"files\":");
  printer.list(manifest.files,
               [&](const FileEntry& file) { printer.file(file, manifest.has_decoded_hashes()); });
  printer.put(",\n\"index\":{{\"name\":\"{}\",\"bytes\":{},\"xxh3\":\"{}\"}}", kIndexName,
              manifest.index_bytes, to_hex(manifest.index_hash));
  const Hash128 checksum =
      hash128(reinterpret_cast<const std::byte*>(printer.text().data()), printer.text().size());
  printer.put(",\n\"checksum\":\"{}\"}}\n", to_hex(checksum));
  return printer.take();
}

Shape chunk_grid(const PieceEntry& piece) {
  Shape grid = piece.chunk;
  for (std::size_t d = 0; d < grid.size(); ++d) {
    grid[d] = (piece.box.extent(d) - 1) / piece.chunk[d] + 1;
  }
  return grid;
}

std::int64_t num_chunks(const PieceEntry& piece) { return num_elements(chunk_grid(piece)); }

Box chunk_box(const PieceEntry& piece, std::int64_t chunk) {
  Index begin = piece.box.begin(), end = piece.box.begin();
  for (std::size_t d = piece.chunk.size(); d-- > 0;) {
    const std::int64_t count = (piece.box.extent(d) - 1) / piece.chunk[d] + 1;
    begin[d] += chunk % count * piece.chunk[d];
    // Not begin + chunk: that may lie beyond 2^63 - 1 at the tensor's edge.
    end[d] = begin[d] + std::min(piece.chunk[d], piece.box.end(d) - begin[d]);
    chunk /= count;
  }
  return Box(begin, end);
}

std::size_t chunk_bytes(const PieceEntry& piece, DType dtype) {
  return num_bytes(piece.chunk, size_bytes(dtype));
}

}  // namespace shardwise::detail
