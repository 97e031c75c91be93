#include "shardwise/convert/detail/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <system_error>

#include "shardwise/convert/detail/hdf5_model.h"
#include "shardwise/convert/detail/joined_model.h"
#include "shardwise/convert/detail/npz_model.h"
#include "shardwise/convert/detail/safetensors/safetensors_model.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/known_format.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

/// A folder is a model only if it has a file of one of these names.
struct NameInFolders {
  std::string_view format, model, index;
};
constexpr NameInFolders kNamesInFolders[] = {{kNpz, "model.npz", "model.npz.index.json"},
                                             {kHdf5, "model.h5", "model.h5.index.json"}};

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
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
  std::error_code error;  // open() reports a missing file
  const fs::path real = fs::canonical(path, error);
  return file_system.open(error ? path : real);
}

std::string text_at(File& file, std::uint64_t offset, std::uint64_t size) {
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size > 0) file.read_at(offset, std::as_writable_bytes(std::span(text)).data(), text.size());
  return text;
}

std::string_view recognised_format(FileSystem& file_system, const fs::path& path) {
  const KnownFormat known = known_format(path, file_system);
  const bool is_read = known.name == kSafetensors || known.name == kHdf5 || known.name == kNpz;
  return is_read && known.steps.empty() ? known.name : std::string_view();
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
