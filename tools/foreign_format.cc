#include "foreign_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <system_error>
#include <vector>

#include "places.h"
#include "shardwise/storage/known_format.h"

namespace shardwise::tools {
namespace fs = std::filesystem;
namespace {

/// Sorted names in a folder, without hidden ones but .metadata; none if it cannot be listed.
std::vector<std::string> shown_names(const fs::path& folder) {
  std::vector<std::string> names = names_in(folder);
  std::erase_if(
      names, [](const std::string& name) { return name.starts_with('.') && name != ".metadata"; });
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

/// A text of Python's in a word of a shell that is in single quotes.
std::string in_python(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\'' ? std::string("'\"'\"'") : std::string(1, c);
  }
  return quoted + '"';
}

/// One of a known format that is no checkpoint of ours.
std::string with_advice(const KnownFormat& known, const fs::path& path) {
  const std::string what(known.what);
  std::error_code ignored;
  if (known.name == "torch" && fs::is_directory(path, ignored)) {
    return what +
           ": from_pretrained and save_pretrained of transformers make safetensors of it, which "
           "`shardwise import` takes";
  }
  if (known.name == "torch" || known.name == "zip") {
    return with_python(
        what,
        fmt::format("import shardwise.torch, torch; shardwise.torch.save(\"NAME\", torch.load({}, "
                    "map_location=\"cpu\", weights_only=True))",
                    in_python(path.string())));
  }
  if (known.name == "npy") {
    return with_python(
        what, fmt::format("import numpy; shardwise.save(\"NAME\", {{\"w\": numpy.load({})}})",
                          in_python(path.string())));
  }
  if (known.name == "zarr") {
    return with_python(what, fmt::format("import zarr; shardwise.save(\"NAME\", {{\"w\": "
                                         "zarr.open({}, mode=\"r\")[...]}})",
                                         in_python(path.string())));
  }
  static constexpr std::string_view kImported[] = {"safetensors", "hdf5", "npz", "dcp", "orbax"};
  if (std::ranges::find(kImported, known.name) != std::end(kImported)) {
    return with_import(what, path);
  }
  return what + ", which nothing here reads";
}

}  // namespace

std::string foreign_format(const fs::path& path) {
  const bool is_one = is_folder(path);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (!is_one && is_checkpoint(folder)) {
    return fmt::format("a file of the checkpoint {}", folder.string());
  }
  const KnownFormat known = known_format(path);
  if (known.name.empty() || known.name == "shardwise") return {};
  if (known.steps.empty()) return with_advice(known, path);
  const fs::path newest = path / known.steps.back();
  return fmt::format("{}, such as {}, {}", known.steps.size() == 1 ? "one" : "several",
                     newest.string(), with_advice(known, newest));
}

std::string_view python_format(const fs::path& folder) {
  const KnownFormat known = known_format(folder);
  const bool is_pythons = known.name == "dcp" || known.name == "orbax";
  return is_pythons && known.steps.empty() ? known.name : std::string_view();
}

fs::path root_inside(const fs::path& folder) {
  for (const std::string& name : shown_names(folder)) {
    const std::vector<std::string> below = shown_names(folder / name);
    const auto holds_manifest = [&](const std::string& step) {
      return is_step(step) && is_checkpoint(folder / name / step);
    };
    if (std::ranges::any_of(below, holds_manifest)) return folder / name;
  }
  return {};
}

std::vector<fs::path> named_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const std::string& name : shown_names(folder)) {
    if (!is_step(name) && is_checkpoint(folder / name)) found.push_back(folder / name);
  }
  return found;
}

bool is_step(const fs::path& path) { return path.filename().string().starts_with("step-"); }

bool is_checkpoint(const fs::path& path) { return is_there(path / "manifest.json"); }

}  // namespace shardwise::tools
