#include "shardwise/checkpoint/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <tuple>

#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/checkpoint/detail/parity/parity_check.h"
#include "shardwise/checkpoint/detail/read/chunk_scatter.h"
#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/checkpoint/detail/read/index_check.h"
#include "shardwise/checkpoint/detail/read/read_pipeline.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise {
namespace {

using detail::ChunkId;
using detail::ChunkRecord;

// Padding is read in pieces of this size.
constexpr std::size_t kVerifiedBytes = std::size_t{1} << 20;

// If another process removes a step and saves it again, the bytes read may be of both.
constexpr int kMostTries = 3;

/// Bytes of the data of a shard file. Padding must be zero.
struct Part {
  enum class Kind { chunk, table, padding };

  std::size_t file;
  std::uint64_t address;
  std::size_t bytes;
  Kind kind;
  ChunkId id = {};  ///< of a chunk

  bool operator<(const Part& other) const {
    return std::tie(file, address) < std::tie(other.file, other.address);
  }
};

/// One verification. Thread-compatible; its workers report under a lock.
class Verifier {
 public:
  Verifier(const std::filesystem::path& directory, ReadOptions options)
      : directory_(directory),
        options_(std::move(options)),
        file_system_(file_system_of(directory_, options_.file_system)) {}

  VerifyReport run();

 private:
  bool open_manifest();
  void find_foreign_files(std::span<const std::string> names);
  void open_shard_files();
  void check_linked_files();
  void check_parity(std::span<const std::string> names);
  void list_chunks();
  void list_padding();
  void check_long_padding();
  void read_parts();
  enum class Reading { together, alone };
  using Consume = std::function<void(std::size_t part, detail::RangeBytes& bytes)>;
  void read_parts(std::span<const Part> parts, Reading reading, const Consume& consume);
  void read_alone(const Part& part, detail::RangeBytes& bytes);
  void check_part(const Part& part, std::span<const std::byte> bytes);
  void check_zeros(const Part& part, std::span<const std::byte> bytes) const;
  void report_chunk(const ChunkId& id, const Error& error);
  void check_index_file();

  void report(const Error& error, Damage damage);
  void progress();

  /// Counts bytes that are read outside parts_.
  void count(std::size_t bytes) {
    bytes_ += bytes;
    progress();
  }
  std::string path_of(const std::string& name) const { return (directory_ / name).string(); }

  /// Runs a step and reports corrupt and io errors against that file.
  template <class Step>
  bool attempt(const std::string& file, Step&& step) {
    try {
      step();
      return true;
    } catch (const Error& e) {
      report(e, {.file = file, .message = e.what()});
      return false;
    }
  }

  static bool is_reported(const Error& e) {
    return e.code() == ErrorCode::corrupt || e.code() == ErrorCode::io;
  }

  std::filesystem::path directory_;
  const ReadOptions options_;
  const std::shared_ptr<FileSystem> file_system_;
  detail::OpenDirectory opened_;
  detail::ScratchPool<detail::Decoder> decoders_;
  detail::StoredCheckpoint stored_;
  std::vector<bool>
      readable_;  // per file: it is open, and its chunk table is right; linked ones, too
  std::vector<Part> parts_, long_padding_;
  std::size_t total_bytes_ = 0;
  std::atomic<std::size_t> bytes_{0};
  std::atomic<std::int64_t> chunks_{0};

  Mutex mutex_;
  VerifyReport report_ SHARDWISE_GUARDED_BY(mutex_);
};

// Only bytes prove damage: that they cannot be read may be this process's fault.
void Verifier::report(const Error& error, Damage damage) {
  if (!is_reported(error)) throw error;
  const MutexLock lock(mutex_);
  (error.code() == ErrorCode::io ? report_.unread : report_.damage).push_back(std::move(damage));
}

void Verifier::progress() {
  if (options_.progress) options_.progress({bytes_, total_bytes_});
}

bool Verifier::open_manifest() {
  try {
    opened_ = detail::open_directory(*file_system_, directory_);
    directory_ = opened_.path;
    stored_ = detail::unread_checkpoint(opened_, detail::read_manifest(opened_));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::corrupt) throw;
    report(e, {.file = detail::kManifestName, .message = e.what()});
    return false;
  }
  bytes_ += opened_.directory->open(detail::kManifestName)->size();
  total_bytes_ = bytes_ + stored_.manifest.index_bytes;
  for (const detail::FileEntry& entry : stored_.manifest.files) total_bytes_ += entry.bytes;
  return true;
}

