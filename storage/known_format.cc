#include "shardwise/storage/known_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <system_error>
#include <utility>

namespace shardwise {
namespace {

namespace fs = std::filesystem;

// A run's folder may hold very many files: the first ones decide.
constexpr std::size_t kMostSniffed = 64, kMostSteps = 4096;
constexpr std::uint64_t kSniffedBytes = 4096;

struct Kind {
  std::string_view name, what;
};
constexpr Kind kShardwise{"shardwise", "a checkpoint of Shardwise"};
constexpr Kind kDamaged{"shardwise", "a checkpoint of Shardwise without its manifest"};
constexpr Kind kShardwiseRoot{"shardwise", "a directory of Shardwise's checkpoints"};
constexpr Kind kSafetensors{"safetensors", "safetensors"};
constexpr Kind kHuggingFace{"safetensors", "a model of Hugging Face in safetensors"};
constexpr Kind kSafetensorsIndex{"safetensors", "an index of safetensors files"};
constexpr Kind kHdf5{"hdf5", "HDF5"};
constexpr Kind kNpz{"npz", "an archive of numpy's"};
constexpr Kind kDcp{"dcp", "a distributed checkpoint of PyTorch (DCP)"};
constexpr Kind kUnfinishedDcp{
    "dcp", "a distributed checkpoint of PyTorch (DCP) that was not completed: no .metadata"};
constexpr Kind kOrbax{"orbax", "a checkpoint of Orbax"};
constexpr Kind kTorch{"torch", "a file of torch.save()"};
constexpr Kind kTorchFolder{"torch", "a model in PyTorch's own files"};
constexpr Kind kZarr{"zarr", "a Zarr array or group"};

KnownFormat as(const Kind& kind) { return {kind.name, kind.what, {}}; }

bool is_hdf5(std::string_view first) {
  static constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  constexpr std::size_t kPlaces[] = {0, 512, 1024, 2048};  // after a user block
  return std::ranges::any_of(kPlaces, [first](std::size_t at) {
    return first.size() > at && first.substr(at).starts_with(kSignature);
  });
}

std::string_view first_zip_member(std::string_view first) {
  constexpr std::size_t kLocalBytes = 30, kLengthAt = 26;
  if (!first.starts_with("PK\3\4") || first.size() < kLocalBytes) return {};
  const auto byte = [first](std::size_t at) { return static_cast<unsigned char>(first[at]); };
  const std::size_t length = byte(kLengthAt) | static_cast<std::size_t>(byte(kLengthAt + 1)) << 8;
  return first.substr(kLocalBytes, length);
}

bool is_safetensors(std::string_view first) {
  constexpr std::size_t kLengthBytes = 8;  // a length below 2^56, then JSON
  return first.size() > kLengthBytes && first[kLengthBytes - 1] == 0 && first[kLengthBytes] == '{';
}

bool has_torch_ending(std::string_view name) {
  constexpr std::string_view kEndings[] = {".pt", ".pth", ".bin", ".ckpt"};
  return std::ranges::any_of(kEndings,
                             [name](std::string_view ending) { return name.ends_with(ending); });
}

bool is_pickle(std::string_view first) {
  return first.size() > 1 && first[0] == '\x80' && first[1] >= 2 && first[1] <= 5;
}

bool has_known_ending(std::string_view name) {
  constexpr std::string_view kEndings[] = {".safetensors", ".h5",  ".hdf5", ".keras",
                                           ".npz",         ".npy", ".gguf"};
  return has_torch_ending(name) || std::ranges::any_of(kEndings, [name](std::string_view ending) {
           return name.ends_with(ending);
         });
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

/// Runs of digits compare as numbers: "step-9" before "step-10".
bool comes_before(std::string_view a, std::string_view b) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (!is_digit(a[i]) || !is_digit(b[j])) {
      if (a[i] != b[j]) return a[i] < b[j];
      ++i, ++j;
      continue;
    }
    const auto number = [&](std::string_view text, std::size_t& at) {
      while (at < text.size() && text[at] == '0') ++at;
      const std::size_t begin = at;
      while (at < text.size() && is_digit(text[at])) ++at;
      return text.substr(begin, at - begin);
    };
    const std::string_view one = number(a, i), other = number(b, j);
    if (one.size() != other.size()) return one.size() < other.size();
    if (one != other) return one < other;
  }
  return a.size() - i < b.size() - j;
}

class Recognition {
 public:
  explicit Recognition(FileSystem& file_system) : file_system_(file_system) {}

