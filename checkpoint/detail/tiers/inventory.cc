#include "shardwise/checkpoint/detail/tiers/inventory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "shardwise/checkpoint/detail/group/packer.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/root.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kPrefix = "process-";

bool has_bytes(FileSystem& file_system, const std::filesystem::path& path, std::uint64_t bytes) {
  try {
    return file_system.open(path)->size() == bytes;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return false;
  }
}

void add_step(FileSystem& file_system, const std::filesystem::path& directory, const StepName& name,
              Inventory& inventory) {
  Manifest manifest;
  try {
    manifest = read_manifest(open_directory(file_system, directory));
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return;  // another process has removed it, or its host died while it was written
  }
  HeldFiles& held = inventory[{name.step, manifest.id}];
  held.generation = std::max(held.generation, name.generation);
  held.num_files = std::ssize(manifest.files);
  held.manifest = directory / kManifestName;
  for (std::int64_t f = 0; f < held.num_files; ++f) {
    const FileEntry& file = manifest.files[static_cast<std::size_t>(f)];
    if (held.paths.contains(f)) continue;
    if (has_bytes(file_system, directory / file.name, file.bytes)) {
      held.paths.emplace(f, directory / file.name);
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

Inventory take_inventory(FileSystem& file_system, const std::filesystem::path& fast) {
  Inventory inventory;
  for (const std::string& process : file_system.list(fast)) {
    if (process_of_directory(process) < 0) continue;
    for (const StepName& name : committed_names(file_system, fast / process)) {
      add_step(file_system, fast / process / to_string(name), name, inventory);
    }
  }
  return inventory;
}

std::map<SavedStep, StepHolders> gather_inventories(const ProcessGroup& group,
                                                    const Inventory& own) {
  Packer packer;
  for (const auto& [step, held] : own) {
    packer.number(step.step);
    packer.text(step.id);
    packer.number(held.generation);
    packer.number(held.num_files);
    packer.number(std::uint64_t{held.paths.size()});
    for (const auto& [file, path] : held.paths) packer.number(file);
  }
  const std::vector<Bytes> all = group.all_gather(packer.take());
  std::map<SavedStep, StepHolders> steps;
  for (int rank = 0; rank < group.size(); ++rank) {
    Unpacker unpacker(all[static_cast<std::size_t>(rank)]);
    while (!unpacker.empty()) {
      const std::int64_t number = unpacker.integer();
      StepHolders& step = steps[{number, unpacker.text()}];
      step.generation = std::max(step.generation, unpacker.integer());
      step.num_files = unpacker.integer();
      step.manifest.push_back(rank);
      for (std::uint64_t files = unpacker.number(); files > 0; --files) {
        step.of[unpacker.integer()].push_back(rank);
      }
    }
  }
  return steps;
}

}  // namespace shardwise::detail
