#include "shardwise/convert/detail/foreign_format.h"

#include <algorithm>

namespace shardwise::detail {

std::string_view foreign_file(std::string_view first_bytes) {
  struct Magic {
    std::string_view bytes, what;
  };
  static constexpr Magic kMagics[] = {{"PK\3\4", "a zip archive, such as PyTorch's"},

                                      {"\x93NUMPY", "a .npy array"},
                                      {"GGUF", "GGUF"},
                                      {"\x80\2", "a Python pickle"},
                                      {"\x80\3", "a Python pickle"},
                                      {"\x80\4", "a Python pickle"},
                                      {"\x80\5", "a Python pickle"},
                                      {"\x1f\x8b", "gzip"},
                                      {"version https://git-lfs", "a pointer to a Git LFS file"},
                                      {"{", "JSON"}};
  for (const Magic& magic : kMagics) {
    if (first_bytes.starts_with(magic.bytes)) return magic.what;
  }
  return {};
}

std::string_view foreign_folder(std::span<const std::string> names) {
  const auto any = [&names](auto&& fits) { return std::any_of(names.begin(), names.end(), fits); };
  const auto holds = [&any](std::string_view wanted) {
    return any([wanted](const std::string& name) { return name == wanted; });
  };
  if (holds("manifest.json")) {
    return "a checkpoint of Shardwise, which \"shardwise reshard\" writes again";
  }
  if (any([](const std::string& name) { return name.starts_with("step-"); })) {
    return "a directory of Shardwise's checkpoints, which \"shardwise reshard\" writes again";
  }
  if (holds(".metadata")) {
    return "a distributed checkpoint of PyTorch, which \"shardwise import\" and import_dcp read";
  }
  if (holds("_CHECKPOINT_METADATA") || holds("_METADATA")) {
    return "a checkpoint of Orbax, which \"shardwise import\" and import_orbax read";
  }
  if (any([](const std::string& name) { return name.starts_with("pytorch_model"); })) {
    return "a model in PyTorch's files";
  }
  if (any([](const std::string& name) { return name.ends_with(".gguf"); })) return "GGUF";
  return {};
}

}  // namespace shardwise::detail
