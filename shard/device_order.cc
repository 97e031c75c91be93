#include "shardwise/shard/device_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "shardwise/shard/detail/divider.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "device order: " + what);
}

std::vector<std::int64_t> parse_numbers(std::string_view list, const char* what,
                                        std::string_view whole) {
  std::vector<std::int64_t> numbers;
  for (const std::string_view part : split(list, ',')) {
    const auto number = parse_count(trim(part));
    if (!number) {
      fail(
          fmt::format("\"{}\" is not {} in \"{}\"; needed is a form as in \"3,1,0,2\", "
                      "\"[8]\" or \"[4,2]T(1,0)\"",
                      trim(part), what, whole));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

struct DeviceOrder::List {
  std::vector<DeviceId> ids;                                 // by position
  std::vector<std::pair<DeviceId, std::int64_t>> by_device;  // device and position, ascending
};

struct DeviceOrder::Pattern {
  struct Term {
    detail::Divider size, position_stride, device_stride;

    bool operator==(const Term&) const = default;
  };
  std::vector<Term> terms;  // the largest device stride first
};

DeviceOrder DeviceOrder::iota(std::int64_t size) {
  if (size < 1) fail(fmt::format("{} devices; needed is at least 1", size));
  return DeviceOrder(Span{0, size});
}

DeviceOrder DeviceOrder::compact(DeviceId first, std::vector<std::int64_t> sizes,
                                 std::vector<std::int64_t> strides) {
  // Canonical form: no digit has size 1, and digits that continue their neighbours are merged.
  std::size_t kept = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 1) continue;
    std::int64_t next = 0;  // overflows if a list of ids only begins like a pattern
    if (kept > 0 && !__builtin_mul_overflow(strides[i], sizes[i], &next) &&
        strides[kept - 1] == next) {
      sizes[kept - 1] *= sizes[i];
      strides[kept - 1] = strides[i];
    } else {
      sizes[kept] = sizes[i];
      strides[kept] = strides[i];
      ++kept;
    }
  }
  DeviceOrder order(Span{first, 1});
  auto pattern = std::make_shared<Pattern>();
  for (std::size_t i = kept; i-- > 0;) {
    pattern->terms.push_back(
        {detail::Divider(sizes[i]), detail::Divider(order.size_), detail::Divider(strides[i])});
    order.size_ *= sizes[i];
  }
  std::sort(pattern->terms.begin(), pattern->terms.end(), [](const auto& a, const auto& b) {
    return a.device_stride.divisor() > b.device_stride.divisor();
  });
  const bool consecutive = kept == 0 || (kept == 1 && strides[0] == 1);
  if (!consecutive) order.pattern_ = std::move(pattern);
  return order;
}

DeviceOrder DeviceOrder::transposed(std::span<const std::int64_t> dims,
                                    std::span<const std::int64_t> perm) {
  std::vector<std::int64_t> axes(perm.begin(), perm.end());
  std::sort(axes.begin(), axes.end());
  for (std::size_t i = 0; i < axes.size() || i < dims.size(); ++i) {
    if (axes.size() == dims.size() && std::cmp_equal(axes[i], i)) continue;
    fail(fmt::format("[{}]T({}): needed after T is each of the {} dims once", fmt::join(dims, ","),
                     fmt::join(perm, ","), dims.size()));
  }
  std::vector<std::int64_t> strides(dims.size());
  std::int64_t size = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    strides[i] = size;
    if (dims[i] < 1 || __builtin_mul_overflow(size, dims[i], &size)) {
      fail(fmt::format("[{}]: needed are dims of at least 1 with a product below 2^63",
                       fmt::join(dims, ",")));
    }
  }
  std::vector<std::int64_t> sizes_out, strides_out;
  for (const std::int64_t axis : perm) {
    sizes_out.push_back(dims[static_cast<std::size_t>(axis)]);
    strides_out.push_back(strides[static_cast<std::size_t>(axis)]);
  }
  return compact(0, std::move(sizes_out), std::move(strides_out));
}

