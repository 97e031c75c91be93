#include "foreign_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "shardwise/convert/model.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLengthBytes = 8;  // of a safetensors header

/// Sorted names in a folder, without hidden ones but .metadata; none if it cannot be listed.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.') || name == ".metadata") names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

/// As a shell takes it for one word.
std::string word(const std::string& text) {
  const bool is_plain = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("/._-+,:@%=").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (is_plain) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  return quoted + "'";
}

std::string with_import(const std::string& what, const fs::path& path) {
  return fmt::format("{}: `shardwise import {} ROOT --step 0` makes a checkpoint of it", what,
                     word(path.string()));
}

std::string with_python(const std::string& what, const std::string& call) {
  return fmt::format("{}: `python3 -c 'import shardwise; {}'` makes a checkpoint of it", what,
                     call);
}

std::string_view python_format_of(const std::vector<std::string>& names) {
  const auto holds = [&names](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (holds(".metadata")) return "dcp";
  if (holds("_CHECKPOINT_METADATA") || holds("_METADATA")) return "orbax";
  return {};
}

/// What a folder's own files say it is: one checkpoint of another format.
std::string saved_by_others(const fs::path& folder, const std::vector<std::string>& names) {
  const std::string_view format = python_format_of(names);
  if (format == "dcp") return with_import("a distributed checkpoint of PyTorch (DCP)", folder);
  if (format == "orbax") return with_import("a checkpoint of Orbax", folder);
  return {};
}

std::string foreign_folder(const fs::path& folder) {
  const std::vector<std::string> names = names_in(folder);
  if (std::string what = saved_by_others(folder, names); !what.empty()) return what;
  const auto any = [&names](auto&& fits) { return std::ranges::any_of(names, fits); };
  const bool is_model = any([](const std::string& name) { return name == "config.json"; });
  if (any([](const std::string& name) { return name.ends_with(".safetensors"); })) {
    return with_import(is_model ? "a model of Hugging Face in safetensors" : "safetensors", folder);
  }
  if (any([](const std::string& name) { return name.starts_with("pytorch_model"); })) {
    return "a model in PyTorch's own files: from_pretrained and save_pretrained of transformers "
           "make safetensors of it, which `shardwise import` takes";
  }
  for (const std::string& name : names) {
    const fs::path inside = folder / name;
    const std::string what = saved_by_others(inside, names_in(inside));
    if (!what.empty()) return fmt::format("several, such as {}, {}", inside.string(), what);
  }
  return {};
}

std::string foreign_file(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (is_checkpoint(folder)) return fmt::format("a file of the checkpoint {}", folder.string());
  if (path.string().ends_with(".safetensors.index.json")) {
    return with_import("an index of safetensors files", path);
  }
  std::array<char, 16> buffer{};
  std::ifstream file(path, std::ios::binary);
  file.read(buffer.data(), buffer.size());
  const std::string_view first(buffer.data(), static_cast<std::size_t>(file.gcount()));
  if (path.extension() == ".safetensors" ||
      (first.size() > kLengthBytes && first[kLengthBytes] == '{' && first[kLengthBytes - 1] == 0)) {
    return with_import("safetensors", path);
  }
  const std::string name = path.string();
  if (first.starts_with("PK\3\4") && (path.extension() == ".npz" || !model_format(path).empty())) {
    return with_import("an archive of numpy's", path);
  }
  if (first.starts_with("PK\3\4")) {
    return with_python(
        "a zip archive, such as PyTorch's",
        fmt::format(
            "import shardwise.torch, torch; shardwise.torch.save(\"NAME\", torch.load(\"{}\", "
            "map_location=\"cpu\", weights_only=True))",
            name));
  }
  if (first.starts_with("\x93NUMPY")) {
    return with_python(
        "an array of numpy's",
        fmt::format("import numpy; shardwise.save(\"NAME\", {{\"w\": numpy.load(\"{}\")}})", name));
  }
  if (first.starts_with("\x89HDF")) return with_import("HDF5", path);
  if (first.starts_with("GGUF")) return "GGUF, which nothing here reads";
  return {};
}

}  // namespace

std::string foreign_format(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? foreign_folder(path) : foreign_file(path);
}

std::string_view python_format(const fs::path& folder) {
  return is_checkpoint(folder) ? std::string_view() : python_format_of(names_in(folder));
}

fs::path root_inside(const fs::path& folder) {
  for (const std::string& name : names_in(folder)) {
    const std::vector<std::string> below = names_in(folder / name);
    const auto holds_manifest = [&](const std::string& step) {
      return is_step(step) && is_checkpoint(folder / name / step);
    };
    if (std::ranges::any_of(below, holds_manifest)) return folder / name;
  }
  return {};
}

std::vector<fs::path> named_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const std::string& name : names_in(folder)) {
    if (!is_step(name) && is_checkpoint(folder / name)) found.push_back(folder / name);
  }
  return found;
}

bool is_step(const fs::path& path) { return path.filename().string().starts_with("step-"); }

bool is_checkpoint(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / "manifest.json", ignored);
}

}  // namespace shardwise::tools
