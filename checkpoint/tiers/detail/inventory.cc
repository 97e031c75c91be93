#include "shardwise/tiers/detail/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::tiers_detail {

namespace {

constexpr std::string_view kPrefix = "process-";

// The most copies of a file on one host that its inventory tells of.
constexpr std::size_t kMostCopies = 64;

/// Null without a file of this size.
std::unique_ptr<File> open_if_there(FileSystem& file_system, const std::filesystem::path& path,
                                    std::uint64_t bytes) {
  try {
    std::unique_ptr<File> file = file_system.open(path);
    if (file->size() == bytes) return file;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
  }
  return nullptr;
}

/// With the files that it links. If its tables are bad, these are not known: it counts, and is
/// found bad when it is read.
bool has_copy(FileSystem& file_system, const std::filesystem::path& directory,
              detail::FileEntry file) {
  const std::filesystem::path path = directory / file.name;
  const std::unique_ptr<File> opened = open_if_there(file_system, path, file.bytes);
  if (!opened) return false;
  try {
    detail::read_linked_files(*opened, path.string(), file);
  } catch (const Error&) {
    return true;
  }
  return std::ranges::all_of(file.linked, [&](const detail::LinkedFile& linked) {
    return open_if_there(file_system, directory / linked.name(), linked.bytes) != nullptr;
  });
}

/// The step that a directory has; nothing if its manifest is damaged, which is noted, or if another
/// process has removed it.
void add_step(FileSystem& file_system, const std::filesystem::path& directory,
              const detail::StepName& name, bool is_set_aside, Inventory& inventory) {
  detail::Manifest manifest;
  std::string text;
  try {
    text = detail::read_manifest_text(detail::open_directory(file_system, directory));
    manifest = detail::parse_manifest(text, (directory / detail::kManifestName).string());
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    if (e.code() != ErrorCode::not_found) inventory.damaged.emplace_back(e.what());
    return;
  }
  HeldFiles& held = inventory.steps[{name.step, manifest.id, to_hex(hash128(text))}];
  held.generation = std::max(held.generation, name.generation);
  held.num_files = std::ssize(manifest.files);
  held.is_set_aside = held.is_set_aside || is_set_aside;
  held.directories.push_back(directory);
  held.manifest = std::move(text);
  for (std::int64_t f = 0; f < held.num_files; ++f) {
    const detail::FileEntry& file = manifest.files[static_cast<std::size_t>(f)];
    if (has_copy(file_system, directory, file)) {
      held.paths[f].push_back(directory / file.name);
    }
  }
}

}  // namespace

std::string process_directory(int rank) { return fmt::format("{}{:05}", kPrefix, rank); }

int process_of_directory(std::string_view name) {
  if (!name.starts_with(kPrefix)) return -1;
  const std::string_view digits = name.substr(kPrefix.size());
  int rank = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  const bool is_one = error == std::errc() && end == digits.data() + digits.size() && rank >= 0;
  return is_one && name == process_directory(rank) ? rank : -1;
}

std::vector<std::filesystem::path> process_directories(FileSystem& file_system,
                                                       const std::filesystem::path& fast) {
  std::vector<std::filesystem::path> directories;
  for (const std::string& name : file_system.list(fast)) {
    if (process_of_directory(name) >= 0) directories.push_back(fast / name);
  }
  return directories;
}

Inventory take_inventory(FileSystem& file_system, std::span<const std::filesystem::path> roots) {
  Inventory inventory;
  for (const std::filesystem::path& fast : roots) {
    for (const std::filesystem::path& process : process_directories(file_system, fast)) {
      const detail::RunNames names = detail::run_names(file_system, process);
      for (const detail::StepName& name : names.own) {
        add_step(file_system, process / to_string(name), name, false, inventory);
      }
      for (const detail::StepName& name : names.aside) {
        add_step(file_system, process / to_string(name), name, true, inventory);
      }
    }
  }
  return inventory;
}

Bytes encode(const Inventory& inventory) {
  detail::Packer packer;
  packer.number(std::uint64_t{inventory.steps.size()});
  for (const auto& [step, held] : inventory.steps) {
    packer.number(step.step);
    packer.text(step.id);
    packer.text(step.manifest);
    packer.number(held.generation);
    packer.number(held.num_files);
    packer.number(std::uint64_t{held.is_set_aside});
    packer.number(std::uint64_t{held.paths.size()});
    for (const auto& [file, paths] : held.paths) {
      packer.number(file);
      packer.number(std::uint64_t{std::min(paths.size(), kMostCopies)});
    }
  }
  packer.number(std::uint64_t{inventory.damaged.size()});
  for (const std::string& problem : inventory.damaged) packer.text(problem);
  return detail::sealed(packer.take());
}

Inventory decode_inventory(std::span<const std::byte> message) {
  detail::Unpacker unpacker =
      detail::Unpacker::of_sealed(message, "another process's list of its checkpoints");
  Inventory inventory;
  for (std::uint64_t steps = unpacker.number(); steps > 0; --steps) {
    SavedStep step{unpacker.integer(), unpacker.text(), unpacker.text()};
    const auto [at, is_new] = inventory.steps.emplace(std::move(step), HeldFiles());
    unpacker.require(is_new, "found a step twice, needed is each once");
    HeldFiles& held = at->second;
    held.generation = unpacker.integer();
    held.num_files = unpacker.integer();
    held.is_set_aside = unpacker.integer(0, 1) == 1;
    for (std::uint64_t files = unpacker.number(); files > 0; --files) {
      const std::int64_t file = unpacker.integer();
      unpacker.require(0 <= file && file < held.num_files,
                       "found a file that its step does not have");
      const std::uint64_t copies = unpacker.number();
      unpacker.require(0 < copies && copies <= kMostCopies,
                       "found too many copies of a file, or none");
      const bool is_first = held.paths.try_emplace(file, copies).second;
      unpacker.require(is_first, "found a file twice, needed is each once");
    }
  }
  for (std::uint64_t left = unpacker.number(); left > 0; --left) {
    inventory.damaged.push_back(unpacker.text());
  }
  unpacker.end();
  return inventory;
}

AllInventories gather_inventories(const ProcessGroup& group, const Inventory& own) {
  const std::vector<Bytes> all = group.all_gather(encode(own));
  AllInventories gathered;
  for (int rank = 0; rank < group.size(); ++rank) {
    const Inventory inventory = decode_inventory(all[static_cast<std::size_t>(rank)]);
    for (const auto& [saved, held] : inventory.steps) {
      StepHolders& step = gathered.steps[saved];
      step.generation = std::max(step.generation, held.generation);
      step.num_files = held.num_files;
      step.is_set_aside = step.is_set_aside || held.is_set_aside;
      step.manifest.push_back(rank);
      for (const auto& [file, paths] : held.paths) {
        step.of[file].insert(step.of[file].end(), paths.size(), rank);
      }
    }
    for (const std::string& problem : inventory.damaged) {
      if (std::ranges::find(gathered.damaged, problem) != gathered.damaged.end()) continue;
      gathered.damaged.push_back(problem);
    }
  }
  return gathered;
}

}  // namespace shardwise::tiers_detail
