#include "shardwise/convert/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/detail/numbers.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::Numbers;

constexpr std::size_t kLeastBudget = std::size_t{1} << 20;

// Elements per parallel task: enough to be worth one, few enough to share a slab among threads.
constexpr std::int64_t kElementsATask = std::int64_t{1} << 16;

/// Differences found so far.
struct Found {
  std::int64_t differing = 0;
  long double max_abs = 0, max_rel = 0;
  std::uint64_t max_ulp = 0;
  std::int64_t first_nan = 0, second_nan = 0;
  std::int64_t at = -1;  ///< the first differing element, row-major in its box

  void add(const Found& other) {
    differing += other.differing;
    max_abs = std::max(max_abs, other.max_abs);
    max_rel = std::max(max_rel, other.max_rel);
    max_ulp = std::max(max_ulp, other.max_ulp);
    first_nan += other.first_nan;
    second_nan += other.second_nan;
    if (at < 0 || (other.at >= 0 && other.at < at)) at = other.at;
  }
};

/// Compares elements of two dtypes, both complex or neither.
class Comparison {
 public:
  Comparison(DType first, DType second, const DiffOptions& options)
      : first_(detail::numbers_of(first)),
        second_(detail::numbers_of(second)),
        same_dtype_(first == second),
        atol_(options.atol),
        rtol_(options.rtol),
        exactly_(options.atol == 0 && options.rtol == 0) {}

  /// Elements [begin, end) of two boxes in memory.
  Found compare(const std::byte* a, const std::byte* b, std::int64_t begin,
                std::int64_t end) const {
    Found found;
    if (same_dtype_ && !first_.is_floating && same(a, b, begin, end)) return found;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::size_t number = as_size(i) * first_.each;
      if (!look(a + number * first_.bytes, b + number * second_.bytes, found)) continue;
      ++found.differing;
      if (found.at < 0) found.at = i;
    }
    return found;
  }

  bool has_ulp() const { return same_dtype_ && first_.is_floating; }

 private:
  bool same(const std::byte* a, const std::byte* b, std::int64_t begin, std::int64_t end) const {
    const std::size_t bytes = first_.bytes * first_.each;
    return std::memcmp(a + as_size(begin) * bytes, b + as_size(begin) * bytes,
                       as_size(end - begin) * bytes) == 0;
  }

  /// An element's numbers; the second is 0 unless it is complex.
  using Element = std::array<long double, 2>;

  static Element element(const Numbers& numbers, const std::byte* at) {
    Element element{};
    for (std::size_t part = 0; part < numbers.each; ++part) {
      element[part] = numbers.number(at + part * numbers.bytes);
    }
    return element;
  }

  static bool has_nan(const Element& x) { return std::isnan(x[0]) || std::isnan(x[1]); }
  static bool has_infinity(const Element& x) { return std::isinf(x[0]) || std::isinf(x[1]); }

  long double modulus(long double real, long double imaginary) const {
    return first_.each == 1 ? std::fabs(real) : std::hypot(real, imaginary);
  }

  /// Compares elements whose bits or dtypes differ.
  bool equal(const Element& x, const Element& y) const {
    if (exactly_ && same_dtype_) return false;
    if (has_nan(x) || has_nan(y)) return has_nan(x) && has_nan(y);
    // With an infinity, every distance passes rtol.
    if (exactly_ || has_infinity(x) || has_infinity(y)) return x == y;
    return modulus(x[0] - y[0], x[1] - y[1]) <= atol_ + rtol_ * modulus(y[0], y[1]);
  }

  /// Compares one element of each, and returns whether they differ.
  bool look(const std::byte* a, const std::byte* b, Found& found) const {
    const Element x = element(first_, a), y = element(second_, b);
    for (std::size_t part = 0; part < first_.each; ++part) {
      found.first_nan += std::isnan(x[part]) ? 1 : 0;
      found.second_nan += std::isnan(y[part]) ? 1 : 0;
    }
    if (same_dtype_ && std::memcmp(a, b, first_.bytes * first_.each) == 0) return false;
    if (equal(x, y)) return false;
    for (std::size_t part = 0; part < first_.each; ++part) {
      if (std::isnan(x[part]) || std::isnan(y[part])) continue;
      measure(x[part], y[part], found);
      if (!has_ulp()) continue;
      const std::int64_t from = first_.ordered(a + part * first_.bytes),
                         to = first_.ordered(b + part * first_.bytes);
      const auto ulp = from < to
                           ? static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from)
                           : static_cast<std::uint64_t>(from) - static_cast<std::uint64_t>(to);
      found.max_ulp = std::max(found.max_ulp, ulp);
    }
    return true;
  }

  static void measure(long double x, long double y, Found& found) {
    if (x == y) return;
    const long double distance = std::fabs(x - y);
    const long double relative =
        std::isinf(distance) ? distance : distance / std::max(std::fabs(x), std::fabs(y));
    found.max_abs = std::max(found.max_abs, distance);
    found.max_rel = std::max(found.max_rel, relative);
  }

  const Numbers first_, second_;
  const bool same_dtype_;
  const long double atol_, rtol_;
  const bool exactly_;
};

