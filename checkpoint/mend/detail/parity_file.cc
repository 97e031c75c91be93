#include "shardwise/mend/detail/parity_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/read/read_pipeline.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/detail/open_files.h"

namespace shardwise::mend_detail {
namespace {

// The part of all sums of a group that stays in a core's second-level cache while a block is added.
constexpr std::size_t kSliceBytes = std::size_t{32} << 10;

// The most bytes of restored blocks that are kept: neighbouring chunks share blocks.
constexpr std::size_t kRestoredBytes = std::size_t{64} << 20;

std::vector<std::size_t> all_rows(const detail::ParityLayout& layout) {
  std::vector<std::size_t> rows(static_cast<std::size_t>(layout.parity_blocks));
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return rows;
}

std::vector<std::byte*> places(std::byte* first, std::size_t count, std::size_t bytes_each) {
  std::vector<std::byte*> places(count);
  for (std::size_t i = 0; i < count; ++i) places[i] = first + i * bytes_each;
  return places;
}

/// The sums of some groups of a file, while its blocks are read in any order by several threads.
class GroupSums {
 public:
  GroupSums(const detail::ParityLayout& layout, const ErasureCode& code, std::uint64_t begin,
            std::uint64_t end)
      : layout_(layout),
        code_(code),
        begin_(begin),
        sums_(static_cast<std::size_t>(end - begin) * code.rows() * layout.block_bytes()),
        locks_((layout.block_bytes() + kSliceBytes - 1) / kSliceBytes *
               static_cast<std::size_t>(end - begin)) {}

  bool has(std::uint64_t group) const { return group >= begin_ && group < end(); }
  std::uint64_t end() const { return begin_ + sums_.size() / group_bytes(); }

  // Threads that add to the same group begin at different slices.
  void add(std::uint64_t block, std::span<const std::byte> bytes) {
    const auto group = static_cast<std::size_t>(layout_.group_of(block) - begin_);
    const std::size_t source = layout_.source_of(block);
    const std::size_t slices = (bytes.size() + kSliceBytes - 1) / kSliceBytes;
    std::vector<std::byte*> sums =
        places(sums_.data() + group * group_bytes(), code_.rows(), layout_.block_bytes());
    const std::size_t all_slices = locks_.size() / (sums_.size() / group_bytes());
    for (std::size_t i = 0; i < slices; ++i) {
      const std::size_t slice = (i + source * 5) % slices;
      const std::size_t at = slice * kSliceBytes;
      std::vector<std::byte*> slice_sums(sums);
      for (std::byte*& sum : slice_sums) sum += at;
      const MutexLock lock(locks_[group * all_slices + slice]);
      code_.add(source, bytes.subspan(at, std::min(kSliceBytes, bytes.size() - at)), slice_sums);
    }
  }

  /// The block of one row of one group.
  std::span<const std::byte> block(std::uint64_t group, std::size_t row) const {
    const auto number = static_cast<std::size_t>(group - begin_) * code_.rows() + row;
    return std::span(sums_).subspan(number * layout_.block_bytes(), layout_.block_bytes());
  }

 private:
  std::size_t group_bytes() const { return code_.rows() * layout_.block_bytes(); }

  const detail::ParityLayout& layout_;
  const ErasureCode& code_;
  const std::uint64_t begin_;
  std::vector<std::byte> sums_;
  std::vector<Mutex> locks_;
};

}  // namespace

void write_parity_file(FileSystem& file_system, const std::filesystem::path& path,
                       const detail::ParityOf& of, const detail::ParityLayout& layout, File& out,
                       const ParityEncoding& encoding) {
  const ErasureCode code(all_rows(layout));
  detail::OpenFiles files(1, [&](std::size_t) {
    std::unique_ptr<File> file = file_system.open(path);
    if (file->size() == of.bytes) return file;
    throw Error(ErrorCode::corrupt, fmt::format("write the parity of {}: found {} bytes, needed "
                                                "are {}",
                                                path.string(), file->size(), of.bytes));
  });
  detail::ReadBuffers buffers;
  detail::ParityHeader header{.layout = layout, .hash = of.hash, .data = {}, .parity = {}};
  header.data.resize(static_cast<std::size_t>(layout.blocks()));
  out.resize(layout.bytes());
  const std::size_t group_bytes = code.rows() * layout.block_bytes();
  const std::uint64_t at_once = std::max<std::uint64_t>(1, encoding.budget_bytes / 2 / group_bytes);
  for (std::uint64_t begin = 0; begin < layout.groups(); begin += at_once) {
    GroupSums sums(layout, code, begin, std::min(begin + at_once, layout.groups()));
    std::vector<detail::FileRange> ranges;
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t block = 0; block < layout.blocks(); ++block) {
      if (!sums.has(layout.group_of(block))) continue;
      ranges.push_back({0, block * layout.block_bytes(), layout.bytes_of(block)});
      blocks.push_back(block);
    }
    std::atomic<std::size_t> bytes_read{0};
    detail::ReadJob job{
        .files = files, .buffers = buffers, .ranges = ranges, .consume = {}, .describe = {}};
    job.consume = [&](std::size_t i, detail::RangeBytes& range) {
      const std::span<const std::byte> bytes = range.next();
      header.data[static_cast<std::size_t>(blocks[i])] = hash128(bytes.data(), bytes.size());
      sums.add(blocks[i], bytes);
      bytes_read += bytes.size();
    };
    job.describe = [&](std::size_t) { return path.string(); };
    if (encoding.progress) job.progress = [&] { encoding.progress(bytes_read.exchange(0)); };
    job.threads = encoding.threads;
    job.budget_bytes = encoding.budget_bytes / 2;
    detail::run_read_job(job);
    for (std::uint64_t group = begin; group < sums.end(); ++group) {
      for (std::size_t row = 0; row < code.rows(); ++row) {
        const std::span<const std::byte> bytes = sums.block(group, row);
        header.parity.push_back(hash128(bytes.data(), bytes.size()));
        out.write_at(layout.address(layout.parity_number(group, row)), bytes.data(), bytes.size());
      }
    }
  }
  const std::vector<std::byte> printed = detail::print_parity_header(header);
  out.write_at(0, printed.data(), printed.size());
  out.write_at(layout.second_header(), printed.data(), printed.size());
}