DeviceOrder DeviceOrder::transposed(std::initializer_list<std::int64_t> dims,
                                    std::initializer_list<std::int64_t> perm) {
  return transposed(std::span(dims.begin(), dims.size()), std::span(perm.begin(), perm.size()));
}

std::optional<DeviceOrder> DeviceOrder::recognise(std::span<const DeviceId> ids) {
  // Digit by digit, the least significant first. A digit ends where the step from one id to the
  // next changes, since in canonical form no digit continues its neighbour.
  std::vector<std::int64_t> sizes, strides;
  const std::size_t count = ids.size();
  for (std::size_t block = 1; block < count;) {
    const std::int64_t stride = ids[block] - ids[0];
    if (stride < 1) return std::nullopt;
    std::size_t size = 1;
    while (size * block < count && ids[size * block] - ids[(size - 1) * block] == stride) ++size;
    sizes.push_back(static_cast<std::int64_t>(size));
    strides.push_back(stride);
    block *= size;
    if (count % block != 0) return std::nullopt;
  }
  std::reverse(sizes.begin(), sizes.end());
  std::reverse(strides.begin(), strides.end());
  DeviceOrder order = compact(ids[0], std::move(sizes), std::move(strides));
  // Division tells the digits apart: each stride is larger than the smaller digits can reach.
  const std::vector<Digit> digits = order.digits();
  std::int64_t reach = 0;
  for (std::size_t i = digits.size(); i-- > 0;) {
    if (digits[i].device_stride <= reach) return std::nullopt;
    std::int64_t more = 0;
    if (__builtin_mul_overflow(digits[i].size - 1, digits[i].device_stride, &more) ||
        __builtin_add_overflow(reach, more, &reach)) {
      return std::nullopt;
    }
  }
  if (__builtin_add_overflow(reach, ids[0], &reach)) return std::nullopt;
  for (std::size_t p = 0; p < count; ++p) {
    if (order.device_at(static_cast<std::int64_t>(p)) != ids[p]) return std::nullopt;
  }
  return order;
}

DeviceOrder DeviceOrder::list(std::vector<DeviceId> ids) {
  if (ids.empty()) fail("0 device ids; needed is at least one");
  for (const DeviceId id : ids) {
    if (id < 0) fail(fmt::format("device id {} is negative; needed is at least 0", id));
  }
  if (auto order = recognise(ids)) return *std::move(order);
  auto list = std::make_shared<List>();
  list->by_device.reserve(ids.size());
  for (std::size_t p = 0; p < ids.size(); ++p) {
    list->by_device.emplace_back(ids[p], static_cast<std::int64_t>(p));
  }
  std::sort(list->by_device.begin(), list->by_device.end());
  for (std::size_t i = 1; i < ids.size(); ++i) {
    const auto& [device, position] = list->by_device[i];
    if (list->by_device[i - 1].first != device) continue;
    fail(fmt::format("device id {} is at positions {} and {}", device,
                     list->by_device[i - 1].second, position));
  }
  DeviceOrder order(Span{0, static_cast<std::int64_t>(ids.size())});
  list->ids = std::move(ids);
  order.list_ = std::move(list);
  return order;
}

DeviceOrder DeviceOrder::parse(std::string_view text) {
  const std::string_view trimmed = trim(text);
  if (!trimmed.starts_with('[')) return list(parse_numbers(trimmed, "a device id", text));
  const std::size_t close = trimmed.find(']');
  if (close == std::string_view::npos) fail(fmt::format("\"{}\" has no ']'", text));
  const std::vector<std::int64_t> dims = parse_numbers(trimmed.substr(1, close - 1), "a dim", text);
  const std::string_view rest = trimmed.substr(close + 1);
  std::vector<std::int64_t> perm(dims.size());
  std::iota(perm.begin(), perm.end(), 0);
  if (!rest.empty()) {
    if (!rest.starts_with("T(") || !rest.ends_with(')')) {
      fail(fmt::format("\"{}\" goes on with \"{}\"; needed is the end or \"T(1,0)\"", text, rest));
    }
    perm = parse_numbers(rest.substr(2, rest.size() - 3), "a dim's number", text);
  }
  return transposed(dims, perm);
}

