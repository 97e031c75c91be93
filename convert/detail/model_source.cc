#include "shardwise/convert/detail/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <system_error>

#include "shardwise/convert/detail/hdf5_model.h"
#include "shardwise/convert/detail/joined_model.h"
#include "shardwise/convert/detail/npz_model.h"
#include "shardwise/convert/detail/safetensors/safetensors_header.h"
#include "shardwise/convert/detail/safetensors/safetensors_index.h"
#include "shardwise/convert/detail/safetensors/safetensors_model.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

/// Other folders with such files are no models.
struct NameInFolders {
  std::string_view format, model, index;
};
constexpr NameInFolders kNamesInFolders[] = {{kNpz, "model.npz", "model.npz.index.json"},
                                             {kHdf5, "model.h5", "model.h5.index.json"}};

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// At most that many bytes from the file's begin.
std::string first_bytes(FileSystem& file_system, const fs::path& path, std::uint64_t most) {
  const std::unique_ptr<File> file = open_linked(file_system, path);
  return text_at(*file, 0, std::min(file->size(), most));
}

/// A length below 2^56 and the begin of JSON.
bool is_safetensors(std::string_view first) {
  return first.size() > kLengthBytes && first[kLengthBytes - 1] == 0 && first[kLengthBytes] == '{';
}

/// What a folder's names say, without those of our own checkpoints.
std::string_view format_of_names(std::span<const std::string> names) {
  const auto any = [&names](auto&& fits) { return std::ranges::any_of(names, fits); };
  if (any([](const std::string& name) {
        return name == "manifest.json" || name.starts_with("step-");
      })) {
    return {};
  }
  if (any([](const std::string& name) {
        return name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix);
      })) {
    return kSafetensors;
  }
  for (const NameInFolders& known : kNamesInFolders) {
    if (any([&known](const std::string& name) {
          return name == known.model || name == known.index;
        })) {
      return known.format;
    }
  }
  return {};
}

/// HDF5's signature, which may come after a block of the user's.
bool is_hdf5(std::string_view first) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  constexpr std::size_t kPlaces[] = {0, 512, 1024, 2048};
  for (const std::size_t at : kPlaces) {
    if (first.size() > at && first.substr(at).starts_with(kSignature)) return true;
  }
  return false;
}

/// A zip archive whose first member is an array; PyTorch's are zip archives, too.
bool is_npz(std::string_view first) {
  constexpr std::size_t kLocalBytes = 30, kLengthAt = 26;
  if (!first.starts_with("PK\3\4") || first.size() < kLocalBytes) return false;
  const auto byte = [first](std::size_t at) { return static_cast<unsigned char>(first[at]); };
  const std::size_t length = byte(kLengthAt) | static_cast<std::size_t>(byte(kLengthAt + 1)) << 8;
  return first.substr(kLocalBytes, length).ends_with(".npy");
}

ModelSource open_recognised(const fs::path& path, const std::shared_ptr<FileSystem>& file_system) {
  const std::string_view format = recognised_format(*file_system, path);
  for (const auto& [known, model, index] : kNamesInFolders) {
    if (format != known) continue;
    if (is_folder(path)) {
      const std::vector<std::string> names = file_system->list(path);
      const bool has_index = std::ranges::find(names, index) != names.end();
      return open_recognised(path / (has_index ? index : model), file_system);
    }
    if (path.filename() == index) {
      return open_joined(path, *file_system, [&file_system](const fs::path& file) {
        return open_recognised(file, file_system);
      });
    }
  }
  if (format == kHdf5) return open_hdf5_model(path, *file_system);
  if (format == kNpz) return open_npz(path, file_system);
  return open_safetensors(path, file_system);
}

}  // namespace

std::unique_ptr<File> open_linked(FileSystem& file_system, const fs::path& path) {
  std::error_code error;  // what is not there is told by open()
  const fs::path real = fs::canonical(path, error);
  return file_system.open(error ? path : real);
}

std::string text_at(File& file, std::uint64_t offset, std::uint64_t size) {
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size > 0) file.read_at(offset, std::as_writable_bytes(std::span(text)).data(), text.size());
  return text;
}

std::string_view recognised_format(FileSystem& file_system, const fs::path& path) {
  if (is_folder(path)) return format_of_names(file_system.list(path));
  const std::string first = first_bytes(file_system, path, 4096);
  if (is_hdf5(first)) return kHdf5;
  if (is_npz(first)) return kNpz;
  const std::string name = path.filename().string();
  for (const auto& [format, model, index] : kNamesInFolders) {
    if (name == index) return format;
  }
  if (is_safetensors(first) || name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix)) {
    return kSafetensors;
  }
  return {};
}

ModelSource open_model(const fs::path& path, const std::shared_ptr<FileSystem>& file_system) {
  ModelSource source = open_recognised(path, file_system);
  std::vector<std::string>& left_out = source.left_out;
  if (source.tensors->tensors().empty() && !left_out.empty()) {
    constexpr std::size_t kMostShown = 10;
    left_out.resize(std::min(left_out.size(), kMostShown));
    throw Error(ErrorCode::unsupported,
                fmt::format("read {}: it has nothing that is a tensor here: {}", path.string(),
                            fmt::join(left_out, "; ")));
  }
  return source;
}

}  // namespace shardwise::detail