// Which files are linked only the shard files say.
void Verifier::find_foreign_files(std::span<const std::string> names) {
  const bool linked_are_known = std::ranges::find(readable_, false) == readable_.end();
  std::set<std::string> known{detail::kManifestName};
  if (stored_.manifest.has_index()) known.insert(detail::kIndexName);
  for (const detail::ProtectedFile& file : protected_files(stored_)) {
    known.insert({file.name, file.parity_name()});
  }
  for (const std::string& name : names) {
    if (known.contains(name) || detail::is_repair_name(name)) continue;
    if (!linked_are_known && name.starts_with(detail::kLinkedPrefix)) continue;
    attempt(name, [&] {
      throw Error(ErrorCode::corrupt,
                  fmt::format("verify {}: it is no part of the checkpoint", path_of(name)));
    });
  }
}

void Verifier::open_shard_files() {
  const detail::Manifest& manifest = stored_.manifest;
  readable_.resize(manifest.files.size());
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const detail::FileEntry& entry = manifest.files[f];
    // Without its description or its table nothing is known about a file's data.
    std::vector<detail::PieceId> pieces;
    const bool described = attempt(entry.name, [&] {
      pieces = detail::read_file_pieces(*stored_.files->at(f), directory_, stored_.manifest, f);
    });
    if (!described) continue;
    attempt(entry.name, [&] {
      detail::check_structure(stored_, f, [this](std::size_t bytes) { count(bytes); });
    });
    readable_[f] = attempt(entry.name, [&] {
      stored_.tables[f] =
          detail::read_chunk_table(*stored_.files->at(f), directory_, manifest, f, pieces);
      bytes_ += stored_.tables[f].records.size() * sizeof(ChunkRecord);
      bytes_ += detail::kDescriptionBytes;
      detail::add_linked_files(stored_, f);
    });
  }
  attempt(detail::kManifestName, [&] { detail::check_no_file_missing(manifest, directory_); });
}

// The HDF5 structure, which other tools read, must be as it was written. Chunks that only other
// checkpoints use are left to those.
void Verifier::check_linked_files() {
  const std::size_t own = stored_.manifest.files.size();
  for (std::size_t i = 0; i < stored_.linked.size(); ++i) {
    const detail::LinkedFile& linked = stored_.linked[i];
    std::shared_ptr<File> file;
    readable_.push_back(attempt(linked.name(), [&] { file = stored_.files->at(own + i); }));
    if (!readable_.back()) continue;
    attempt(linked.name(), [&] {
      detail::check_structure(*file, path_of(linked.name()), linked, [this](std::size_t bytes) {
        total_bytes_ += bytes;
        count(bytes);
      });
    });
  }
}

void Verifier::check_parity(std::span<const std::string> names) {
  for (const detail::ProtectedFile& of : protected_files(stored_)) {
    const std::string name = of.parity_name();
    if (!std::ranges::binary_search(names, name)) continue;
    attempt(name, [&] {
      const std::unique_ptr<File> file = opened_.directory->open(name);
      total_bytes_ += file->size();
      const detail::ParityLayout layout = detail::check_parity_file(
          *file, path_of(name), of.of, [this](std::size_t bytes) { count(bytes); });
      const MutexLock lock(mutex_);
      const bool is_first = report_.parity_files++ == 0;
      report_.parity_blocks =
          is_first ? layout.parity_blocks : std::min(report_.parity_blocks, layout.parity_blocks);
    });
  }
}

void Verifier::list_chunks() {
  const detail::Manifest& manifest = stored_.manifest;
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    for (std::size_t p = 0; p < manifest.tensors[t].pieces.size(); ++p) {
      const detail::PieceEntry piece = manifest.tensors[t].pieces[p];
      const auto file = static_cast<std::size_t>(piece.file);
      if (!readable_[file]) continue;
      const std::int64_t chunks = num_chunks(piece);
      for (std::int64_t c = 0; c < chunks; ++c) {
        const ChunkRecord& record = stored_.record({t, p, c});
        if (!readable_[stored_.file_of(file, record)]) continue;
        if (is_in_linked(record)) total_bytes_ += record.stored_bytes;
        parts_.push_back({stored_.file_of(file, record),
                          record.address,
                          static_cast<std::size_t>(record.stored_bytes),
                          Part::Kind::chunk,
                          {t, p, c}});
      }
    }
  }
}

