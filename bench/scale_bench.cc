// How much work does one process of a very large job have to do for a save and for a restore?
//
//   scale_bench [FOLDER]
//
// Two jobs are simulated: FSDP on 16,384 processes, and 8 pipeline stages on 2,048 processes of 8
// devices; 1,000 tensors each, 16 KiB of each tensor per device. (FSDP also runs on 64 and 1,024,
// to see whether planning depends on their number.) Rank 0 is real: it makes the attempt in FOLDER
// (or a temporary one), plans and writes its own shard file, takes the reports of all others, looks
// at their files, and writes the manifest. The reports and files of the others are made up
// beforehand, in their real form and size, so rank 0 does all the work of such a job's coordinator
// except waiting. Then the step is saved again; this time the ranks are real that one process needs
// for a restore on another mesh. That restore is opened and planned. A small FSDP job runs first
// with all ranks real: its files must verify.

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/peak_memory.h"
#include "checkpoint_bench.h"
#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/read/chunk_reader.h"
#include "shardwise/checkpoint/detail/record/record.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/detail/save/messages.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/process/detail/message.h"
#include "shardwise/runtime/process/transport.h"
#include "shardwise/storage/forwarding_file_system.h"

using namespace shardwise;
using namespace shardwise::bench;

namespace {

constexpr std::int64_t kJobTensors = 1000, kColumnsOfF32 = 4096, kPlannedRanks = 9;
constexpr double kBarPlanSeconds = 0.050, kBarPlanRatio = 1.2, kBarCoordinatorSeconds = 2,
                 kBarCoordinatorBytes = 1 << 30, kBarManifestBytes = 2 << 20, kBarOpenSeconds = 0.5;

/// Ranks [first, end) have the same tensors.
struct Stage {
  std::int64_t first_rank, end_rank;
  std::vector<TensorSource> sources;
};

struct Job {
  std::string name;
  std::int64_t processes, devices;
  std::vector<Stage> stages;
  Sharding restored;  ///< of each tensor of the first stage
  std::int64_t real;  ///< ranks whose files device 0 of `restored` needs

  const Stage& stage_of(std::int64_t rank) const {
    return *std::ranges::find_if(stages, [&](const Stage& s) { return rank < s.end_rank; });
  }
  detail::WriterMap writers() const { return detail::WriterMap::even(devices, processes); }
};

std::vector<TensorSource> sources_of(std::int64_t first, std::int64_t count, const Shape& shape,
                                     const Sharding& sharding) {
  std::vector<TensorSource> sources;
  for (std::int64_t t = first; t < first + count; ++t) {
    sources.push_back(callback_tensor(tensor_name(t), {DType::f32, shape, sharding},
                                      [](const Box& box, std::span<std::byte> out) {
                                        std::ranges::fill(out,
                                                          static_cast<std::byte>(box.begin(0)));
                                      }));
  }
  return sources;
}

Sharding cut(Mesh mesh, const char* spec) {
  return Sharding(std::move(mesh), PartitionSpec::parse(spec));
}

Job fsdp(std::int64_t processes) {
  const Sharding sharding = cut(Mesh({{"fsdp", processes}}), "fsdp,-");
  const Shape shape{processes, kColumnsOfF32};
  return {
      fmt::format("FSDP, {} processes", processes),
      processes,
      processes,
      {{0, processes, sources_of(0, kJobTensors, shape, sharding)}},
      cut(Mesh({{"fsdp", std::max<std::int64_t>(1, processes / 4)}, {"model", 2}}), "fsdp,model"),
      4};
}

Job pipeline(std::int64_t processes, std::int64_t stages) {
  const std::int64_t per_stage = processes / stages, devices = per_stage * 8;
  const Shape shape{per_stage, 8 * kColumnsOfF32};
  Job job{fmt::format("{} stages, {} processes x 8", stages, processes),
          processes,
          processes * 8,
          {},
          cut(Mesh({{"fsdp", per_stage / 4}, {"model", 16}}), "fsdp,model"),
          4};
  for (std::int64_t s = 0; s < stages; ++s) {
    std::vector<DeviceId> ids;
    for (std::int64_t d = 0; d < devices; ++d) ids.push_back(s * devices + d);
    const Sharding sharding = cut(Mesh({{"fsdp", per_stage}, {"model", 8}}, ids), "fsdp,model");
    const std::int64_t count = kJobTensors / stages;
    job.stages.push_back(
        {s * per_stage, (s + 1) * per_stage, sources_of(s * count, count, shape, sharding)});
  }
  return job;
}

detail::SavePlan plan_of(const Job& job, std::int64_t rank) {
  return detail::plan_save(job.stage_of(rank).sources, Codec::none, Executor(1), job.writers(),
                           {rank, rank + 1});
}

/// The messages of ranks that are not real, in their real form.
class MadeUp {
 public:
  explicit MadeUp(const Job& job) {
    std::vector<std::uint64_t> bytes(static_cast<std::size_t>(job.processes), 0);
    for (const Stage& stage : job.stages) {
      const detail::SavePlan plan = plan_of(job, stage.first_rank);
      detail::TensorList list{plan.writers, plan.tensors};
      std::vector<detail::WriterPiece> pieces;
      for (detail::TensorEntry& tensor : list.tensors) {
        tensor.pieces.clear();
        detail::add_pieces_in(Box::whole(tensor.shape), plan.writers, tensor, pieces);
      }
      for (const auto& [writer, box] : pieces) {
        bytes[static_cast<std::size_t>(writer)] += num_bytes(box.shape(), 4);
      }
      lists_.push_back({stage.end_rank, encode(list)});
      hashes_.push_back(detail::hash_of(lists_.back().second));
    }
    for (std::int64_t rank = 0; rank < job.processes; ++rank) {
      const std::uint64_t size = bytes[static_cast<std::size_t>(rank)];
      detail::FileEntry file;
      file.writer = rank;
      file.chunks = kJobTensors;
      file.stored_bytes = size;
      file.data_begin = 4096;
      file.table_address = file.data_begin + size;
      file.data_end = file.table_address + kJobTensors * sizeof(detail::ChunkRecord) +
                      detail::kDescriptionBytes;
      file.bytes = file.data_end + (std::uint64_t{1} << 20);
      file.decoded_address = file.pieces_address = file.data_end;
      const auto words = detail::describe_file(file);
      file.description_hash = hash128(std::as_bytes(std::span(words)).data(), sizeof words);
      descriptions_[detail::shard_file_name(rank, job.processes)] = {file, words};
      heads_.push_back({.run = 0,
                        .list = hashes_[stage_of(rank)],
                        .first_writer = rank,
                        .files = {file},
                        .logical_bytes = size,
                        .stored_bytes = size,
                        .chunks = kJobTensors});
    }
  }