RestoredFile::RestoredFile(std::shared_ptr<File> damaged, std::unique_ptr<File> parity,
                           detail::ParityHeader header, std::string path)
    : damaged_(std::move(damaged)),
      parity_(std::move(parity)),
      header_(std::move(header)),
      path_(std::move(path)),
      states_(header_.data.size()) {}

void RestoredFile::refuse() const {
  throw Error(ErrorCode::unsupported, fmt::format("write {}: it is open for reading", path_));
}

// True if the block has its original bytes.
bool RestoredFile::read_block(std::uint64_t block, Bytes& bytes) {
  State& state = states_[static_cast<std::size_t>(block)];
  if (state == State::bad) return false;
  bytes.resize(layout().bytes_of(block));
  state = State::bad;
  if (!damaged_) return false;
  try {
    damaged_->read_at(block * layout().block_bytes(), bytes.data(), bytes.size());
  } catch (const Error&) {  // a bad place on the disk, or the file ends before
    return false;
  }
  if (hash128(bytes.data(), bytes.size()) == header_.data[static_cast<std::size_t>(block)]) {
    state = State::good;
  }
  return state == State::good;
}

bool RestoredFile::has_parity(std::uint64_t number, std::byte* bytes) {
  try {
    parity_->read_at(layout().address(number), bytes, layout().block_bytes());
  } catch (const Error&) {
    return false;
  }
  return hash128(bytes, layout().block_bytes()) == header_.parity[static_cast<std::size_t>(number)];
}

void RestoredFile::restore(std::uint64_t group) {
  const std::size_t block_bytes = layout().block_bytes();
  Bytes sums_room(static_cast<std::size_t>(layout().parity_blocks) * block_bytes);
  std::vector<std::size_t> rows;
  for (const std::size_t row : all_rows(layout())) {
    if (has_parity(layout().parity_number(group, row),
                   sums_room.data() + rows.size() * block_bytes)) {
      rows.push_back(row);
    }
  }
  const ErasureCode code(rows);
  const std::vector<std::byte*> sums = places(sums_room.data(), rows.size(), block_bytes);
  std::vector<std::size_t> missing;
  Bytes bytes;
  for (std::size_t source = 0; source < layout().sources(group); ++source) {
    if (!read_block(group + source * layout().groups(), bytes)) {
      missing.push_back(source);
    } else if (!rows.empty()) {
      code.add(source, bytes, sums);
    }
  }
  if (missing.size() > rows.size()) {
    why_lost_[group] =
        fmt::format("{} blocks of {} bytes are damaged, but its parity can restore {}",
                    missing.size(), block_bytes, rows.size());
    return;
  }
  Bytes found_room(missing.size() * block_bytes);
  const std::vector<std::byte*> found = places(found_room.data(), missing.size(), block_bytes);
  code.solve(missing, sums, found, block_bytes);
  if (restored_.size() * block_bytes > kRestoredBytes) restored_.clear();
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const std::uint64_t block = group + missing[i] * layout().groups();
    const std::span<const std::byte> made(found[i], layout().bytes_of(block));
    if (hash128(made.data(), made.size()) != header_.data[static_cast<std::size_t>(block)]) {
      why_lost_[group] = "what its parity restores has another hash";
      return;
    }
    restored_[block] = {made.begin(), made.end()};
  }
}

const RestoredFile::Bytes& RestoredFile::restored(std::uint64_t block) {
  const std::uint64_t group = layout().group_of(block);
  if (!restored_.contains(block) && !why_lost_.contains(group)) restore(group);
  if (const auto found = restored_.find(block); found != restored_.end()) return found->second;
  throw Error(ErrorCode::io, fmt::format("read {}: {}", path_, why_lost_.at(group)));
}

void RestoredFile::read_at(std::uint64_t offset, std::byte* data, std::size_t size) {
  if (offset > layout().file_bytes || size > layout().file_bytes - offset) {
    throw Error(ErrorCode::corrupt,
                fmt::format("read {}: {} bytes at {} are beyond its end", path_, size, offset));
  }
  while (size > 0) {
    const std::uint64_t block = offset / layout().block_bytes();
    const auto begin = static_cast<std::size_t>(offset % layout().block_bytes());
    const std::size_t part = std::min(size, layout().bytes_of(block) - begin);
    const State state = states_[static_cast<std::size_t>(block)];
    if (state == State::good) {
      damaged_->read_at(offset, data, part);
    } else {
      const bool is_there = state == State::unknown && read_block(block, room_);
      const Bytes& bytes = is_there ? room_ : restored(block);
      std::memcpy(data, bytes.data() + begin, part);
    }
    offset += part;
    data += part;
    size -= part;
  }
}

}  // namespace shardwise::mend_detail
