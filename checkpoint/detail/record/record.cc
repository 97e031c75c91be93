#include "shardwise/checkpoint/detail/record/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest_check.h"
#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kRecordName = "shardwise record 3";
constexpr const char *kHead = "the record of a process", *kList = "the list of a process's tensors";
constexpr std::int64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

/// The differently spelled shardings of a list, each told once, and which one each tensor has.
struct SpelledShardings {
  using Texts = std::tuple<std::string, std::string, std::string>;

  explicit SpelledShardings(std::span<const TensorEntry> tensors) {
    std::map<Texts, std::uint64_t> known;
    ShardingTexts texts;
    std::uint64_t number = 0;
    for (const TensorEntry& tensor : tensors) {
      if (!tensor.sharding) {
        of_tensor.push_back(0);
        continue;
      }
      if (texts.set(*tensor.sharding)) {
        const auto [at, is_new] =
            known.try_emplace({texts.mesh, texts.spec, texts.policy}, different.size() + 1);
        if (is_new) different.push_back(at->first);
        number = at->second;
      }
      of_tensor.push_back(number);
    }
  }

  std::vector<Texts> different;
  std::vector<std::uint64_t> of_tensor;  ///< its number from 1 on; 0: its pieces are listed
};

WriterMap take_writers(Unpacker& unpacker) {
  std::vector<std::int64_t> starts(unpacker.count());
  if (std::ssize(starts) > kMostWriters + 1 || starts.size() < 2) {
    unpacker.fail(
        fmt::format("found {} starts of writers, needed 2 to {}", starts.size(), kMostWriters + 1));
  }
  std::int64_t before = 0;
  for (std::int64_t& start : starts) start = before = unpacker.integer(before);
  if (const std::string problem = starts_problem(starts); !problem.empty()) {
    unpacker.fail(problem);
  }
  return WriterMap(std::move(starts));
}

Sharding take_sharding(Unpacker& unpacker, const WriterMap& writers) {
  const std::string text = unpacker.line(), spec = unpacker.line(), policy = unpacker.line();
  Mesh mesh = Mesh::parse(text);
  if (const std::string problem = mesh_problem(mesh, writers); !problem.empty()) {
    unpacker.fail(fmt::format("the mesh {}: {}", text, problem));
  }
  return {std::move(mesh), PartitionSpec::parse(spec), UnevenPolicy::parse(policy)};
}

TensorEntry take_tensor(Unpacker& unpacker, std::span<const Sharding> shardings,
                        const WriterMap& writers, std::int64_t number) {
  std::string name = unpacker.text();
  const auto dtypes = all_dtypes();
  const DType dtype = dtypes[static_cast<std::size_t>(
      unpacker.integer(0, static_cast<std::int64_t>(dtypes.size()) - 1))];
  Shape shape;
  const auto rank = static_cast<std::size_t>(unpacker.integer(0, kMaxRank));
  for (std::size_t d = 0; d < rank; ++d) shape.push_back(unpacker.integer(0));
  const std::int64_t sharding = unpacker.integer(0, std::ssize(shardings));
  TensorEntry tensor;
  if (sharding > 0) tensor.sharding = shardings[static_cast<std::size_t>(sharding - 1)];
  tensor.name = std::move(name);
  tensor.dtype = dtype;
  tensor.shape = shape;
  if (sharding > 0) {
    check_tensor(tensor, number, writers.num_writers());
    return tensor;
  }
  if (const std::string problem = name_problem(tensor.name); !problem.empty()) {
    unpacker.fail(fmt::format("the name of tensor {} {}", number, problem));
  }
  num_bytes(tensor.shape, size_bytes(tensor.dtype));
  std::size_t boxes = unpacker.count(2 * rank + 1);
  tensor.listed.reserve(boxes);
  for (std::int64_t before = 0; boxes > 0; --boxes) {
    before = unpacker.integer(before, writers.num_writers() - 1);
    Box box = unpacker.box(rank);
    if (box.empty() || !Box::whole(shape).contains(box)) {
      unpacker.fail(fmt::format("tensor {:?}: the box {} is empty or leaves its shape {}",
                                tensor.name, to_string(box), to_string(shape)));
    }
    tensor.listed.push_back({before, std::move(box)});
  }
  return tensor;
}

std::string description(const TensorEntry& tensor) {
  std::string text = fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape));
  if (!tensor.sharding) return text + " in boxes";
  const Sharding& sharding = *tensor.sharding;
  return text + fmt::format(" over {} as {} ({})", sharding.mesh().to_string(),
                            sharding.spec().to_string(), sharding.policy().to_string());
}

