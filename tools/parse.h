#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "foreign_format.h"
#include "shardwise/checkpoint/read_options.h"
#include "shardwise/convert/model.h"
#include "shardwise/reshape/edits.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"
#include "usage.h"

namespace shardwise::tools {

/// Mesh::parse, with the device order from a list of its own ("3,1,0,2") if that is not empty.
/// Throws invalid_argument, also for an empty text: a mesh without axes is most likely a slip.
Mesh parse_mesh(const std::string& mesh, const std::string& devices = {});

/// Throws unsupported for a mesh of more devices than `command` lists one by one.
void check_listed(const Mesh& mesh, std::string_view command);

struct ByteRange {
  std::size_t least, most;
};

/// A number of bytes: "1048576", "512M", "64MiB", "1.5G", "2GB". K, M, G, T and KiB, MiB, .. are
/// powers of 1024, KB, MB, .. of 1000; letters may be small. Throws invalid_argument, saying what
/// is allowed.
std::size_t parse_bytes(std::string_view text, ByteRange allowed);

/// What `read` makes of an option's words. Words that cannot be read are bad usage. Other errors
/// pass: words that ask for too much, or a file that is missing.
template <class Read>
auto words_of(std::string_view command, std::string_view option, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    const bool unreadable =
        error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::no_such_name;
    if (!unreadable) throw;
    throw BadUsage(std::string(command) + ": " + std::string(option) + ": " + error.what());
  }
}

/// Which tensors are written, and how they change: texts as TensorEdits reads them.
struct EditOptions {
  std::vector<std::string> select, exclude, renames, casts, transposes, resizes, splits, joins;
  std::string strip_prefix;  ///< of names that begin so, which alone are taken; empty: none
};

/// The edits that a command's options ask for. Throws BadUsage.
TensorEdits parse_edits(std::string_view command, const EditOptions& options);

/// The advice after an unknown word: `did you mean "reshard"?`, or the list of known words.
std::string suggestion(std::string_view word, const std::vector<std::string>& known);

/// Whether a path is of another format that import takes: safetensors, HDF5, npz. Files of
/// checkpoints are not.
bool is_model(const std::filesystem::path& path);

/// Opens a path that is_model() accepts, and names on stderr the parts that are left out.
std::unique_ptr<ModelReader> open_model(const std::filesystem::path& path);

/// The tensors of a checkpoint, as resolve_checkpoint finds it, of a model, or of a checkpoint of
/// DCP or Orbax; of these only tensors that the patterns match are sure to be there. Run its caller
/// by run_reading().
std::unique_ptr<BoxReader> open_tensors(const std::string& path, const ReadOptions& options,
                                        const std::vector<std::string>& patterns = {});

/// Names, dtypes and shapes of the same. Elements of DCP and Orbax cannot be read.
std::unique_ptr<BoxReader> describe_tensors(const std::string& path);

/// The number of a tensor in a reader that open_tensors(path) gave. Throws no_such_name, with the
/// nearest names or how to see all.
std::size_t find_tensor(const BoxReader& reader, const std::string& path, const std::string& name);

/// The numbers of the tensors that a pattern matches, in order; of all if there is no pattern. In a
/// pattern * and ? stand for any characters. Throws no_such_name for one that matches none.
std::vector<std::size_t> find_tensors(const BoxReader& reader, const std::string& path,
                                      const std::vector<std::string>& patterns);

/// As the tensor was saved; whole on one device if that is not known.
Sharding saved_sharding(const TensorInfo& tensor);

/// Whether pieces, chunks and stored bytes of a tensor are known: of very many shard files, a
/// reader does not open all.
inline bool knows_pieces(const TensorInfo& tensor) {
  return tensor.pieces > 0 || tensor.logical_bytes == 0;
}

/// The text itself, or, if it begins with "@", the content of the file named after it. Throws
/// not_found, io.
std::string text_or_file(const std::string& argument);

}  // namespace shardwise::tools
