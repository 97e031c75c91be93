#include "shardwise/loader/sources/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "shardwise/loader/detail/file_runs.h"
#include "shardwise/loader/detail/gzip_reader.h"
#include "shardwise/loader/detail/input_file.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::FileRun;
using detail::GzipReader;
using detail::InputFile;
using detail::kMaxGzipRatio;

constexpr std::size_t kUnpackStepBytes = std::size_t{1} << 20;

struct Header {
  DType dtype;
  std::int64_t records;
  Shape record_shape;
  std::size_t record_bytes;
  std::size_t header_bytes;
  std::size_t data_bytes;
};

[[noreturn]] void fail(ErrorCode code, const InputFile& file, const std::string& found) {
  throw Error(code, fmt::format("open idx file {}: {}", file.path(), found));
}

DType element_type(const InputFile& file, std::byte code) {
  switch (std::to_integer<int>(code)) {
    case 0x08:
      return DType::u8;
    case 0x09:
      return DType::i8;
    case 0x0b:
      return DType::i16;
    case 0x0c:
      return DType::i32;
    case 0x0d:
      return DType::f32;
    case 0x0e:
      return DType::f64;
    default:
      fail(ErrorCode::unsupported, file,
           fmt::format("element type {:#04x}, needs 0x08, 0x09, 0x0b, 0x0c, 0x0d or 0x0e",
                       std::to_integer<int>(code)));
  }
}

// The one gate for what a file says about itself. `read` gives the next bytes of the idx stream.
Header read_header(const InputFile& file,
                   const std::function<std::size_t(std::span<std::byte>)>& read) {
  std::array<std::byte, 4> magic;
  const std::size_t magic_bytes = read(magic);
  if (magic_bytes < magic.size()) {
    fail(ErrorCode::corrupt, file, fmt::format("{} bytes, a header needs 4 or more", magic_bytes));
  }
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) {
    fail(ErrorCode::corrupt, file,
         fmt::format("begins with {:#04x} {:#04x}, needs two zero bytes",
                     std::to_integer<int>(magic[0]), std::to_integer<int>(magic[1])));
  }
  const DType dtype = element_type(file, magic[2]);
  const auto rank = std::to_integer<std::size_t>(magic[3]);
  if (rank == 0) fail(ErrorCode::corrupt, file, "rank 0, needs a dim that counts the records");
  if (rank > kMaxRank) {
    fail(ErrorCode::unsupported, file, fmt::format("rank {}, at most {} here", rank, kMaxRank));
  }
  std::array<std::byte, 4 * kMaxRank> sizes;
  const std::size_t sizes_bytes = read(std::span(sizes).first(4 * rank));
  if (sizes_bytes < 4 * rank) {
    fail(ErrorCode::corrupt, file,
         fmt::format("ends within the header: {} bytes of sizes, rank {} "
                     "needs {}",
                     sizes_bytes, rank, 4 * rank));
  }
  Header header{dtype, 0, {}, size_bytes(dtype), magic.size() + 4 * rank, 0};
  bool fits = true;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    std::int64_t extent = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      extent = extent << 8 | std::to_integer<std::int64_t>(sizes[4 * dim + i]);
    }
    if (dim == 0) {
      header.records = extent;
      continue;
    }
    header.record_shape.push_back(extent);
    fits = fits && !__builtin_mul_overflow(header.record_bytes, static_cast<std::size_t>(extent),
                                           &header.record_bytes);
  }
  fits =
      fits && !__builtin_mul_overflow(header.record_bytes, static_cast<std::size_t>(header.records),
                                      &header.data_bytes);
  if (!fits || !std::in_range<std::int64_t>(header.data_bytes)) {
    fail(ErrorCode::corrupt, file,
         fmt::format("{} records of shape {} {} are over 2^63 bytes", header.records,
                     to_string(header.record_shape), name(dtype)));
  }
  return header;
}

std::string needs(const Header& header) {
  return fmt::format("{} records of shape {} {} need {}", header.records,
                     to_string(header.record_shape), name(header.dtype), header.data_bytes);
}

template <class Word, class Swap>
void swap_words(std::span<std::byte> data, Swap swap) {
  for (std::size_t at = 0; at < data.size(); at += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data.data() + at, sizeof(Word));
    word = swap(word);
    std::memcpy(data.data() + at, &word, sizeof(Word));
  }
}

void big_endian_to_native(std::span<std::byte> data, std::size_t element_bytes) {
  if (std::endian::native == std::endian::big) return;
  switch (element_bytes) {
    case 2:
      return swap_words<std::uint16_t>(data, [](auto w) { return __builtin_bswap16(w); });
    case 4:
      return swap_words<std::uint32_t>(data, [](auto w) { return __builtin_bswap32(w); });
    case 8:
      return swap_words<std::uint64_t>(data, [](auto w) { return __builtin_bswap64(w); });
  }
}

class IdxFile final : public Source {
 public:
  IdxFile(std::unique_ptr<const InputFile> file, std::string field_name, const Header& header)
      : file_(std::move(file)),
        header_(header),
        field_{std::move(field_name), header.dtype, header.record_shape},
        record_box_(Box::whole(header.record_shape)) {}