/// Reads boxes of one tensor, into memory one after the other.
void read_boxes(const BoxReader& reader, std::size_t tensor, std::span<const Box> boxes,
                std::size_t element_bytes, std::span<std::byte> out) {
  std::vector<BoxTarget> targets;
  std::size_t at = 0;
  for (const Box& box : boxes) {
    const std::size_t bytes = num_bytes(box.shape(), element_bytes);
    targets.push_back({tensor, box, out.subspan(at, bytes)});
    at += bytes;
  }
  if (const auto* checkpoint = dynamic_cast<const CheckpointReader*>(&reader)) {
    checkpoint->read(targets);  // reads each chunk once, and several at a time
    return;
  }
  for (const BoxTarget& target : targets) reader.read(tensor, target.box, target.out);
}

/// The tensors of one name, and their differences so far.
struct Pair {
  const Comparison comparison;
  std::size_t first, second;  ///< numbers in tensors()
  TensorDiff& diff;
  Found found = {};

  std::size_t first_bytes() const { return size_bytes(*diff.first_dtype); }  ///< per element
  std::size_t second_bytes() const { return size_bytes(*diff.second_dtype); }
};

class Run {
 public:
  Run(const BoxReader& first, const BoxReader& second, const DiffOptions& options)
      : first_(first), second_(second), options_(options), executor_(options.threads) {}

  DiffReport report() {
    std::map<std::string_view, std::pair<const TensorInfo*, const TensorInfo*>> by_name;
    for (const TensorInfo& info : first_.tensors()) by_name[info.name].first = &info;
    for (const TensorInfo& info : second_.tensors()) by_name[info.name].second = &info;
    std::size_t most = 0;  // bytes that the batches can use
    for (const auto& [name, infos] : by_name) {
      TensorDiff diff = described(std::string(name), infos.first, infos.second);
      if (diff.compared) {
        progress_.total_bytes += bytes_of(*infos.first);
        most = std::max(most, bytes_of(*infos.first) + bytes_of(*infos.second));
      }
      report_.tensors.push_back(std::move(diff));
    }
    room_.resize(std::min(most, options_.memory_budget_bytes));
    std::size_t at = 0;
    for (const auto& [name, infos] : by_name) {
      TensorDiff& diff = report_.tensors[at++];
      if (!diff.compared) continue;
      Pair pair{Comparison(*diff.first_dtype, *diff.second_dtype, options_),
                as_size(infos.first - first_.tensors().data()),
                as_size(infos.second - second_.tensors().data()), diff};
      compare(pair);
    }
    return std::move(report_);
  }

 private:
  static std::size_t bytes_of(const TensorInfo& info) {
    return num_bytes(info.shape, size_bytes(info.dtype));
  }

  static TensorDiff described(std::string name, const TensorInfo* first, const TensorInfo* second) {
    TensorDiff diff;
    diff.name = std::move(name);
    if (first != nullptr) {
      diff.first_dtype = first->dtype;
      diff.first_shape = first->shape;
      diff.elements = num_elements(first->shape);
    }
    if (second != nullptr) {
      diff.second_dtype = second->dtype;
      diff.second_shape = second->shape;
    }
    diff.compared = first != nullptr && second != nullptr && first->shape == second->shape &&
                    detail::numbers_of(first->dtype).each == detail::numbers_of(second->dtype).each;
    return diff;
  }

  void compare(Pair& pair) {
    TensorDiff& diff = pair.diff;
    if (const auto boxes = unequal_chunks(pair)) {
      for (const Box& box : *boxes) add(box, pair);
      flush_batch(pair);
    } else {
      for_each_slab(Box::whole(diff.first_shape), pair.first_bytes() + pair.second_bytes(),
                    room_.size(), [&](const Box& slab) { flush({slab}, pair); });
    }
    diff.differing = pair.found.differing;
    diff.max_abs = static_cast<double>(pair.found.max_abs);
    diff.max_rel = static_cast<double>(pair.found.max_rel);
    diff.first_nan = pair.found.first_nan;
    diff.second_nan = pair.found.second_nan;
    if (pair.comparison.has_ulp()) diff.max_ulp = pair.found.max_ulp;
  }