  KnownFormat file(const fs::path& path) {
    std::error_code error;  // open() reports a missing file
    const fs::path real = fs::canonical(path, error);
    const std::unique_ptr<File> opened = file_system_.open(error ? path : real);
    std::string first(static_cast<std::size_t>(std::min(opened->size(), kSniffedBytes)), '\0');
    if (!first.empty()) {
      opened->read_at(0, std::as_writable_bytes(std::span(first)).data(), first.size());
    }
    return known_format_of_file(first, path.filename().string());
  }

  /// `depth` is the number of folders above that were searched.
  KnownFormat folder(const fs::path& path, int depth) {
    const std::vector<std::string> names = file_system_.list(path);
    if (KnownFormat whole = by_names(names); !whole.name.empty()) return whole;
    std::vector<std::string> folders;
    for (const std::string& name : names) {
      if (!name.starts_with('.') && is_folder(path / name)) folders.push_back(name);
    }
    if (KnownFormat run = depth < 2 ? by_folders(path, folders, depth) : KnownFormat();
        !run.name.empty()) {
      return run;
    }
    const bool has_steps = std::ranges::any_of(
        names, [](const std::string& name) { return name.starts_with("step-"); });
    return has_steps ? as(kShardwiseRoot) : by_files(path, names);
  }

 private:
  static KnownFormat by_names(std::span<const std::string> names) {
    const auto any = [&names](auto&& fits) { return std::ranges::any_of(names, fits); };
    const auto holds = [&names](std::string_view name) {
      return std::ranges::find(names, name) != names.end();
    };
    const auto ends = [&any](std::string_view ending) {
      return any([ending](const std::string& name) {
        return name.ends_with(ending) && !name.starts_with('.');
      });
    };
    if (holds("manifest.json")) return as(kShardwise);
    if (any([](const std::string& name) {
          return name.starts_with("shards-") && name.ends_with(".h5");
        })) {
      return as(kDamaged);
    }
    if (holds(".metadata")) return as(kDcp);
    if (holds("_METADATA") || holds("_CHECKPOINT_METADATA") || holds("manifest.ocdbt")) {
      return as(kOrbax);
    }
    if (any([](const std::string& name) { return name.starts_with("step-"); })) return {};
    if (ends(".safetensors") || ends(".safetensors.index.json")) {
      return as(holds("config.json") ? kHuggingFace : kSafetensors);
    }
    if (holds("model.npz") || holds("model.npz.index.json")) return as(kNpz);
    if (holds("model.h5") || holds("model.h5.index.json")) return as(kHdf5);
    if (ends(".distcp")) return as(kUnfinishedDcp);
    if (holds(".zarray") || holds(".zgroup") || holds("zarr.json")) return as(kZarr);
    if (any([](const std::string& name) { return name.starts_with("pytorch_model.bin"); })) {
      return as(kTorchFolder);
    }
    return {};
  }

  /// Checkpoints in folders of their own: steps of a run, or items of one step of Orbax.
  KnownFormat by_folders(const fs::path& path, std::span<const std::string> folders, int depth) {
    KnownFormat run;
    for (const std::string& name : folders) {
      if (run.steps.size() >= kMostSteps) break;
      KnownFormat inside = quietly([&] { return folder(path / name, depth + 1); });
      if (inside.name.empty() || (!run.name.empty() && inside.name != run.name)) continue;
      const bool is_item =
          inside.name == "orbax" && inside.steps.empty() &&
          std::ranges::none_of(name, [](unsigned char c) { return std::isdigit(c); });
      if (is_item) return as(kOrbax);
      run.name = inside.name;
      run.what = inside.what;
      if (inside.steps.empty()) run.steps.push_back(name);
      for (const std::string& step : inside.steps) {
        run.steps.push_back(fmt::format("{}/{}", name, step));
      }
    }
    std::ranges::sort(run.steps, comes_before);
    return run;
  }

