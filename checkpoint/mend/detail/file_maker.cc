#include "shardwise/mend/detail/file_maker.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/checkpoint/detail/read/index_check.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::mend_detail {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kCopiedBytes = std::size_t{1} << 20;

/// Copies the range unchecked: hashes cover it, and the new file is checked before it is put.
void copy_range(File& from, File& to, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(std::min<std::uint64_t>(kCopiedBytes, end - begin)));
  while (begin < end) {
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), end - begin));
    from.read_at(begin, bytes.data(), size);
    to.write_at(begin, bytes.data(), size);
    begin += size;
  }
}

/// True if the error only says that a source is of no help: unreadable, or not the wanted one.
bool is_no_help(const Error& e) {
  return e.code() == ErrorCode::corrupt || e.code() == ErrorCode::io ||
         e.code() == ErrorCode::not_found || e.code() == ErrorCode::unsupported;
}

std::vector<std::byte> all_of(File& file) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(file.size()));
  file.read_at(0, bytes.data(), bytes.size());
  return bytes;
}

/// The id that a damaged manifest still states, if it does.
std::string stated_id(std::string_view text) {
  constexpr std::string_view kKey = "\"id\":\"";
  const std::size_t at = text.find(kKey);
  Hash128 ignored;
  if (at == std::string_view::npos) return {};
  const std::string_view id = text.substr(at + kKey.size(), 32);
  return from_hex(id, ignored) ? std::string(id) : std::string();
}

}  // namespace

/// A file whose tables and HDF5's own bytes are those of the wanted one.
struct FileMaker::Described {
  std::shared_ptr<File> file;
  detail::FileTables tables;
};

FileMaker::FileMaker(FileSystem& file_system, fs::path directory, std::vector<fs::path> checkpoints)
    : file_system_(file_system),
      directory_(std::move(directory)),
      replacer_(file_system, directory_),
      checkpoints_(std::move(checkpoints)) {}

std::unique_ptr<File> FileMaker::open_if_there(const fs::path& path) {
  try {
    return file_system_.open(path);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::not_found && e.code() != ErrorCode::corrupt) throw;
    return nullptr;  // or it is no file
  }
}

// Where the file may be: here, and in each other checkpoint under its name as a linked file and
// under those that the manifest has for it.
std::vector<fs::path> FileMaker::paths_of(const WantedFile& wanted) {
  std::vector<fs::path> paths{directory_ / wanted.entry.name};
  const detail::FileEntry& entry = wanted.entry;
  const detail::LinkedFile linked{entry.description_hash, entry.bytes, entry.data_end};
  for (const fs::path& checkpoint : checkpoints_) {
    try {
      for (const detail::FileEntry& other :
           detail::read_manifest(detail::open_directory(file_system_, checkpoint)).files) {
        const bool is_same = other.description_hash == entry.description_hash &&
                             other.bytes == entry.bytes && other.data_end == entry.data_end;
        if (is_same) paths.push_back(checkpoint / other.name);
      }
    } catch (const Error& e) {
      if (!is_no_help(e)) throw;
    }
    paths.push_back(checkpoint / linked.name());
  }
  return paths;
}

FileMaker::Described FileMaker::described(std::shared_ptr<File> file, const fs::path& path,
                                          const WantedFile& wanted) {
  const auto refuse = [&](const std::string& problem) {
    throw Error(ErrorCode::corrupt, fmt::format("read {}: {}", path.string(), problem));
  };
  if (file->size() != wanted.entry.bytes) {
    refuse(fmt::format("found {} bytes, needed are {}", file->size(), wanted.entry.bytes));
  }
  detail::FileTables tables = detail::read_file_tables(
      *file, path.parent_path(),
      wanted.linked ? detail::describe_linked_file(*file, path.string(), *wanted.linked)
                    : wanted.entry);
  detail::check_structure(*file, path.string(), tables.entry);
  for (const detail::ChunkRecord& record : tables.table.records) {
    if (detail::is_in_linked(record)) continue;
    if (record.address < tables.entry.data_begin || record.address > tables.entry.data_end ||
        record.stored_bytes > tables.entry.data_end - record.address) {
      refuse("found a chunk outside its data, needed are all inside");
    }
  }
  return Described{std::move(file), std::move(tables)};
}

// A chunk that is right in neither file is as it is in the damaged one.
void FileMaker::copy_chunks(Described& from, File* damaged, File& to) {
  std::vector<std::byte> bytes, old;
  for (const detail::ChunkRecord& record : from.tables.table.records) {
    if (detail::is_in_linked(record)) continue;
    bytes.resize(static_cast<std::size_t>(record.stored_bytes));
    const auto read = [&](File& file, std::vector<std::byte>& into) {
      file.read_at(record.address, into.data(), into.size());
      return hash64(into.data(), into.size()) == record.hash;
    };
    bool is_right = false;
    try {
      is_right = read(*from.file, bytes);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::io) throw;
    }
    if (!is_right && damaged != nullptr) {
      old.resize(bytes.size());
      try {
        read(*damaged, old);
        bytes = old;
      } catch (const Error& e) {
        if (e.code() != ErrorCode::corrupt) throw;  // unreadable bytes may be good
      }
    }
    to.write_at(record.address, bytes.data(), bytes.size());
  }
}