  /// Chunks of `first_` that `second_` lacks or holds with another hash. Absent if the hashes prove
  /// nothing: then reading slab by slab reads each chunk fewer times.
  std::optional<std::vector<Box>> unequal_chunks(const Pair& pair) {
    const auto* a = dynamic_cast<const CheckpointReader*>(&first_);
    const auto* b = dynamic_cast<const CheckpointReader*>(&second_);
    if (a == nullptr || b == nullptr) return std::nullopt;
    if (pair.diff.first_dtype != pair.diff.second_dtype) return std::nullopt;
    const auto place = [](const StoredChunk& chunk) {
      return to_string(chunk.box) + to_string(chunk.extents);
    };
    std::unordered_map<std::string, std::uint64_t> known;
    for (const StoredChunk& chunk : b->chunks(pair.second)) {
      known.emplace(place(chunk), chunk.hash);
    }
    std::vector<Box> unequal;
    std::size_t skipped = 0;
    for (const StoredChunk& chunk : a->chunks(pair.first)) {
      const auto found = known.find(place(chunk));
      if (found != known.end() && found->second == chunk.hash) {
        skipped += num_bytes(chunk.box.shape(), pair.first_bytes());
      } else {
        unequal.push_back(chunk.box);
      }
    }
    if (skipped == 0) return std::nullopt;
    report_.skipped_bytes += skipped;
    advance(skipped);
    return unequal;
  }

  /// Adds a box to the batch, which is read and compared first if it has no room left.
  void add(const Box& box, Pair& pair) {
    const std::size_t bytes =
        as_size(box.num_elements()) * (pair.first_bytes() + pair.second_bytes());
    if (batch_bytes_ + bytes > room_.size()) flush_batch(pair);
    if (bytes <= room_.size()) {
      batch_.push_back(box);
      batch_bytes_ += bytes;
      return;
    }
    for_each_slab(box, pair.first_bytes() + pair.second_bytes(), room_.size(),
                  [&](const Box& slab) { flush({slab}, pair); });
  }

  void flush_batch(Pair& pair) {
    flush(batch_, pair);
    batch_.clear();
    batch_bytes_ = 0;
  }

  /// Reads boxes of both readers, which fit into memory together, and compares them.
  void flush(const std::vector<Box>& boxes, Pair& pair) {
    std::size_t elements = 0;
    for (const Box& box : boxes) elements += as_size(box.num_elements());
    if (elements == 0) return;
    const std::span<std::byte> a = std::span(room_).first(elements * pair.first_bytes());
    const std::span<std::byte> b =
        std::span(room_).subspan(a.size(), elements * pair.second_bytes());
    read_boxes(first_, pair.first, boxes, pair.first_bytes(), a);
    read_boxes(second_, pair.second, boxes, pair.second_bytes(), b);
    std::size_t before = 0;
    for (const Box& box : boxes) {
      compare_box(box, a.data() + before * pair.first_bytes(),
                  b.data() + before * pair.second_bytes(), pair);
      before += as_size(box.num_elements());
    }
    report_.compared_bytes += a.size();
    advance(a.size());
  }

  void compare_box(const Box& box, const std::byte* a, const std::byte* b, Pair& pair) const {
    const std::int64_t elements = box.num_elements();
    std::vector<Found> parts(as_size((elements + kElementsATask - 1) / kElementsATask));
    executor_.parallel_for(static_cast<std::int64_t>(parts.size()), [&](std::int64_t part) {
      const std::int64_t begin = part * kElementsATask;
      parts[as_size(part)] =
          pair.comparison.compare(a, b, begin, std::min(begin + kElementsATask, elements));
    });
    Found found;
    for (const Found& part : parts) found.add(part);
    pair.found.add(found);
    if (found.at < 0) return;
    TensorDiff& diff = pair.diff;
    const Index at = detail::index_at(box, found.at);
    if (diff.at &&
        !std::lexicographical_compare(at.begin(), at.end(), diff.at->begin(), diff.at->end())) {
      return;
    }
    diff.at = at;
    const auto text = [&](DType dtype, const std::byte* elements_of) {
      return detail::element_text(dtype, elements_of + as_size(found.at) * size_bytes(dtype));
    };
    diff.first_value = text(*diff.first_dtype, a);
    diff.second_value = text(*diff.second_dtype, b);
  }

  void advance(std::size_t bytes) {
    progress_.done_bytes += bytes;
    if (options_.progress) options_.progress(progress_);
  }

  const BoxReader& first_;
  const BoxReader& second_;
  const DiffOptions& options_;
  const Executor executor_;
  std::vector<std::byte> room_;  // for boxes of both
  std::vector<Box> batch_;
  std::size_t batch_bytes_ = 0;
  DiffReport report_;
  Progress progress_;
};

}  // namespace

bool TensorDiff::equal() const { return compared && first_dtype == second_dtype && differing == 0; }

bool DiffReport::equal() const {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const TensorDiff& tensor) { return tensor.equal(); });
}

DiffReport diff(const BoxReader& first, const BoxReader& second, const DiffOptions& options) {
  if (options.memory_budget_bytes < kLeastBudget) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("diff: memory_budget_bytes: found {}, needed {} or more",
                            options.memory_budget_bytes, kLeastBudget));
  }
  for (const double tolerance : {options.atol, options.rtol}) {
    if (!(tolerance >= 0)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("diff: found tolerance {}, needed 0 or more", tolerance));
    }
  }
  return Run(first, second, options).report();
}

}  // namespace shardwise
