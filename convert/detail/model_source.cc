#include "shardwise/convert/detail/model_source.h"

#include <algorithm>
#include <span>
#include <system_error>

#include "shardwise/convert/detail/hdf5_model.h"
#include "shardwise/convert/detail/safetensors_header.h"
#include "shardwise/convert/detail/safetensors_index.h"
#include "shardwise/convert/detail/safetensors_model.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// At most that many bytes from the file's begin.
std::string first_bytes(FileSystem& file_system, const fs::path& path, std::uint64_t most) {
  const std::unique_ptr<File> file = open_linked(file_system, path);
  std::string bytes(static_cast<std::size_t>(std::min(file->size(), most)), '\0');
  if (!bytes.empty()) {
    file->read_at(0, std::as_writable_bytes(std::span(bytes)).data(), bytes.size());
  }
  return bytes;
}

/// A length below 2^56 and the begin of JSON.
bool is_safetensors(std::string_view first) {
  return first.size() > kLengthBytes && first[kLengthBytes - 1] == 0 && first[kLengthBytes] == '{';
}

bool holds_safetensors(std::span<const std::string> names) {
  const bool is_ours = std::ranges::any_of(names, [](const std::string& name) {
    return name == "manifest.json" || name.starts_with("step-");
  });
  return !is_ours && std::ranges::any_of(names, [](const std::string& name) {
    return name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix);
  });
}

/// HDF5's signature, which may come after a block of the user's.
bool is_hdf5(std::string_view first) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  for (const std::size_t at : {0, 512, 1024, 2048}) {
    if (first.size() > at && first.substr(at).starts_with(kSignature)) return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<File> open_linked(FileSystem& file_system, const fs::path& path) {
  std::error_code error;  // what is not there is told by open()
  const fs::path real = fs::canonical(path, error);
  return file_system.open(error ? path : real);
}

std::string_view recognised_format(FileSystem& file_system, const fs::path& path) {
  if (is_folder(path)) return holds_safetensors(file_system.list(path)) ? kSafetensors : "";
  const std::string first = first_bytes(file_system, path, 4096);
  if (is_hdf5(first)) return kHdf5;
  const std::string name = path.filename().string();
  if (is_safetensors(first) || name.ends_with(kFileSuffix) || name.ends_with(kIndexSuffix)) {
    return kSafetensors;
  }
  return {};
}

ModelSource open_model(const fs::path& path, const std::shared_ptr<FileSystem>& file_system) {
  const std::string_view format = recognised_format(*file_system, path);
  if (format == kHdf5) return open_hdf5_model(path, *file_system);
  return open_safetensors(path, file_system);
}

}  // namespace shardwise::detail