/// Merges the records of a save's processes. Thread-compatible.
class Merge {
 public:
  Merge(std::span<const RecordHead> heads, std::string_view process)
      : heads_(heads), process_(process) {}

  std::pair<Manifest, SaveStats> run(std::vector<NumberedList> lists) {
    manifest_.writers = lists.front().list.writers;
    num_lists_ = lists.size();
    for (const NumberedList& list : lists) check_list(list);
    add_tensors(lists);
    add_files();
    for (const TensorEntry& tensor : manifest_.tensors) {
      if (!is_covered(tensor)) refuse_boxes(tensor);
    }
    check_complete();
    return {std::move(manifest_), stats_};
  }

 private:
  std::string who(std::size_t head) const {
    return fmt::format(
        "{} {}", process_,
        process_ == "rank" ? static_cast<std::int64_t>(head) : heads_[head].first_writer);
  }

  void check_list(const NumberedList& numbered) const {
    const WriterMap& writers = numbered.list.writers;
    if (writers != manifest_.writers) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} counts {} devices and {} shard files, {} {} and {}: give every process "
                      "the same number of devices (ManagerOptions::devices, or the same starts) "
                      "and of writers",
                      who(0), manifest_.writers.num_devices(), manifest_.writers.num_writers(),
                      who(numbered.head), writers.num_devices(), writers.num_writers()));
    }
    const RecordHead& head = heads_[numbered.head];
    for (const TensorEntry& tensor : numbered.list.tensors) {
      for (const WriterPiece& piece : tensor.listed) {
        const std::int64_t number = piece.writer - head.first_writer;
        if (number >= 0 && number < std::ssize(head.files)) continue;
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{} lists a box of tensor {:?} for writer {}, needed is one of its "
                                "own writers",
                                who(numbered.head), tensor.name, piece.writer));
      }
    }
  }

  void add_tensors(std::vector<NumberedList>& lists) {
    if (lists.size() == 1) {  // all say the same: nothing to compare
      manifest_.tensors = std::move(lists.front().list.tensors);
      lists_with_.assign(manifest_.tensors.size(), {heads_[0].list});
      return;
    }
    struct Known {
      TensorEntry tensor;
      std::size_t head;
      std::vector<Hash128> lists;
    };
    std::map<std::string, Known, std::less<>> all;
    for (NumberedList& numbered : lists) {
      for (TensorEntry& tensor : numbered.list.tensors) {
        std::string name = tensor.name;
        const auto [at, is_new] = all.try_emplace(std::move(name));
        Known& known = at->second;
        known.lists.push_back(heads_[numbered.head].list);
        if (is_new) {
          known.tensor = std::move(tensor);
          known.head = numbered.head;
          continue;
        }
        if (known.tensor.dtype != tensor.dtype || known.tensor.shape != tensor.shape ||
            known.tensor.sharding.has_value() != tensor.sharding.has_value() ||
            (tensor.sharding && !same_pieces(*known.tensor.sharding, *tensor.sharding))) {
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("tensor {:?} is {} on {}, {} on {}", tensor.name,
                                  description(known.tensor), who(known.head), description(tensor),
                                  who(numbered.head)));
        }
        std::ranges::move(tensor.listed, std::back_inserter(known.tensor.listed));
      }
    }
    for (auto& [name, known] : all) {
      manifest_.tensors.push_back(std::move(known.tensor));
      lists_with_.push_back(std::move(known.lists));
    }
  }

  void add_files() {
    std::int64_t next = 0;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const RecordHead& head = heads_[h];
      if (!head.files.empty() && head.first_writer != next) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("found a record of writer {} of {}, needed one of writer {}",
                                head.first_writer, manifest_.writers.num_writers(), next));
      }
      for (const FileEntry& said : head.files) {
        const std::int64_t writer = next++;
        if (said.bytes == 0 || writer >= manifest_.writers.num_writers()) continue;
        FileEntry& file = manifest_.files.emplace_back();
        file.name = shard_file_name(writer, manifest_.writers.num_writers());
        file.bytes = said.bytes;
        file.data_end = said.data_end;
        file.description_hash = said.description_hash;
        file.writer = writer;
        stats_.file_bytes += file.bytes;
      }
      logical_bytes_ += head.logical_bytes;
      stats_.stored_bytes += head.stored_bytes;
      stats_.unchanged_bytes += head.unchanged_bytes;
      stats_.chunks += head.chunks;
    }
    stats_.logical_bytes = static_cast<std::size_t>(logical_bytes_);
    if (next == manifest_.writers.num_writers()) return;
    throw Error(ErrorCode::invalid_argument, fmt::format("found records of {} writers, needed {}",
                                                         next, manifest_.writers.num_writers()));
  }

  static bool is_covered(const TensorEntry& tensor) {
    if (tensor.sharding) return true;
    std::vector<Box> boxes;
    boxes.reserve(tensor.listed.size());
    for (const WriterPiece& piece : tensor.listed) boxes.push_back(piece.box);
    try {
      check_cover(boxes, tensor.shape);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  std::string who_has(const WriterPiece& piece) const {
    const auto head = std::ranges::find_if(heads_, [&](const RecordHead& one) {
      const std::int64_t number = piece.writer - one.first_writer;
      return number >= 0 && number < std::ssize(one.files);
    });
    return who(static_cast<std::size_t>(head - heads_.begin()));
  }

  [[noreturn]] void refuse_boxes(const TensorEntry& tensor) const {
    const std::string text = fmt::format("tensor {:?} {} {}: ", tensor.name, name(tensor.dtype),
                                         to_string(tensor.shape));
    const std::vector<WriterPiece>& given = tensor.listed;
    for (auto one = given.begin(); one != given.end(); ++one) {
      const auto other = std::find_if(one + 1, given.end(), [&](const WriterPiece& piece) {
        return !intersect(one->box, piece.box).empty();
      });
      if (other == given.end()) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{}{} gave {} and {} gave {}: needed is each element once", text,
                      who_has(*one), to_string(one->box), who_has(*other), to_string(other->box)));
    }
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}no {} gave the box {}{}{}", text, process_,
                            to_string(first_hole(tensor)), given_of(tensor), other_names(tensor)));
  }

  /// The first box, of the tensor's boxes that nobody gave. Requires that there is one.
  static Box first_hole(const TensorEntry& tensor) {
    std::vector<Box> left{Box::whole(tensor.shape)}, next;
    for (const WriterPiece& piece : tensor.listed) {
      next.clear();
      for (Box rest : left) {
        const Box taken = intersect(rest, piece.box);
        if (taken.empty()) {
          next.push_back(rest);
          continue;
        }
        for (std::size_t d = 0; d < rest.rank(); ++d) {
          Box before = rest, after = rest;
          before.set(d, rest.begin(d), taken.begin(d));
          after.set(d, taken.end(d), rest.end(d));
          if (!before.empty()) next.push_back(before);
          if (!after.empty()) next.push_back(after);
          rest.set(d, taken.begin(d), taken.end(d));
        }
      }
      left.swap(next);
    }
    return *std::ranges::min_element(left, [](const Box& a, const Box& b) {
      return std::ranges::lexicographical_compare(a.begin(), b.begin());
    });
  }

  std::string given_of(const TensorEntry& tensor) const {
    constexpr std::size_t kMostShown = 4;
    std::string text;
    for (std::size_t i = 0; i < std::min(tensor.listed.size(), kMostShown); ++i) {
      const WriterPiece& piece = tensor.listed[i];
      text +=
          fmt::format("{}{} gave {}", i == 0 ? "; " : ", ", who_has(piece), to_string(piece.box));
    }
    return text + (tensor.listed.size() > kMostShown ? ", .." : "");
  }

  // A name that one process writes in another way leaves two tensors with holes.
  std::string other_names(const TensorEntry& tensor) const {
    for (const TensorEntry& other : manifest_.tensors) {
      if (other.name == tensor.name || other.dtype != tensor.dtype || other.shape != tensor.shape ||
          other.listed.empty() || is_covered(other)) {
        continue;
      }
      return fmt::format("; tensor {:?} of {} has holes, too: needed is one name on all",
                         other.name, who_has(other.listed.front()));
    }
    return {};
  }

  /// A process that was not given a tensor, and the first box of it that its devices hold.
  struct Lack {
    std::size_t head;
    Box box;
  };

  std::optional<Lack> first_lack(std::size_t tensor) const {
    if (lists_with_[tensor].size() == num_lists_) return {};
    std::vector<Box> boxes;
    for (std::size_t h = 0; h < heads_.size(); ++h) {
      const RecordHead& head = heads_[h];
      if (std::ranges::find(lists_with_[tensor], head.list) != lists_with_[tensor].end()) continue;
      for (std::int64_t w = 0; w < std::ssize(head.files); ++w) {
        add_pieces_of(head.first_writer + w, manifest_.writers, manifest_.tensors[tensor], boxes);
      }
      if (!boxes.empty()) return Lack{h, boxes.front()};
    }
    return {};
  }

  // A name that one process writes in another way leaves two tensors, each lacking on others.
  std::string other_spelling(std::size_t number, std::size_t head) const {
    const TensorEntry& tensor = manifest_.tensors[number];
    for (std::size_t t = number + 1; t < manifest_.tensors.size(); ++t) {
      const TensorEntry& other = manifest_.tensors[t];
      if (other.dtype != tensor.dtype || other.shape != tensor.shape || !other.sharding ||
          !tensor.sharding || !same_pieces(*other.sharding, *tensor.sharding)) {
        continue;
      }
      const auto lack = first_lack(t);
      if (!lack || lack->head == head) continue;
      return fmt::format(
          "; {} was not given tensor {:?}, which differs by its name alone: needed "
          "is one name on all",
          who(lack->head), other.name);
    }
    return {};
  }

  // Each process has written the boxes that follow from its list, and no two have the same: so the
  // sum of their bytes says whether all elements are there.
  void check_complete() const {
    Wide needed = 0;
    for (const TensorEntry& tensor : manifest_.tensors) {
      needed += num_bytes(tensor.shape, size_bytes(tensor.dtype));
    }
    if (needed == logical_bytes_) return;
    for (std::size_t t = 0; t < manifest_.tensors.size(); ++t) {
      const auto lack = first_lack(t);
      if (!lack) continue;
      const TensorEntry& tensor = manifest_.tensors[t];
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} was not given tensor {:?} {} {}, though its devices hold {}{}",
                      who(lack->head), tensor.name, name(tensor.dtype), to_string(tensor.shape),
                      to_string(lack->box), other_spelling(t, lack->head)));
    }
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "found {} bytes that all processes together wrote, needed {}, those of all tensors",
            fmt::to_string(logical_bytes_), fmt::to_string(needed)));
  }

  __extension__ using Wide = unsigned __int128;

  const std::span<const RecordHead> heads_;
  const std::string_view process_;
  Manifest manifest_;
  SaveStats stats_;
  Wide logical_bytes_ = 0;
  std::vector<std::vector<Hash128>> lists_with_;  // by tensor
  std::size_t num_lists_ = 0;
};

}  // namespace

