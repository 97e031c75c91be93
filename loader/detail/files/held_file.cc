#include "shardwise/loader/detail/files/held_file.h"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "shardwise/loader/detail/files/file_runs.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {

HeldFile::HeldFile(std::shared_ptr<const InputFile> file, std::size_t begin, std::size_t end,
                   HoldBudget& budget)
    : file_(std::move(file)),
      begin_(begin),
      bytes_(end - begin, HeldBytes::kBlockBytes, budget,
             [from = file_.get(), begin](std::size_t offset, std::span<std::byte> out) {
               return from->read_at(begin + offset, out);
             }) {}

void HeldFile::read(std::int64_t record, std::size_t offset, std::span<std::byte> out) const {
  if (out.empty()) return;
  if (const std::byte* kept = find(offset, out.size())) {
    std::memcpy(out.data(), kept, out.size());
    return;
  }
  const std::size_t count = file_->read_at(offset, out);
  if (count == out.size()) return;
  throw Error(
      ErrorCode::corrupt,
      fmt::format("read: {}: record {} at offset {} got {} bytes, needed is {}: the file was "
                  "cut short since it was opened",
                  file_->path(), record, offset, count, out.size()));
}

void HeldFile::read_box(std::int64_t record, std::size_t offset, const Box& stored,
                        const Box& wanted, std::size_t element_bytes, const BoxView& to) const {
  const auto stored_bytes = static_cast<std::size_t>(stored.num_elements()) * element_bytes;
  if (stored_bytes <= kMaxSpanBytes) {
    if (const std::byte* kept = find(offset, stored_bytes)) {
      copy_box(wanted, element_bytes, {kept, stored}, to);
      return;
    }
  }
  const RunWalk walk = walk_runs(wanted, stored, to.box);
  for_each_read(walk, element_bytes, [&](std::span<const FileRun> runs) {
    const std::size_t begin = runs.front().record_offset;
    const std::size_t size = runs.back().record_offset + runs.back().size_bytes - begin;
    if (runs.size() == 1) {
      read(record, offset + begin, {to.data + runs[0].target_offset, size});
      return;
    }
    std::unique_ptr<std::byte[]> scratch;
    const std::byte* from = find(offset + begin, size);
    if (from == nullptr) {
      scratch = std::make_unique_for_overwrite<std::byte[]>(size);
      read(record, offset + begin, {scratch.get(), size});
      from = scratch.get();
    }
    for (const FileRun& run : runs) {
      std::memcpy(to.data + run.target_offset, from + (run.record_offset - begin), run.size_bytes);
    }
  });
}

}  // namespace shardwise::detail