DeviceId DeviceOrder::device_at(std::int64_t position) const {
  if (list_ != nullptr) return list_->ids[static_cast<std::size_t>(position)];
  if (pattern_ == nullptr) return first_ + position;
  DeviceId device = first_;
  for (const auto& digit : pattern_->terms) {
    device += digit.size.remainder(digit.position_stride.quotient(position)) *
              digit.device_stride.divisor();
  }
  return device;
}

std::optional<std::int64_t> DeviceOrder::position_of(DeviceId device) const {
  if (list_ != nullptr) {
    const auto& sorted = list_->by_device;
    const auto found =
        std::lower_bound(sorted.begin(), sorted.end(), std::pair{device, DeviceId{0}});
    if (found == sorted.end() || found->first != device) return std::nullopt;
    return found->second;
  }
  if (device < first_) return std::nullopt;
  std::int64_t rest = device - first_;
  if (pattern_ == nullptr) return rest < size_ ? std::optional(rest) : std::nullopt;
  std::int64_t position = 0;
  for (const auto& digit : pattern_->terms) {
    const std::int64_t value = digit.device_stride.quotient(rest);
    if (value >= digit.size.divisor()) return std::nullopt;
    rest -= value * digit.device_stride.divisor();
    position += value * digit.position_stride.divisor();
  }
  return rest == 0 ? std::optional(position) : std::nullopt;
}

DeviceId DeviceOrder::nth_smallest(std::int64_t k) const {
  if (list_ != nullptr) return list_->by_device[static_cast<std::size_t>(k)].first;
  if (pattern_ == nullptr) return first_ + k;
  DeviceId device = first_;
  for (std::size_t i = pattern_->terms.size(); i-- > 0;) {
    const Pattern::Term& term = pattern_->terms[i];
    device += term.size.remainder(k) * term.device_stride.divisor();
    k = term.size.quotient(k);
  }
  return device;
}

bool DeviceOrder::is_dense() const {
  if (list_ != nullptr || first_ != 0) return false;
  const std::vector<Digit> all = digits();
  std::int64_t devices = 1;
  for (std::size_t i = all.size(); i-- > 0;) {
    if (all[i].device_stride != devices) return false;
    devices *= all[i].size;
  }
  return true;
}

std::string DeviceOrder::to_string() const {
  if (is_iota()) return fmt::format("[{}]", size_);
  if (!is_dense()) {
    std::string text;
    for (std::int64_t p = 0; p < size_; ++p) {
      if (p > 0) text += ',';
      text += fmt::format_int(device_at(p)).c_str();
    }
    return text;
  }
  // The digits sorted by device stride are the dims; sorted by position stride they are the
  // permuted dims.
  const std::vector<Digit> all = digits();
  std::vector<std::int64_t> dims;
  dims.reserve(all.size());
  for (const Digit& digit : all) dims.push_back(digit.size);
  std::vector<std::size_t> perm(all.size());
  std::iota(perm.begin(), perm.end(), std::size_t{0});
  std::sort(perm.begin(), perm.end(), [&all](std::size_t a, std::size_t b) {
    return all[a].position_stride > all[b].position_stride;
  });
  return fmt::format("[{}]T({})", fmt::join(dims, ","), fmt::join(perm, ","));
}

std::vector<DeviceOrder::Digit> DeviceOrder::digits() const {
  if (list_ != nullptr || size_ == 1) return {};
  if (pattern_ == nullptr) return {{size_, 1, 1}};
  std::vector<Digit> digits;
  for (const Pattern::Term& term : pattern_->terms) {
    digits.push_back(
        {term.size.divisor(), term.position_stride.divisor(), term.device_stride.divisor()});
  }
  return digits;
}

bool DeviceOrder::operator==(const DeviceOrder& other) const {
  if (size_ != other.size_ || first_ != other.first_ || is_compact() != other.is_compact()) {
    return false;
  }
  if (list_ != nullptr) return list_ == other.list_ || list_->ids == other.list_->ids;
  if (pattern_ == other.pattern_) return true;
  return pattern_ != nullptr && other.pattern_ != nullptr &&
         pattern_->terms == other.pattern_->terms;
}

}  // namespace shardwise