RecordHead head_of(std::uint64_t run, const SavePlan& plan, WriterRange mine,
                   std::span<const WrittenShardFile> written) {
  RecordHead head{.run = run,
                  .list = {},
                  .first_writer = mine.first,
                  .files = {},
                  .logical_bytes = plan.logical_bytes,
                  .stored_bytes = 0,
                  .unchanged_bytes = 0,
                  .chunks = plan.chunks};
  head.files.resize(static_cast<std::size_t>(mine.end - mine.first));
  for (const WrittenShardFile& file : written) {
    head.stored_bytes += file.entry.stored_bytes;
    head.unchanged_bytes += file.unchanged_bytes;
    head.files[static_cast<std::size_t>(file.entry.writer - mine.first)] = file.entry;
  }
  return head;
}

TensorList list_of(const SavePlan& plan) {
  return {.writers = plan.writers, .tensors = without_pieces(plan.tensors)};
}

std::uint64_t run_of(std::string_view attempt) { return hash64(attempt); }

Hash128 hash_of(std::span<const std::byte> encoded_list) {
  return hash128(encoded_list.data(), encoded_list.size());
}

Bytes encode(const RecordHead& head) {
  Packer packer;
  packer.word(head.run);
  packer.hash(head.list);
  packer.number(head.first_writer);
  packer.number(head.logical_bytes);
  packer.number(head.stored_bytes);
  packer.number(head.unchanged_bytes);
  packer.number(head.chunks);
  packer.number(std::uint64_t{head.files.size()});
  for (const FileEntry& file : head.files) {
    packer.number(file.bytes);
    if (file.bytes == 0) continue;
    packer.number(file.data_end);
    packer.hash(file.description_hash);
  }
  return sealed(packer.take());
}