  /// Begins the save that rank 0 has announced by this notice. Throws as decode_notice does.
  void begin(const Bytes& notice) {
    const std::uint64_t run = detail::run_of(jobs_detail::decode_notice(notice).id);
    reports_.clear();
    for (detail::RecordHead& head : heads_) {
      head.run = run;
      reports_.push_back(join(head, detail::PartCosts(), {}));
    }
  }
  bool has_begun() const { return !reports_.empty(); }

  struct Described {
    detail::FileEntry file;
    std::array<std::uint64_t, detail::kDescriptionWords> words;
  };
  /// The description of a shard file that was never written.
  const Described& described(const std::string& name) const { return descriptions_.at(name); }

  const Bytes& report(int rank) const { return reports_[static_cast<std::size_t>(rank)]; }
  /// The list of this rank, if rank 0 asks for it: its stage's first rank has one.
  Bytes list(int rank) const {
    const std::size_t stage = stage_of(rank);
    return stage_of(rank - 1) == stage ? Bytes() : lists_[stage].second;
  }

 private:
  std::size_t stage_of(std::int64_t rank) const {
    return static_cast<std::size_t>(
        std::ranges::find_if(lists_, [&](const auto& l) { return rank < l.first; }) -
        lists_.begin());
  }

  std::vector<std::pair<std::int64_t, Bytes>> lists_;  // of each stage, after its last rank
  std::vector<Hash128> hashes_;
  std::vector<detail::RecordHead> heads_;
  std::map<std::string, Described> descriptions_;
  std::vector<Bytes> reports_;
};

/// The shard file of a rank that is not real: its size and its description.
class MadeUpFile final : public File {
 public:
  explicit MadeUpFile(const MadeUp::Described& described) : described_(described) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    const std::uint64_t begin = described_.file.data_end - detail::kDescriptionBytes;
    if (offset != begin || size != detail::kDescriptionBytes) refuse();
    std::memcpy(data, described_.words.data(), size);
  }
  std::uint64_t size() override { return described_.file.bytes; }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override { refuse(); }
  void resize(std::uint64_t) override { refuse(); }
  void sync() override {}
  void close() override {}