void Verifier::list_padding() {
  const detail::Manifest& manifest = stored_.manifest;
  std::vector<Part> known = parts_;
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const detail::FileEntry& entry = manifest.files[f];
    known.push_back({f, entry.table_address,
                     static_cast<std::size_t>(entry.chunks) * sizeof(ChunkRecord),
                     Part::Kind::table});
    known.push_back({f, entry.data_end - detail::kDescriptionBytes, detail::kDescriptionBytes,
                     Part::Kind::table});
  }
  std::sort(known.begin(), known.end());
  auto part = known.begin();
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const detail::FileEntry& entry = manifest.files[f];
    std::uint64_t at = entry.data_begin;
    const auto pad_to = [&](std::uint64_t end) {
      if (!readable_[f] || at >= end) return;
      const std::uint64_t bytes = end - at;
      (bytes > kVerifiedBytes ? long_padding_ : parts_)
          .push_back({f, at, bytes, Part::Kind::padding});
    };
    for (; part != known.end() && part->file == f; ++part) {
      pad_to(part->address);
      at = std::max(at, part->address + part->bytes);
    }
    pad_to(entry.data_end);
  }
}

// `bytes` are those of the part.
void Verifier::check_zeros(const Part& part, std::span<const std::byte> bytes) const {
  const auto found =
      std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; });
  if (found == bytes.end()) return;
  throw Error(ErrorCode::corrupt,
              fmt::format("verify {}: the byte at {} belongs to nothing and is {}, needed is 0",
                          path_of(stored_.file_name(part.file)),
                          part.address + static_cast<std::uint64_t>(found - bytes.begin()),
                          std::to_integer<int>(*found)));
}

// Reads in pieces and skips holes: no writer leaves so much padding, but a forged file may state
// any length.
void Verifier::check_long_padding() {
  std::vector<std::byte> bytes(long_padding_.empty() ? 0 : kVerifiedBytes);
  for (const Part& padding : long_padding_) {
    const std::shared_ptr<File> opened = stored_.files->at(padding.file);
    File& file = *opened;
    const std::uint64_t end = padding.address + padding.bytes;
    for (std::uint64_t at = padding.address; at < end;) {
      const std::uint64_t data = std::min(file.next_data(at), end);
      const auto size =
          static_cast<std::size_t>(std::min<std::uint64_t>(kVerifiedBytes, end - data));
      const Part part{padding.file, data, size, Part::Kind::padding};
      attempt(stored_.manifest.files[padding.file].name, [&] {
        file.read_at(data, bytes.data(), size);
        check_zeros(part, std::span(bytes).first(size));
      });
      bytes_ += data + size - at;
      at = data + size;
    }
    progress();
  }
}

void Verifier::check_part(const Part& part, std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  if (part.kind == Part::Kind::padding) {
    attempt(stored_.file_name(part.file), [&] { check_zeros(part, bytes); });
    return;
  }
  ++chunks_;
  try {
    detail::check_chunk_hash(stored_, part.id, hash64(bytes.data(), bytes.size()));
    if (detail::stored_raw(stored_, part.id)) return;
    const detail::ScratchPool<detail::Decoder>::Loan decoder(decoders_);
    const std::span<const std::byte> shuffled =
        detail::decompress_chunk(stored_, part.id, bytes, *decoder);
    Hasher64 hasher;
    detail::for_each_unshuffled(
        shuffled, size_bytes(stored_.tensor(part.id).dtype),
        [&](std::span<const std::byte> window) { hasher.update(window.data(), window.size()); });
    detail::check_decoded_hash(stored_, part.id, hasher.digest());
  } catch (const Error& e) {
    report_chunk(part.id, e);
  }
}

void Verifier::report_chunk(const ChunkId& id, const Error& error) {
  detail::note_damage(stored_, id);
  const detail::PieceEntry piece = stored_.piece(id);
  report(error, {.file = stored_.file_name(stored_.file_of(id)),
                 .message = error.what(),
                 .tensor = stored_.tensor(id).name,
                 .chunk = piece.first_chunk + id.chunk,
                 .box = stored_.box(id)});
}

void Verifier::read_alone(const Part& part, detail::RangeBytes& bytes) {
  std::vector<std::byte> all;
  all.reserve(part.bytes);
  try {
    for (auto next = bytes.next(); !next.empty(); next = bytes.next()) {
      all.insert(all.end(), next.begin(), next.end());
    }
  } catch (const Error& e) {
    if (part.kind == Part::Kind::chunk) return report_chunk(part.id, e);
    return report(e, {.file = stored_.file_name(part.file), .message = e.what()});
  }
  check_part(part, all);
}