RecordHead decode_head(std::span<const std::byte> bytes) {
  Unpacker unpacker = Unpacker::of_sealed(bytes, kHead);
  RecordHead head;
  head.run = unpacker.word();
  head.list = unpacker.hash();
  head.first_writer = unpacker.integer(0, kMostWriters);
  head.logical_bytes = static_cast<std::uint64_t>(unpacker.integer(0));
  head.stored_bytes = static_cast<std::uint64_t>(unpacker.integer(0));
  head.unchanged_bytes = static_cast<std::uint64_t>(unpacker.integer(0));
  head.chunks = unpacker.integer(0);
  head.files.resize(unpacker.count());
  for (FileEntry& file : head.files) {
    file.bytes = static_cast<std::uint64_t>(unpacker.integer(0));
    if (file.bytes == 0) continue;
    file.data_end = static_cast<std::uint64_t>(
        unpacker.integer(kDescriptionBytes, static_cast<std::int64_t>(file.bytes)));
    file.description_hash = unpacker.hash();
  }
  unpacker.end();
  return head;
}

Bytes encode(const TensorList& list) {
  Packer packer;
  packer.number(std::uint64_t{list.writers.starts().size()});
  for (const std::int64_t start : list.writers.starts()) packer.number(start);
  const SpelledShardings shardings(list.tensors);
  packer.number(std::uint64_t{shardings.different.size()});
  for (const auto& [mesh, spec, policy] : shardings.different) {
    packer.text(mesh);
    packer.text(spec);
    packer.text(policy);
  }
  const auto dtypes = all_dtypes();
  packer.number(std::uint64_t{list.tensors.size()});
  for (std::size_t t = 0; t < list.tensors.size(); ++t) {
    const TensorEntry& tensor = list.tensors[t];
    packer.text(tensor.name);
    packer.number(std::int64_t{std::ranges::find(dtypes, tensor.dtype) - dtypes.begin()});
    packer.number(std::uint64_t{tensor.shape.size()});
    for (const std::int64_t extent : tensor.shape) packer.number(extent);
    packer.number(shardings.of_tensor[t]);
    if (tensor.sharding) continue;
    packer.number(std::uint64_t{tensor.listed.size()});
    for (const WriterPiece& piece : tensor.listed) {
      packer.number(piece.writer);
      packer.box(piece.box);
    }
  }
  return sealed(packer.take());
}