 private:
  [[noreturn]] static void refuse() {
    throw std::logic_error("rank 0 asks a file that is not real for more than its description");
  }

  const MadeUp::Described& described_;
};

/// Opens a missing file as a made-up one.
class WithMadeUpFiles final : public ForwardingFileSystem {
 public:
  explicit WithMadeUpFiles(const MadeUp& made_up) : made_up_(made_up) {}

  std::unique_ptr<File> open(const std::filesystem::path& path) override {
    if (path.extension() != ".h5" || std::filesystem::exists(path)) {
      return ForwardingFileSystem::open(path);
    }
    return std::make_unique<MadeUpFile>(made_up_.described(path.filename().string()));
  }

 private:
  const MadeUp& made_up_;
};

/// The messages of a job; only some ranks are real, and are threads here.
struct Network {
  int size;
  MadeUp* made_up;  ///< null: all ranks are real
  std::map<int, Mailbox> boxes = {};
  std::atomic<std::int64_t> sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;  // rank 0's
};

class Rank final : public Transport {
 public:
  Rank(Network& network, int rank) : network_(network), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return network_.size; }

  void send(int to, const MessageKey& key, Bytes bytes) override {
    if (rank_ == 0) {
      if (network_.made_up != nullptr && !network_.made_up->has_begun()) {
        Bytes notice = bytes;
        detail::unseal_marked(notice);
        network_.made_up->begin(notice);
      }
      ++network_.sent;
      network_.sent_bytes += std::ssize(bytes);
    }
    if (const auto box = network_.boxes.find(to); box != network_.boxes.end()) {
      box->second.put(rank_, key, std::move(bytes));
    }
  }

  std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage> awaited,
                                             std::chrono::microseconds wait) override {
    std::optional<ReceivedMessage> message;
    const int from = awaited.front().from;  // a save waits for one at a time
    if (network_.boxes.contains(from)) {
      message = network_.boxes.at(rank_).take_any(awaited, wait);
    } else {
      const bool is_report = asked_.insert(from).second;
      message = {0, is_report ? network_.made_up->report(from) : network_.made_up->list(from)};
      detail::seal(message->bytes, {detail::Operation::gather, 0});
    }
    if (message && rank_ == 0) {
      ++network_.received;
      network_.received_bytes += std::ssize(message->bytes);
    }
    return message;
  }

  void abort(std::uint64_t channel, const std::string& reason) noexcept override {
    for (auto& [rank, box] : network_.boxes) box.abort(channel, reason);
  }
  std::optional<std::string> aborted(std::uint64_t channel) override {
    return network_.boxes.at(rank_).aborted(channel);
  }
  bool flush(std::chrono::milliseconds) override { return true; }

 private:
  Network& network_;
  const int rank_;
  std::set<int> asked_;
};

/// Saves with the first `real` ranks; gives the seconds that rank 0 took.
double save(const Job& job, const std::filesystem::path& root, std::int64_t step, Network& network,
            std::int64_t real) {
  for (int rank = 0; rank < real; ++rank) network.boxes[rank];
  double coordinator = 0;
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(real));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < real; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ManagerOptions options;
        options.write.threads = 1;
        options.write.increments = false;
        options.devices = job.devices;
        if (network.made_up != nullptr) {
          options.file_system = std::make_shared<WithMadeUpFiles>(*network.made_up);
        }
        options.group = ProcessGroup(std::make_shared<Rank>(network, rank));
        CheckpointManager manager(root, options);
        const double time = seconds(
            [&] { manager.save(step, job.stage_of(rank).sources, {.codec = Codec::none}); });
        if (rank == 0) coordinator = time;
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return coordinator;
}

bool all_kept = true;

/// One figure and its bar.
void line(const char* what, double found, double bar, const char* unit) {
  const bool is_kept = found <= bar;
  all_kept = all_kept && is_kept;
  fmt::print("  {:<58} {:>9.3f} {:<4} bar {:>7.3f}  {}\n", what, found, unit, bar,
             is_kept ? "kept" : "MISSED");
}

/// Median over some ranks, from the first to the last.
double planning_seconds(const Job& job) {
  std::vector<double> times;
  for (std::int64_t i = 0; i < kPlannedRanks; ++i) {
    const std::int64_t rank = i * (job.processes - 1) / (kPlannedRanks - 1);
    times.push_back(seconds([&] { plan_of(job, rank); }));
  }
  return median(times);
}

