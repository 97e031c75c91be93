#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "shardwise/loader/detail/files/file_rows.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/arrays.h"
#include "shardwise/loader/sources/detail/hdf5_rows.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::Hdf5Layout;
using detail::Hdf5Reader;
using detail::HeldFile;
using detail::HoldBudget;
using detail::InputFile;
using detail::RowReader;
using detail::with_tag;

[[noreturn]] void refuse_hdf5(ErrorCode code, const InputFile& file, const std::string& found) {
  throw Error(code, fmt::format("open HDF5 file {}: {}", file.path(), found));
}

// Data past the file's end was never written, or was cut off.
void check_place(const InputFile& file, const std::string& dataset, std::uint64_t offset,
                 std::size_t bytes) {
  if (offset <= file.size_bytes() && bytes <= file.size_bytes() - offset) return;
  refuse_hdf5(ErrorCode::corrupt, file,
              fmt::format("dataset \"{}\" has {} bytes at offset {}, the file has {}", dataset,
                          bytes, offset, file.size_bytes()));
}

/// The datasets of one file. Thread-compatible.
class FileDatasets {
 public:
  /// `path`: of a local file with the bytes of `file`.
  FileDatasets(std::shared_ptr<const InputFile> file, const std::filesystem::path& path,
               const std::vector<Hdf5Field>& wanted)
      : file_(std::move(file)) {
    for (const Hdf5Field& field : wanted) add(path, field);
  }

  std::shared_ptr<const Source> source(HoldBudget& budget) {
    std::vector<std::unique_ptr<const RowReader>> readers;
    readers.reserve(datasets_.size());
    for (std::size_t i = 0; i < datasets_.size(); ++i) {
      readers.push_back(reader(std::move(datasets_[i]), i, budget));
    }
    return detail::rows_source(records_, std::move(fields_), std::move(readers));
  }

 private:
  void add(const std::filesystem::path& path, const Hdf5Field& wanted);
  std::unique_ptr<const RowReader> reader(Hdf5Reader dataset, std::size_t field,
                                          HoldBudget& budget);
  const std::shared_ptr<const HeldFile>& held(HoldBudget& budget) {
    if (!held_) held_ = std::make_shared<const HeldFile>(file_, 0, file_->size_bytes(), budget);
    return held_;
  }

  std::shared_ptr<const InputFile> file_;
  std::shared_ptr<const HeldFile> held_;
  std::int64_t records_ = 0;
  std::vector<Hdf5Reader> datasets_;  // per field
  std::vector<std::string> names_;    // of the datasets
  std::vector<Field> fields_;
};

// Throws for a dataset of strings and the like, and says how to read the others.
Hdf5Reader numbers_of(const std::filesystem::path& path, const Hdf5Field& wanted) {
  try {
    return Hdf5Reader(path, wanted.dataset);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    throw Error(error, fmt::format("{}; a source takes the datasets that it is given by name, as "
                                   "hdf5:{}?x=x; text and ragged rows can come from JSONL "
                                   "(text=text, ids=i64[])",
                                   error.what(), path.filename().string()));
  }
}

void FileDatasets::add(const std::filesystem::path& path, const Hdf5Field& wanted) {
  Hdf5Reader dataset = numbers_of(path, wanted);
  const Shape& shape = dataset.dataset().shape;
  if (shape.empty()) {
    refuse_hdf5(ErrorCode::unsupported, *file_,
                fmt::format("dataset \"{}\" is a scalar, needed is a dim that counts the records",
                            wanted.dataset));
  }
  if (datasets_.empty()) records_ = shape[0];
  if (records_ != shape[0]) {
    refuse_hdf5(ErrorCode::invalid_argument, *file_,
                fmt::format("dataset \"{}\" has {} records, needed is {} as \"{}\" has",
                            wanted.dataset, shape[0], records_, names_[0]));
  }
  Field field{wanted.name, dataset.dataset().dtype, {}};
  for (std::size_t dim = 1; dim < shape.size(); ++dim) field.shape.push_back(shape[dim]);
  for (const Field& other : fields_) {
    if (other.name != field.name) continue;
    refuse_hdf5(ErrorCode::invalid_argument, *file_,
                fmt::format("field \"{}\" is asked for twice", field.name));
  }
  fields_.push_back(std::move(field));
  names_.push_back(wanted.dataset);
  datasets_.push_back(std::move(dataset));
}

std::unique_ptr<const RowReader> FileDatasets::reader(Hdf5Reader dataset, std::size_t field,
                                                      HoldBudget& budget) {
  const Hdf5Layout& layout = dataset.layout();
  const std::size_t element_bytes = size_bytes(dataset.dataset().dtype);
  const std::size_t bytes = dataset.dataset().bytes;
  switch (layout.kind) {
    case Hdf5Layout::Kind::contiguous: {
      check_place(*file_, names_[field], layout.offset, bytes);
      const std::size_t row_bytes = num_bytes(fields_[field].shape, element_bytes);
      return std::make_unique<const detail::FileRows>(
          held(budget), fields_[field],
          detail::RowLayout{layout.offset, row_bytes, dataset.dataset().swapped});
    }
    case Hdf5Layout::Kind::chunks: {
      const std::size_t chunk_bytes = num_bytes(layout.chunk, element_bytes);
      for (const std::uint64_t offset : layout.chunk_offsets) {
        check_place(*file_, names_[field], offset, chunk_bytes);
      }
      // If rows are spread over chunks and can be kept, they are put together once.
      if (!detail::has_whole_rows(dataset) && bytes <= budget.left_bytes) break;
      return detail::chunk_rows(held(budget), dataset);
    }
    case Hdf5Layout::Kind::library:
      break;
  }
  return detail::library_rows(std::move(dataset), budget);
}

}  // namespace

std::shared_ptr<const Source> open_hdf5(const std::vector<std::filesystem::path>& paths,
                                        const Hdf5Options& options) {
  std::vector<Hdf5Field> fields = options.fields;
  HoldBudget budget{options.hold_bytes};
  std::vector<std::shared_ptr<const Source>> sources;
  sources.reserve(paths.size());
  for (const std::filesystem::path& path : paths) {
    auto file = std::make_shared<const InputFile>(path);
    const std::uint64_t tag = file->tag();
    const std::filesystem::path local = file->local_path(path);
    if (tag != 0) {  // its blocks need not be fetched once more
      file = std::make_shared<const InputFile>(file->path(), posix_file_system()->open(local));
    }
    if (fields.empty()) {
      for (std::string& name : detail::hdf5_dataset_names(local)) fields.push_back({name, name});
      if (fields.empty()) refuse_hdf5(ErrorCode::not_found, *file, "its root has no dataset");
    }
    sources.push_back(with_tag(FileDatasets(file, local, fields).source(budget), tag));
  }
  return concat(std::move(sources));
}

}  // namespace shardwise
