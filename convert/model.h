#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class FileSystem;

/// The format at a path, as ModelReader::format() calls it; empty for any other format and for
/// paths that cannot be read. Looks at the first bytes of a file, or the names in a folder.
std::string_view model_format(const std::filesystem::path& path,
                              std::shared_ptr<FileSystem> file_system = nullptr);

/// The tensors of a file of another format: safetensors, HDF5, npz (docs/formats.md), recognised by
/// content, not by name. Boxes are read from the file; memory is bounded.
///
///   const ModelReader weights("model.safetensors");
///   reshard_checkpoint(weights, {"checkpoints", 2}, Mesh::parse("model=2"),
///                      SpecRules::parse("w=-,model; *=-"));
///
/// Thread-safe.
class ModelReader final : public BoxReader {
 public:
  /// `source` is a file, an .index.json of safetensors that says which file has which tensor, or a
  /// folder with one of safetensors or such an index; links are followed. Reads and checks the
  /// description of the tensors, no data. Throws not_found; corrupt naming file and tensor;
  /// unsupported for other formats. A null file_system is the real one; HDF5's library opens its
  /// file itself.
  explicit ModelReader(const std::filesystem::path& source,
                       std::shared_ptr<FileSystem> file_system = nullptr);
  ~ModelReader() override;
  ModelReader(ModelReader&&) noexcept;
  ModelReader& operator=(ModelReader&&) noexcept;

  /// Sorted by name. Includes tensors whose dtype safetensors has and this build lacks.
  std::span<const TensorInfo> tensors() const override;

  /// Throws unsupported for a tensor of a foreign dtype, corrupt if the file has changed, io,
  /// invalid_argument if the box leaves the tensor or out is not exactly its size.
  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override;

  /// "safetensors", "hdf5", "npz".
  std::string_view format() const;

  /// The parts of the file that cannot be read here, each with its reason: "names: strings".
  std::span<const std::string> left_out() const;

  /// All `__metadata__` of safetensors, as a JSON object of strings; "{}" without metadata. If
  /// files of a model have different values for a key, those of later files are under "FILE: KEY".
  const std::string& metadata() const;

  /// The metadata as a checkpoint's user_json: the exported checkpoint's, if there was one, else
  /// {"safetensors_metadata": {..}}, or "{}" for none. An export undoes it.
  const std::string& user_json() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

template <class... T>
void open_model(const T&...) = delete;  // ModelReader(path)
template <class... T>
void import_model(const T&...) = delete;  // reshard_checkpoint(ModelReader(path), {root, step}, ..)

struct ExportOptions {
  /// As ModelReader::format() calls it; empty: by the target's ending, .safetensors, .npz or .h5;
  /// safetensors for a folder.
  std::string format = {};

  /// Most data bytes per file; a larger tensor has a file of its own. 0: all in one file.
  std::size_t max_shard_bytes = 0;

  /// For `__metadata__` of safetensors: a JSON object of strings. An exported checkpoint's
  /// user_json is added: as key "user", or as it was before an import. Other formats have no place
  /// for it.
  std::string metadata = "{}";

  /// A folder of Hugging Face. Its config.json, generation_config.json and tokenizer's files are
  /// copied into the target, a folder of safetensors, so that from_pretrained() of transformers
  /// opens it. The config's `dtype` and `torch_dtype` become the dtype that most bytes have. If the
  /// config says tie_word_embeddings, `lm_head.weight` is left out if it equals an embedding
  /// element for element. Empty: no config is written.
  std::filesystem::path config_from = {};

  /// Selects, renames and casts the tensors.
  TensorEdits edits = {};

  Existing existing = Existing::fail;

  /// Most host bytes held at once. At least 8 MiB.
  std::size_t memory_budget_bytes = std::size_t{256} << 20;

  int threads = 0;  ///< for decoding a checkpoint; 0: as many as the machine has cores
  ProgressFunction progress = nullptr;

  /// Reads and writes all files; null: posix_file_system().
  std::shared_ptr<FileSystem> file_system = nullptr;
};

/// The result of an export.
struct ExportStats {
  std::vector<std::filesystem::path> files;
  std::size_t logical_bytes = 0;
  std::size_t file_bytes = 0;
  double total_seconds = 0;
};

/// Writes the tensors: safetensors as its library does, bit for bit; npz as numpy reads it, stored;
/// HDF5 as contiguous datasets, with the parts of a name between "/" as groups. A target with the
/// format's ending is one file; any other is a folder, which gets `model.safetensors` (.npz, .h5),
/// or if several files are needed, `model-00001-of-00002.safetensors`, .. and
/// `model.safetensors.index.json`. The target appears under its name only when all of it is on the
/// disk. With Existing::replace, it replaces an existing file, or a folder that holds nothing but
/// such files. With Existing::skip, nothing is written if anything has that name, and the
/// statistics are empty.
///
///   export_model(CheckpointReader("checkpoints/step-00000001"), "w.safetensors");
///
/// Throws already_exists; not_found if the folder above the target does not exist; unsupported,
/// before anything is written, naming all tensors whose dtype or name the format cannot hold;
/// invalid_argument; io. Errors of the source pass through.
ExportStats export_model(const BoxReader& source, const std::filesystem::path& target,
                         const ExportOptions& options = {});

/// The same for the checkpoint at `source`, with its user_json. A tensor that Python saved under
/// several names, such as tied weights, is written under each. Other objects_json and the tensors'
/// shardings are left out.
ExportStats export_model(const std::filesystem::path& source, const std::filesystem::path& target,
                         const ExportOptions& options = {});

/// The same for formats that packages of Python write, "dcp" and "orbax", which are always folders:
/// `write` gets an empty folder, and puts all files into it. Then they are synced, and the folder
/// gets the target's name. With Existing::replace, it replaces a folder that holds nothing but a
/// checkpoint of that format. The files are in the order of their names, the logical bytes 0.
///
/// Throws as export_model; errors of `write` pass through.
ExportStats export_folder(const std::filesystem::path& target, std::string_view format,
                          Existing existing,
                          const std::function<void(const std::filesystem::path& folder)>& write);

}  // namespace shardwise