TensorList decode_list(std::span<const std::byte> bytes) {
  Unpacker unpacker = Unpacker::of_sealed(bytes, kList);
  TensorList list;
  list.writers = take_writers(unpacker);
  std::vector<Sharding> shardings;
  for (std::size_t left = unpacker.count(3); left > 0; --left) {
    shardings.push_back(take_sharding(unpacker, list.writers));
  }
  for (std::size_t left = unpacker.count(4); left > 0; --left) {
    TensorEntry tensor = take_tensor(unpacker, shardings, list.writers, std::ssize(list.tensors));
    if (!list.tensors.empty() && tensor.name <= list.tensors.back().name) {
      unpacker.fail(fmt::format("tensor {:?} follows {:?}: needed are sorted, distinct names",
                                tensor.name, list.tensors.back().name));
    }
    list.tensors.push_back(std::move(tensor));
  }
  unpacker.end();
  return list;
}

Bytes join(const RecordHead& head, const PartCosts& costs, std::span<const std::byte> list) {
  Packer packer;
  packer.text(kRecordName);
  Bytes record = packer.take();
  for (const Bytes& part : {encode(head), encode(costs)}) {
    packer.number(std::uint64_t{part.size()});
    const Bytes size = packer.take();
    record.insert(record.end(), size.begin(), size.end());
    record.insert(record.end(), part.begin(), part.end());
  }
  record.insert(record.end(), list.begin(), list.end());
  return record;
}

SplitRecord split(std::span<const std::byte> record) {
  Unpacker unpacker(record, "the record of a shard writer");
  if (unpacker.text() != kRecordName) {
    unpacker.fail(fmt::format("found no record, needed what begins with {:?}", kRecordName));
  }
  RecordHead head = decode_head(unpacker.part(unpacker.number()));
  const PartCosts costs = decode_costs(unpacker.part(unpacker.number()));
  const std::span<const std::byte> list = unpacker.rest();
  if (!list.empty() && hash_of(list) != head.list) {
    throw Error(ErrorCode::corrupt,
                fmt::format("read {}: found the hash {}, needed {}, which its record says", kList,
                            to_hex(hash_of(list)), to_hex(head.list)));
  }
  return {std::move(head), costs, list};
}

std::vector<std::size_t> first_with_each_list(std::span<const RecordHead> heads) {
  std::vector<std::size_t> numbers;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    if (h > 0 && heads[h].list == heads[h - 1].list) continue;
    const bool is_known =
        std::ranges::any_of(numbers, [&](std::size_t n) { return heads[n].list == heads[h].list; });
    if (!is_known) numbers.push_back(h);
  }
  return numbers;
}

std::pair<Manifest, SaveStats> merge(std::span<const RecordHead> heads,
                                     std::vector<NumberedList> lists, std::string_view process) {
  return Merge(heads, process).run(std::move(lists));
}

}  // namespace shardwise::detail
