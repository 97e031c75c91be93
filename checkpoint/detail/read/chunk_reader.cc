#include "shardwise/checkpoint/detail/read/chunk_reader.h"

#include <algorithm>
#include <utility>

#include "shardwise/checkpoint/detail/read/chunk_scatter.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::detail {
namespace {

// A call that reads less than this copies through the cache: the bytes are probably used at once,
// as by a reshard or by a program that reads a part. So do small chunks.
constexpr std::size_t kLeastStreamedBytes = std::size_t{8} << 20;
constexpr std::size_t kLeastStreamedChunk = std::size_t{64} << 10;

/// Bytes of a chunk without padding, which it has if it reaches over its piece's edge.
std::size_t logical_bytes(const StoredCheckpoint& checkpoint, const ChunkId& id) {
  return static_cast<std::size_t>(checkpoint.box(id).num_elements()) *
         size_bytes(checkpoint.tensor(id).dtype);
}

}  // namespace

ChunkReader::ChunkReader(StoredCheckpoint checkpoint, const ReadOptions& options)
    : directory_(checkpoint.directory),
      checkpoint_(std::make_shared<StoredCheckpoint>(std::move(checkpoint))),
      options_(options),
      threads_(Executor::threads_for(options.threads)) {
  if (options_.read_once) checkpoint_->files->read_once();
}

ChunkReader::View::~View() {
  const MutexLock lock(reader_.mutex_);
  checkpoint_.reset();
}

// Files are opened and read outside of the lock: a reader of one file waits for no other's disk.
// Two that need the same file at the same time may both read its tables.
ChunkReader::View ChunkReader::checkpoint_for(std::span<const ReadTarget> targets) {
  std::vector<std::pair<std::size_t, FileEntry>> missing;
  std::shared_ptr<OpenFiles> files;
  {
    const MutexLock lock(mutex_);
    for (const std::size_t number : files_to_load(*checkpoint_, targets)) {
      missing.emplace_back(number, checkpoint_->manifest.files[number]);
    }
    if (missing.empty()) return {*this, checkpoint_};
    files = checkpoint_->files;
  }
  std::vector<FileTables> tables;
  tables.reserve(missing.size());
  for (const auto& [number, entry] : missing) {
    tables.push_back(read_file_tables(*files->at(number), directory_, entry));
  }
  const MutexLock lock(mutex_);
  if (checkpoint_.use_count() > 1) checkpoint_ = std::make_shared<StoredCheckpoint>(*checkpoint_);
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const std::size_t number = missing[i].first;
    if (checkpoint_->is_loaded[number]) continue;  // another thread was faster
    add_file_tables(*checkpoint_, number, std::move(tables[i]));
  }
  return {*this, checkpoint_};
}

/// One call of fill. Immutable but for the count, so that all lanes share it.
struct ChunkReader::Call {
  const StoredCheckpoint& checkpoint;
  std::span<const ReadTarget> targets;
  ReadPlan plan;
  std::size_t total_bytes = 0;
  std::atomic<std::size_t> done_bytes{0};
};

// The part of a chunk that nobody wants is read, too: the hashes are of the whole chunk.
void ChunkReader::consume(Call& call, std::size_t number, RangeBytes& bytes) {
  const StoredCheckpoint& checkpoint = call.checkpoint;
  const ChunkId& id = call.plan.chunk(number);
  const bool stream = call.total_bytes >= kLeastStreamedBytes &&
                      checkpoint.decoded_bytes(id) >= kLeastStreamedChunk;
  ChunkScatter scatter(checkpoint, id, call.targets, call.plan.targets(number),
                       stream ? CopyBy::stream : CopyBy::cache);
  if (stored_raw(checkpoint, id)) {
    for (auto part = bytes.next(); !part.empty(); part = bytes.next()) scatter.put(part);
    check_chunk_hash(checkpoint, id, scatter.hash());
  } else {
    const std::span<const std::byte> stored = bytes.next();
    check_chunk_hash(checkpoint, id, hash64(stored.data(), stored.size()));
    const ScratchPool<Decoder>::Loan decoder(decoders_);
    for_each_unshuffled(decompress_chunk(checkpoint, id, stored, *decoder),
                        size_bytes(checkpoint.tensor(id).dtype),
                        [&](std::span<const std::byte> window) { scatter.put(window); });
    check_decoded_hash(checkpoint, id, scatter.hash());
  }
  // If nobody asks, threads need not share a counter.
  if (options_.progress) call.done_bytes += logical_bytes(checkpoint, id);
}

void ChunkReader::fill(std::span<const ReadTarget> targets) {
  const View view = checkpoint_for(targets);
  const StoredCheckpoint& checkpoint = *view;
  Call call{checkpoint, targets, ReadPlan(checkpoint, targets)};
  const ReadPlan& plan = call.plan;
  ReadJob job{.files = *checkpoint.files,
              .buffers = buffers_,
              .ranges = plan.ranges(),
              .consume = {},
              .describe = {}};
  std::size_t stored_bytes = 0, all_decoded_bytes = 0;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const ChunkId& id = plan.chunk(i);
    const std::size_t decoded = checkpoint.decoded_bytes(id);
    stored_bytes += plan.ranges()[i].bytes;
    all_decoded_bytes += decoded;
    call.total_bytes += logical_bytes(checkpoint, id);
    std::size_t call_bytes = ChunkScatter::held_bytes(plan.targets(i).size());
    if (!stored_raw(checkpoint, id)) call_bytes += decoded;  // the decoder holds it, shuffled
    job.call_bytes = std::max(job.call_bytes, call_bytes);
  }
  if (options_.read_once) {
    const std::size_t files = checkpoint.manifest.files.size() + checkpoint.linked.size();
    for (std::size_t f = 0; f < files; ++f) job.file_sizes.push_back(checkpoint.file_bytes(f));
  }
  job.consume = [&](std::size_t number, RangeBytes& bytes) { consume(call, number, bytes); };
  job.describe = [&](std::size_t number) { return checkpoint.describe(plan.chunk(number)); };
  job.threads = threads_;
  job.is_remote = in_bucket(checkpoint.directory);
  job.budget_bytes = options_.memory_budget_bytes;
  if (options_.progress) {
    job.progress = [&] {
      MutexLock lock(progress_mutex_);
      options_.progress({call.done_bytes, call.total_bytes});
    };
  }
  run_read_job(job);
  chunks_ += static_cast<std::int64_t>(plan.size());
  stored_bytes_ += stored_bytes;
  decoded_bytes_ += all_decoded_bytes;
}

ReadStats ChunkReader::stats() const { return {chunks_, stored_bytes_, decoded_bytes_}; }

}  // namespace shardwise::detail