void run_small(const std::filesystem::path& root) {
  const Job job = fsdp(8);
  Network network{.size = 8, .made_up = nullptr};
  save(job, root, 1, network, 8);
  const VerifyReport report = verify_checkpoint(root / "step-00000001");
  if (!report.ok()) throw std::runtime_error("the small job's checkpoint is damaged");
  fmt::print("{}, all of them real: saved and verified\n", job.name);
}

void run(const Job& job, const std::filesystem::path& root) {
  constexpr double kMiB = 1 << 20;
  fmt::print("\n{}, {} tensors\n", job.name, kJobTensors);
  line("plan of one process's part, median of 9 ranks", planning_seconds(job), kBarPlanSeconds,
       "s");

  const double alone = [&] {
    const Job one = fsdp(1);
    Network network{.size = 1, .made_up = nullptr};
    return save(one, root / "one", 1, network, 1);
  }();
  MadeUp first(job), second(job);
  Network network{.size = static_cast<int>(job.processes), .made_up = &first};
  const tools::PeakMemory memory;
  const double coordinator = save(job, root, 1, network, 1);
  line("rank 0's save, its own 16 MiB a device included", coordinator, kBarCoordinatorSeconds, "s");
  fmt::print("  {:<58} {:>9.3f} s\n", "a save of 16 MiB by one process, for comparison", alone);
  line("memory of that save", static_cast<double>(memory.growth_bytes().value_or(0)) / kMiB,
       kBarCoordinatorBytes / kMiB, "MiB");
  const auto manifest = std::filesystem::file_size(root / "step-00000001" / detail::kManifestName);
  line("manifest", static_cast<double>(manifest) / kMiB, kBarManifestBytes / kMiB, "MiB");
  fmt::print("  rank 0 sent {} messages of {} bytes in all, got {} of {} bytes\n",
             network.sent.load(), network.sent_bytes.load(), network.received.load(),
             network.received_bytes.load());

  Network again{.size = static_cast<int>(job.processes), .made_up = &second};
  save(job, root, 2, again, job.real);
  std::vector<double> opening, planning;
  std::size_t chunks = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::unique_ptr<detail::ChunkReader> reader;
    std::vector<std::pair<std::size_t, Box>> wanted;  // of the tensors that device 0 has
    opening.push_back(seconds([&] {
      detail::StoredCheckpoint stored =
          detail::open_checkpoint(*posix_file_system(), root / "step-00000002");
      for (std::size_t t = 0; t < stored.manifest.tensors.size(); ++t) {
        const detail::TensorEntry& tensor = stored.manifest.tensors[t];
        if (!tensor.sharding->mesh().position_of(0)) continue;
        wanted.emplace_back(t, job.restored.box_at(0, tensor.shape));
      }
      reader = std::make_unique<detail::ChunkReader>(std::move(stored), ReadOptions{});
    }));
    std::vector<detail::ReadTarget> targets;
    for (const auto& [tensor, box] : wanted) targets.push_back({tensor, &box, {}});
    planning.push_back(seconds([&] {
      const detail::ChunkReader::View view = reader->checkpoint_for(targets);
      chunks = detail::ReadPlan(*view, targets).size();
    }));
  }
  line("open and plan a restore by one process on another mesh", median(opening) + median(planning),
       kBarOpenSeconds, "s");
  fmt::print("  of it {:.3f} s to open; {} chunks of {} shard files are to be read\n",
             median(opening), chunks, job.real);
}

}  // namespace

int main(int argc, char** argv) {
  const auto root = argc > 1 ? std::filesystem::path(argv[1])
                             : std::filesystem::temp_directory_path() /
                                   ("shardwise-scale-" + std::to_string(::getpid()));
  int status = 0;
  try {
    run_small(root / "small");
    double least = 1e9, most = 0;
    fmt::print("\nplan of one process's part, by the number of processes\n");
    for (const std::int64_t processes : {64, 1024, 16384}) {
      const double time = planning_seconds(fsdp(processes));
      fmt::print("  {:>6} processes {:>8.3f} ms\n", processes, time * 1e3);
      least = std::min(least, time);
      most = std::max(most, time);
    }
    line("the longest to the shortest", most / least, kBarPlanRatio, "x");
    run(fsdp(16384), root / "fsdp");
    run(pipeline(2048, 8), root / "pipeline");
    status = all_kept ? 0 : 1;
  } catch (const std::exception& e) {
    fmt::print(stderr, "scale_bench: {}\n", e.what());
    status = 3;
  }
  std::error_code ignored;
  std::filesystem::remove_all(root, ignored);
  return status;
}
