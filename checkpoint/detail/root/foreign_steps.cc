#include "shardwise/checkpoint/detail/root/foreign_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

enum class Kind { none, ours, orbax, dcp, tensors, pickle };

// Endings of files that hold weights: of safetensors and numpy, and of torch.save() and others.
constexpr std::array<std::string_view, 4> kTensors{".safetensors", ".npz", ".h5", ".hdf5"};
constexpr std::array<std::string_view, 7> kPickles{".pt",      ".pth", ".bin",  ".ckpt",
                                                   ".msgpack", ".pkl", ".keras"};
constexpr std::array<std::string_view, 10> kWords{"checkpoint", "ckpt", "step",   "epoch", "iter",
                                                  "model",      "last", "latest", "best",  "final"};

// How many folders below a step are looked into: Megatron has iter_0000100/mp_rank_00/model.pt.
constexpr int kMostLevels = 2;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

template <std::size_t N>
bool ends_with_any(std::string_view name, const std::array<std::string_view, N>& endings) {
  return std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}

bool has_checkpoint_word(std::string_view name) {
  return std::ranges::any_of(
      kWords, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

// The number after "step", else the last one: 100 in epoch=3-step=100.ckpt.
std::optional<std::int64_t> number_in(std::string_view name) {
  if (const std::size_t step = name.rfind("step"); step != std::string_view::npos) {
    const auto begin = std::ranges::find_if(name.substr(step), is_digit);
    if (begin != name.end()) name = name.substr(static_cast<std::size_t>(begin - name.begin()));
    name = name.substr(0, std::min(name.size(), name.find_first_not_of("0123456789")));
  } else if (const std::size_t dot = name.find('.'); dot != std::string_view::npos && dot > 0) {
    name = name.substr(0, dot);  // model.h5 has no number
  }
  const auto last = std::find_if(name.rbegin(), name.rend(), is_digit);
  if (last == name.rend()) return std::nullopt;
  const auto first = std::find_if_not(last, name.rend(), is_digit);
  std::int64_t number = 0;
  for (auto digit = first.base(); digit != last.base(); ++digit) {
    if (number > (INT64_MAX - 9) / 10) return std::nullopt;
    number = number * 10 + (*digit - '0');
  }
  return number;
}

// The names in a folder; absent if it is no folder, or cannot be listed.
std::optional<std::vector<std::string>> names_in(FileSystem& files, const fs::path& folder) {
  try {
    return files.list(folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool is_shard_file(std::string_view name) {
  return name.starts_with("shards-") && name.ends_with(".h5");
}

Kind kind_of_file(std::string_view name) {
  if (ends_with_any(name, kTensors)) return Kind::tensors;
  if (ends_with_any(name, kPickles)) return Kind::pickle;
  return Kind::none;
}

// The kind of a folder, by its files.
Kind kind_of_folder(FileSystem& files, const fs::path& folder, int levels) {
  const std::vector<std::string> names =
      names_in(files, folder).value_or(std::vector<std::string>());
  const auto holds = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (holds("manifest.json")) return Kind::ours;
  if (holds("_CHECKPOINT_METADATA") || holds("_METADATA")) return Kind::orbax;
  if (holds(".metadata")) return Kind::dcp;
  if (std::ranges::any_of(names, is_shard_file)) return Kind::none;  // ours, without its manifest
  Kind found = Kind::none;
  for (const std::string& name : names) {
    Kind kind = kind_of_file(name);
    if (kind == Kind::none && levels > 0) {
      if (!name.starts_with("step-")) {
        kind = kind_of_folder(files, folder / name, levels - 1);
      }
      if (kind == Kind::ours) kind = Kind::none;  // a root of steps, or of checkpoints by name
    }
    if (kind == Kind::orbax || kind == Kind::tensors) return kind;
    if (kind != Kind::none) found = kind;
  }
  return found;
}

// Flax's checkpoint_100 and TensorFlow's ckpt-100.index are files without an ending of their own.
bool is_named_file_of_step(std::string_view name) {
  return (name.starts_with("checkpoint") || name.starts_with("ckpt")) &&
         std::ranges::any_of(name, is_digit) && name.find(".orbax-checkpoint-tmp") == name.npos;
}

Kind kind_of(FileSystem& files, const fs::path& root, const std::string& name) {
  const std::optional<std::int64_t> number = number_in(name);
  if (name.starts_with('.') || (!number && !has_checkpoint_word(name)) ||
      name.find(".orbax-checkpoint-tmp") != std::string::npos) {
    return Kind::none;
  }
  if (!names_in(files, root / name)) {
    const Kind kind = kind_of_file(name);
    return kind == Kind::none && is_named_file_of_step(name) ? Kind::pickle : kind;
  }
  const Kind kind = kind_of_folder(files, root / name, kMostLevels);
  // run/best may be next to the steps; a step by its own name was published since they were listed.
  const bool is_beside = kind == Kind::ours && (!number || parse_step_name(name));
  return is_beside ? Kind::none : kind;
}

fs::path with_ending(fs::path root) {
  if (!root.has_filename()) root = root.parent_path();  // "run/"
  root += ".sw";
  return root;
}

std::string told(Kind kind, const fs::path& path, const fs::path& root, std::int64_t step) {
  // The other library's folder has the step's own name.
  const fs::path target = parse_step_name(path.filename().string()) ? with_ending(root) : root;
  const std::string made = (target / to_string(StepName{.step = step})).string();
  const std::string import = fmt::format("`shardwise import {} {} --step {}`, or in Python ",
                                         path.string(), target.string(), step);
  switch (kind) {
    case Kind::ours:
      return fmt::format("a checkpoint of Shardwise by another name: `mv {} {}`", path.string(),
                         made);
    case Kind::orbax:
      if (path != root && number_in(path.filename().string())) {
        return fmt::format("a step of Orbax: {}import_orbax(\"{}\", \"{}\", steps=\"all\")", import,
                           root.string(), target.string());
      }
      return fmt::format("a checkpoint of Orbax: {}import_orbax(\"{}\", \"{}\")", import,
                         path.string(), made);
    case Kind::dcp:
      return fmt::format(
          "a checkpoint of torch.distributed.checkpoint (DCP): {}import_dcp(\"{}\", \"{}\")",
          import, path.string(), made);
    case Kind::tensors:
      return fmt::format(
          "a file or folder of safetensors, npz or HDF5: {}import_model(\"{}\", "
          "\"{}\")",
          import, path.string(), made);
    default:
      return fmt::format(
          "made by torch.save() or another library: load it by that one, and "
          "`shardwise.torch.save(\"{}\", torch.load(\"{}\", weights_only=True))`",
          made, path.string());
  }
}

}  // namespace

std::string ForeignSteps::text() const {
  if (names.empty()) return {};
  const std::string others = names.size() == 1 ? "" : fmt::format(" of {}", names.size());
  return fmt::format("{}{} is {}", newest, others, is);
}

ForeignSteps foreign_steps(FileSystem& file_system, const fs::path& root) {
  if (const Kind whole = kind_of_folder(file_system, root, 0);
      whole == Kind::ours || whole == Kind::orbax || whole == Kind::dcp) {
    return {{"."}, ".", told(whole, root, root, 0)};
  }
  const auto names = names_in(file_system, root).value_or(std::vector<std::string>());
  return foreign_steps(file_system, root, names, -1);
}

ForeignSteps foreign_steps(FileSystem& file_system, const fs::path& root,
                           std::span<const std::string> names, std::int64_t step) {
  ForeignSteps found;
  Kind kind = Kind::none;
  for (const std::string& name : names) {
    const std::int64_t number = number_in(name).value_or(0);
    if (number <= step) continue;
    const Kind other = kind_of(file_system, root, name);
    if (other == Kind::none) continue;
    found.names.push_back(name);
    if (kind != Kind::none && number < number_in(found.newest).value_or(0)) continue;
    found.newest = name, kind = other;
  }
  if (kind == Kind::none) return found;
  found.is = told(kind, root / found.newest, root, number_in(found.newest).value_or(0));
  return found;
}

}  // namespace shardwise::detail