void FileMaker::put_shard_file(Described from, const WantedFile& wanted) {
  const std::unique_ptr<File> damaged = open_if_there(directory_ / wanted.entry.name);
  const detail::FileEntry& entry = from.tables.entry;
  replacer_.put(wanted.entry.name, [&](File& file) {
    file.resize(entry.bytes);
    copy_range(*from.file, file, 0, entry.data_begin);
    copy_range(*from.file, file, entry.data_end, entry.bytes);
    copy_range(
        *from.file, file, entry.table_address,
        entry.table_address + from.tables.table.records.size() * sizeof(detail::ChunkRecord));
    copy_range(*from.file, file, entry.data_end - detail::kDescriptionBytes, entry.data_end);
    copy_chunks(from, damaged.get(), file);
    detail::read_file_tables(file, directory_, entry);
    detail::check_structure(file, (directory_ / entry.name).string(), entry);
  });
}

std::optional<std::string> FileMaker::make_shard_file(const WantedFile& wanted,
                                                      std::string& why_not) {
  for (const fs::path& path : paths_of(wanted)) {
    std::optional<Described> from;
    try {
      from = described(file_system_.open(path), path, wanted);
    } catch (const Error& e) {
      if (!is_no_help(e)) throw;
      continue;
    }
    put_shard_file(std::move(*from), wanted);
    return path.string();
  }
  why_not = fmt::format("none of the other checkpoints, {}, has this file", checkpoints_.size());
  return std::nullopt;
}

bool FileMaker::make_shard_file(const WantedFile& wanted, std::shared_ptr<File> restored,
                                std::string& why_not) {
  try {
    put_shard_file(described(std::move(restored), directory_ / wanted.entry.name, wanted), wanted);
    return true;
  } catch (const Error& e) {
    if (!is_no_help(e)) throw;
    why_not += fmt::format("; by its parity: {}", e.what());
    return false;
  }
}

std::optional<std::string> FileMaker::make_index(const detail::Manifest& manifest,
                                                 std::string& why_not) {
  const auto is_right = [&](std::span<const std::byte> bytes) {
    return bytes.size() == manifest.index_bytes &&
           hash128(bytes.data(), bytes.size()) == manifest.index_hash;
  };
  if (const std::vector<std::byte> bytes = detail::index_of(manifest); is_right(bytes)) {
    replacer_.put(detail::kIndexName, bytes);
    return (directory_ / detail::kManifestName).string();
  }
  for (const fs::path& checkpoint : checkpoints_) {
    try {
      const std::unique_ptr<File> file = file_system_.open(checkpoint / detail::kIndexName);
      if (file->size() != manifest.index_bytes) continue;
      const std::vector<std::byte> bytes = all_of(*file);
      if (!is_right(bytes)) continue;
      replacer_.put(detail::kIndexName, bytes);
      return (checkpoint / detail::kIndexName).string();
    } catch (const Error& e) {
      if (e.code() != ErrorCode::not_found && e.code() != ErrorCode::corrupt) throw;
    }
  }
  why_not = fmt::format("none of the other checkpoints, {}, has this index", checkpoints_.size());
  return std::nullopt;
}

// True if a shard file here says of itself that it is the one that the manifest names; a checkpoint
// without shard files says it by its index.
bool FileMaker::is_of_this_checkpoint(const detail::Manifest& manifest) {
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    detail::FileEntry entry = manifest.files[f];
    const fs::path path = directory_ / entry.name;
    try {
      const std::unique_ptr<File> file = file_system_.open(path);
      detail::read_file_description(*file, path.string(), entry);
      return true;
    } catch (const Error& e) {
      if (!is_no_help(e)) throw;
    }
  }
  if (!manifest.files.empty() || !manifest.has_index()) return false;
  const std::unique_ptr<File> index = open_if_there(directory_ / detail::kIndexName);
  if (!index || index->size() != manifest.index_bytes) return false;
  const std::vector<std::byte> bytes = all_of(*index);
  return hash128(bytes.data(), bytes.size()) == manifest.index_hash;
}

std::optional<std::string> FileMaker::make_manifest(std::string& why_not) {
  const std::vector<std::string> names = file_system_.list(directory_);
  const std::string trash = std::string(detail::kManifestName) + ".trash-";
  if (std::ranges::any_of(names, [&](const auto& name) { return name.starts_with(trash); })) {
    why_not = "the checkpoint was removed";
    return std::nullopt;
  }
  std::string id;
  if (const std::unique_ptr<File> damaged = open_if_there(directory_ / detail::kManifestName)) {
    if (damaged->size() <= detail::kMaxManifestBytes) {
      const std::vector<std::byte> bytes = all_of(*damaged);
      id = stated_id({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
  }
  const auto step = detail::parse_step_name(directory_.filename().string());
  why_not = fmt::format("none of the other checkpoints, {}, has the manifest of the files here",
                        checkpoints_.size());
  for (const fs::path& checkpoint : checkpoints_) {
    std::string text;
    try {
      const fs::path path = checkpoint / detail::kManifestName;
      text = detail::read_manifest_text(detail::open_directory(file_system_, checkpoint));
      const detail::Manifest manifest = detail::parse_manifest(text, path.string());
      if (manifest.step != detail::kNoStep && step && step->step != manifest.step) continue;
      if (!is_of_this_checkpoint(manifest)) continue;
      if (!id.empty() && id != manifest.id) {
        why_not = fmt::format("{} is that of another save, whose shard files are the same",
                              path.string());
        continue;
      }
    } catch (const Error& e) {
      if (!is_no_help(e)) throw;
      continue;
    }
    replacer_.put(detail::kManifestName, std::as_bytes(std::span(text)));
    return (checkpoint / detail::kManifestName).string();
  }
  return std::nullopt;
}

}  // namespace shardwise::mend_detail