// Neighbours are read together. If such a read fails, the parts not checked yet are read one by
// one: a bad place on the disk says nothing about its neighbours.
void Verifier::read_parts() {
  std::sort(parts_.begin(), parts_.end());
  std::vector<char> checked(parts_.size());  // each set by one thread
  try {
    return read_parts(parts_, Reading::together, [&](std::size_t i, detail::RangeBytes& bytes) {
      check_part(parts_[i], bytes.next());
      checked[i] = 1;
    });
  } catch (const Error& e) {
    if (!is_reported(e)) throw;
  }
  std::vector<Part> rest;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (checked[i] == 0) rest.push_back(parts_[i]);
  }
  read_parts(rest, Reading::alone,
             [&](std::size_t i, detail::RangeBytes& bytes) { read_alone(rest[i], bytes); });
}

void Verifier::read_parts(std::span<const Part> parts, Reading reading, const Consume& consume) {
  const bool alone = reading == Reading::alone;
  detail::ReadBuffers buffers;
  detail::ReadJob job{.files = *stored_.files,
                      .buffers = buffers,
                      .ranges = {},
                      .consume = consume,
                      .describe = {}};
  std::vector<detail::FileRange> ranges;
  ranges.reserve(parts.size());
  for (const Part& part : parts) {
    ranges.push_back({part.file, part.address, part.bytes, alone});
    std::size_t call_bytes = alone ? part.bytes : 0;
    if (part.kind == Part::Kind::chunk && !detail::stored_raw(stored_, part.id)) {
      call_bytes += chunk_bytes(stored_.piece(part.id), stored_.tensor(part.id).dtype);
    }
    job.call_bytes = std::max(job.call_bytes, call_bytes);
  }
  job.ranges = ranges;
  job.describe = [&](std::size_t i) {
    if (alone && parts[i].kind == Part::Kind::chunk) return stored_.describe(parts[i].id);
    return path_of(stored_.file_name(parts[i].file));
  };
  job.progress = [this] { progress(); };
  job.threads = Executor::threads_for(options_.threads);
  job.is_remote = in_bucket(stored_.directory);
  job.budget_bytes = options_.memory_budget_bytes;
  detail::run_read_job(job);
}

void Verifier::check_index_file() {
  const std::string name = detail::kIndexName;
  const detail::Manifest& manifest = stored_.manifest;
  if (!manifest.has_index()) return;
  attempt(name, [&] {
    const auto file = detail::open_file(opened_, {.name = name, .bytes = manifest.index_bytes});
    Hasher128 hasher;
    detail::hash_range(*file, 0, manifest.index_bytes, hasher,
                       [this](std::size_t bytes) { count(bytes); });
    std::string problem;
    if (hasher.digest() != manifest.index_hash) {
      problem = fmt::format("verify {}: its hash is {}, needed is {}", path_of(name),
                            to_hex(hasher.digest()), to_hex(manifest.index_hash));
    } else {
      problem = detail::check_index(*file, path_of(name), manifest);
    }
    if (!problem.empty()) throw Error(ErrorCode::corrupt, problem);
  });
}

VerifyReport Verifier::run() {
  std::optional<detail::Pin> pin;
  if (options_.pin) pin.emplace(*file_system_, directory_);
  if (open_manifest()) {
    const std::vector<std::string> names = file_system_->list(directory_);
    open_shard_files();
    find_foreign_files(names);
    check_linked_files();
    check_parity(names);
    list_chunks();
    list_padding();
    read_parts();
    check_long_padding();
    check_index_file();
  }
  progress();
  const MutexLock lock(mutex_);
  report_.chunks = chunks_;
  report_.bytes = bytes_;
  for (std::vector<Damage>* list : {&report_.damage, &report_.unread}) {
    std::stable_sort(list->begin(), list->end(), [](const Damage& a, const Damage& b) {
      return std::tie(a.file, a.chunk) < std::tie(b.file, b.chunk);
    });
  }
  return std::move(report_);
}

}  // namespace

VerifyReport verify_checkpoint(const std::filesystem::path& directory, const ReadOptions& options) {
  for (int tries = 1;; ++tries) {
    const detail::DirectoryState before(directory);
    VerifyReport report = Verifier(directory, options).run();
    if (report.ok()) return report;
    detail::check_still_there(directory);
    if (detail::DirectoryState(directory) == before) return report;
    if (tries == kMostTries) {
      throw Error(ErrorCode::io, fmt::format("verify {}: the directory changed while it was read, "
                                             "{} times: nothing is proved",
                                             directory.string(), tries));
    }
  }
}

}  // namespace shardwise
