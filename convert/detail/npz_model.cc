#include "shardwise/convert/detail/npz_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/convert/detail/box_runs.h"
#include "shardwise/convert/detail/numbers.h"
#include "shardwise/convert/detail/zip_directory.h"
#include "shardwise/convert/detail/zip_member.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/detail/npy_header.h"
#include "shardwise/storage/detail/open_files.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kArraySuffix = ".npy";

// Bytes of an array in Fortran order that are read at once, to be put into C order.
constexpr std::size_t kTransposedBytes = std::size_t{4} << 20;

Dims reversed(const Dims& dims) {
  Dims all = dims;
  std::reverse(all.begin(), all.end());
  return all;
}

/// Copies the elements of a box, whose first dim varies fastest, to row-major order.
void transpose(const Shape& shape, std::size_t element_bytes, std::span<const std::byte> from,
               std::byte* out) {
  const std::size_t rank = shape.size();
  std::vector<std::size_t> steps(rank, element_bytes);  // in `out`
  for (std::size_t d = rank - 1; d-- > 0;) steps[d] = steps[d + 1] * as_size(shape[d + 1]);
  Index index = Index::filled(rank, 0);
  std::size_t to = 0;
  for (std::size_t at = 0; at < from.size(); at += element_bytes) {
    std::memcpy(out + to, from.data() + at, element_bytes);
    for (std::size_t d = 0; d < rank; ++d) {
      to += steps[d];
      if (++index[d] < shape[d]) break;
      to -= steps[d] * as_size(shape[d]);
      index[d] = 0;
    }
  }
}

void swap_numbers(DType dtype, std::span<std::byte> elements) {
  const std::size_t bytes = numbers_of(dtype).bytes;
  for (std::size_t at = 0; at < elements.size(); at += bytes) {
    const std::span<std::byte> number = elements.subspan(at, bytes);
    std::reverse(number.begin(), number.end());
  }
}

/// An array of the archive.
struct Array {
  TensorInfo info;
  NpyHeader header;
  ZipMember member;
};

/// Thread-safe.
class NpzTensors final : public BoxReader {
 public:
  NpzTensors(fs::path path, std::shared_ptr<File> archive, std::vector<Array> arrays)
      : path_(std::move(path)),
        archive_(std::move(archive)),
        arrays_(std::move(arrays)),
        checks_(arrays_.size()),
        members_(arrays_.size(), [this](std::size_t array) {
          return std::make_unique<ZipMemberFile>(archive_, arrays_[array].member);
        }) {
    for (const Array& array : arrays_) tensors_.push_back(array.info);
  }

  std::span<const TensorInfo> tensors() const override { return tensors_; }

  void read(std::size_t tensor, const Box& box, std::span<std::byte> out) const override {
    const Array& array = arrays_[tensor];
    try {
      const std::shared_ptr<File> member = members_.at(tensor);
      check(tensor, *member);
      read_elements(array, *member, box, out);
    } catch (const Error& error) {
      throw Error(error, fmt::format("tensor {} of {}: {}", shown(array.info.name), path_.string(),
                                     error.what()));
    }
    if (array.header.swapped) swap_numbers(array.info.dtype, out);
  }

 private:
  /// Thread-safe.
  struct Check {
    Mutex mutex;
    bool is_done SHARDWISE_GUARDED_BY(mutex) = false;
  };

  void check(std::size_t array, File& member) const {
    Check& check = checks_[array];
    const MutexLock lock(check.mutex);
    if (!check.is_done) static_cast<ZipMemberFile&>(member).check();
    check.is_done = true;
  }

  static void read_elements(const Array& array, File& member, const Box& box,
                            std::span<std::byte> out) {
    const std::size_t element_bytes = size_bytes(array.info.dtype);
    const std::uint64_t begin = array.header.header_bytes;
    if (!array.header.fortran_order) {
      return read_box(member, begin, array.info.shape, element_bytes, box, out);
    }
    std::vector<std::byte> part;
    for_each_slab(box, element_bytes, kTransposedBytes, [&](const Box& slab) {
      const std::size_t bytes = num_bytes(slab.shape(), element_bytes);
      part.resize(bytes);
      read_box(member, begin, reversed(array.info.shape), element_bytes,
               Box(reversed(slab.begin()), reversed(slab.end())), part);
      transpose(slab.shape(), element_bytes, part, out.data());
      out = out.subspan(bytes);
    });
  }

  const fs::path path_;
  const std::shared_ptr<File> archive_;
  const std::vector<Array> arrays_;  // sorted by name
  mutable std::deque<Check> checks_;
  mutable OpenFiles members_;
  std::vector<TensorInfo> tensors_;
};

/// Reads a member's header. Throws unsupported if its elements are not numbers.
NpyHeader header_of(const fs::path& path, const std::shared_ptr<File>& archive,
                    const ZipMember& member) {
  ZipMemberFile file(archive, member);
  std::uint64_t at = 0;
  NpyHeader header = read_npy_header(
      fmt::format("{}: member {}", path.string(), shown(member.name)),
      [&](std::span<std::byte> out) {
        const std::uint64_t left = member.bytes - at;
        const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(left, out.size()));
        file.read_at(at, out.data(), size);
        at += size;
        return size;
      });
  if (const std::uint64_t bytes = member.bytes - at; bytes != header.data_bytes) {
    throw Error(ErrorCode::corrupt,
                fmt::format("open npy file {}: member {}: it has {} bytes of data, its shape {} of "
                            "{} needs {}",
                            path.string(), shown(member.name), bytes, to_string(header.shape),
                            name(header.dtype), header.data_bytes));
  }
  return header;
}

}  // namespace

ModelSource open_npz(const fs::path& path, const std::shared_ptr<FileSystem>& file_system) {
  const std::shared_ptr<File> archive = open_linked(*file_system, path);
  ModelSource source{kNpz, nullptr};
  std::vector<Array> arrays;
  std::vector<ZipMember> members;
  try {
    members = read_zip_directory(*archive);
  } catch (const Error& error) {
    throw Error(error, fmt::format("read {}: {}", path.string(), error.what()));
  }
  for (ZipMember& member : members) {
    const std::string text = shown(member.name);
    if (!member.name.ends_with(kArraySuffix) || !is_utf8(member.name)) {
      source.left_out.push_back(text + ": it is no array");
      continue;
    }
    const std::string name = member.name.substr(0, member.name.size() - kArraySuffix.size());
    try {
      Array array{.info = {}, .header = header_of(path, archive, member), .member = {}};
      array.info.name = name;
      array.info.dtype = array.header.dtype;
      array.info.shape = array.header.shape;
      array.info.logical_bytes = array.header.data_bytes;
      array.member = std::move(member);
      arrays.push_back(std::move(array));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      source.left_out.push_back(shown(name) + ": its elements are no numbers that shardwise has");
    }
  }
  std::ranges::sort(arrays, {},
                    [](const Array& array) -> const std::string& { return array.info.name; });
  source.tensors = std::make_unique<NpzTensors>(path, archive, std::move(arrays));
  return source;
}

}  // namespace shardwise::detail