  std::int64_t size() const override { return header_.records; }
  std::span<const Field> fields() const override { return {&field_, 1}; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    for (const FieldBox& box : boxes) read_one(sample.record, box.to);
  }

 private:
  void read_one(std::int64_t record, const BoxView& to) const;
  void read_runs(std::int64_t record, std::span<const FileRun> runs, std::byte* to) const;
  void read_all(std::int64_t record, std::size_t record_offset, std::span<std::byte> out) const;

  std::unique_ptr<const InputFile> file_;
  Header header_;
  Field field_;
  Box record_box_;
};

void IdxFile::read_one(std::int64_t record, const BoxView& to) const {
  const std::size_t element_bytes = size_bytes(header_.dtype);
  if (to.box == record_box_) {  // the usual case: no walk
    read_all(record, 0, {to.data, header_.record_bytes});
    big_endian_to_native({to.data, header_.record_bytes}, element_bytes);
    return;
  }
  detail::for_each_read(walk_runs(to.box, record_box_, to.box), element_bytes,
                        [&](std::span<const FileRun> runs) { read_runs(record, runs, to.data); });
  big_endian_to_native({to.data, num_bytes(to.box.shape(), element_bytes)}, element_bytes);
}

void IdxFile::read_runs(std::int64_t record, std::span<const FileRun> runs, std::byte* to) const {
  if (runs.size() == 1) {
    read_all(record, runs[0].record_offset, {to + runs[0].target_offset, runs[0].size_bytes});
    return;
  }
  const std::size_t begin = runs.front().record_offset;
  const std::size_t size = runs.back().record_offset + runs.back().size_bytes - begin;
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(size);
  read_all(record, begin, {scratch.get(), size});
  for (const FileRun& run : runs) {
    std::memcpy(to + run.target_offset, scratch.get() + (run.record_offset - begin),
                run.size_bytes);
  }
}

void IdxFile::read_all(std::int64_t record, std::size_t record_offset,
                       std::span<std::byte> out) const {
  const std::size_t offset = header_.header_bytes +
                             static_cast<std::size_t>(record) * header_.record_bytes +
                             record_offset;
  const std::size_t count = file_->read_at(offset, out);
  if (count == out.size()) return;
  throw Error(ErrorCode::corrupt,
              fmt::format("read: {}: record {} at offset {} got {} bytes, needs {}: the file was "
                          "cut short since it was opened",
                          file_->path(), record, offset, count, out.size()));
}

std::shared_ptr<const Source> open_compressed(const InputFile& file, std::string field_name) {
  GzipReader reader(file);
  const Header header =
      read_header(file, [&](std::span<std::byte> out) { return reader.read(out); });
  // Before anything of the size that the header claims is allocated.
  if (header.data_bytes / kMaxGzipRatio > file.size_bytes()) {
    fail(ErrorCode::corrupt, file,
         fmt::format("{} compressed bytes, too few: {} bytes", file.size_bytes(), needs(header)));
  }
  std::vector<std::byte> data;
  data.reserve(header.data_bytes);
  while (data.size() < header.data_bytes) {
    const std::size_t done = data.size();
    data.resize(done + std::min(header.data_bytes - done, kUnpackStepBytes));
    const std::size_t count = reader.read(std::span(data).subspan(done));
    if (done + count < data.size()) {
      fail(ErrorCode::corrupt, file,
           fmt::format("unpacks to {} bytes of data, {}", done + count, needs(header)));
    }
  }
  std::byte extra{};
  if (reader.read({&extra, 1}) != 0) {  // also makes the reader compare the last checksum
    fail(ErrorCode::corrupt, file, fmt::format("unpacks to more data than {}", needs(header)));
  }
  big_endian_to_native(data, size_bytes(header.dtype));
  return memory_source({std::move(field_name), header.dtype, header.record_shape}, header.records,
                       std::move(data));
}

std::shared_ptr<const Source> open_plain(std::unique_ptr<const InputFile> file,
                                         std::string field_name) {
  std::size_t offset = 0;
  const Header header = read_header(*file, [&](std::span<std::byte> out) {
    const std::size_t count = file->read_at(offset, out);
    offset += count;
    return count;
  });
  const std::size_t data_bytes = file->size_bytes() - std::min(file->size_bytes(), offset);
  if (data_bytes != header.data_bytes) {
    fail(ErrorCode::corrupt, *file, fmt::format("{} bytes of data, {}", data_bytes, needs(header)));
  }
  return std::make_shared<IdxFile>(std::move(file), std::move(field_name), header);
}

}  // namespace

std::shared_ptr<const Source> open_idx(const std::filesystem::path& path, std::string field_name) {
  auto file = std::make_unique<const InputFile>(path);
  std::array<std::byte, 2> magic{};
  file->read_at(0, magic);
  constexpr std::array<std::byte, 2> kGzipMagic{std::byte{0x1f}, std::byte{0x8b}};
  if (magic == kGzipMagic) return open_compressed(*file, std::move(field_name));
  return open_plain(std::move(file), std::move(field_name));
}

}  // namespace shardwise