  /// Files of one format that do not form a model together.
  KnownFormat by_files(const fs::path& path, std::span<const std::string> names) {
    KnownFormat run;
    std::size_t sniffed = 0;
    for (const std::string& name : names) {
      if (name.starts_with('.') || !has_known_ending(name) || is_folder(path / name)) continue;
      if (++sniffed > kMostSniffed) break;
      const KnownFormat inside = quietly([&] { return file(path / name); });
      if (inside.name.empty() || (!run.name.empty() && inside.name != run.name)) continue;
      run.name = inside.name;
      run.what = inside.what;
      run.steps.push_back(name);
    }
    std::ranges::sort(run.steps, comes_before);
    return run;
  }

  /// Skips files and folders that cannot be read.
  template <class Body>
  static KnownFormat quietly(Body&& body) {
    try {
      return body();
    } catch (const Error&) {
      return {};
    }
  }

  FileSystem& file_system_;
};

}  // namespace

KnownFormat known_format_of_file(std::string_view first, std::string_view name) {
  if (is_hdf5(first)) return as(kHdf5);
  const std::string_view member = first_zip_member(first);
  if (member.ends_with(".npy")) return as(kNpz);
  if (member.ends_with("/data.pkl")) return as(kTorch);
  if (first.starts_with("PK\3\4")) {
    if (has_torch_ending(name)) return as(kTorch);
    return as(name.ends_with(".npz") ? kNpz : Kind{"zip", "a zip archive, such as PyTorch's"});
  }
  if (name.ends_with(".npz.index.json")) return {"npz", "an index of npz files", {}};
  if (name.ends_with(".h5.index.json")) return {"hdf5", "an index of HDF5 files", {}};
  if (name.ends_with(".safetensors.index.json")) return as(kSafetensorsIndex);
  if (is_safetensors(first) || name.ends_with(".safetensors")) return as(kSafetensors);
  // The magic number that torch.save() pickled first, before it wrote zip archives.
  if (first.starts_with("\x80\2\x8a\nl\xfc\x9c"
                        "F\xf9 j\xa8P\x19"))
    return as(kTorch);
  if (is_pickle(first)) {
    return has_torch_ending(name) ? as(kTorch) : as({"pickle", "a Python pickle"});
  }
  struct Magic {
    std::string_view bytes;
    Kind kind;
  };
  static constexpr Magic kMagics[] = {
      {"\x93NUMPY", {"npy", "a .npy array"}},
      {"GGUF", {"gguf", "GGUF"}},
      {"\x1f\x8b", {"gzip", "gzip"}},
      {"version https://git-lfs", {"git-lfs", "a pointer to a Git LFS file"}},
      {"{", {"json", "JSON"}}};
  for (const Magic& magic : kMagics) {
    if (first.starts_with(magic.bytes)) return as(magic.kind);
  }
  return {};
}

KnownFormat known_format(const fs::path& path, FileSystem& file_system) {
  Recognition recognition(file_system);
  return is_folder(path) ? recognition.folder(path, 0) : recognition.file(path);
}

KnownFormat known_format(const fs::path& path) {
  try {
    return known_format(path, *posix_file_system());
  } catch (const Error&) {
    return {};
  }
}

std::string to_string(const KnownFormat& format) {
  if (format.steps.empty()) return std::string(format.what);
  constexpr std::size_t kMostShown = 5;
  const std::size_t count = format.steps.size();
  const std::size_t first = count - std::min(count, kMostShown);
  return fmt::format(
      "{} step{} ({}{}), {}{}", count, count == 1 ? "" : "s", first == 0 ? "" : ".., ",
      fmt::join(format.steps.begin() + std::ptrdiff_t(first), format.steps.end(), ", "),
      count == 1 ? "" : "each ", format.what);
}

}  // namespace shardwise
