#include "shardwise/checkpoint/edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

// What a message shows. It ends up on a terminal.
constexpr std::size_t kMostFaults = 20;
constexpr std::size_t kMostNameBytes = 60;

std::string clipped(std::string_view name) {
  if (name.size() <= kMostNameBytes) return fmt::format("{:?}", name);
  return fmt::format("{:?}...", name.substr(0, kMostNameBytes));
}

/// The two sides of a rule.
std::pair<std::string, std::string> halves(std::string_view kind, std::string_view text,
                                           std::string_view needed) {
  const std::vector<std::string_view> sides = split(text, '=');
  if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} {}: needed is {}, with one \"=\" (\"?\" in the pattern matches "
                            "another one)",
                            kind, clipped(text), needed));
  }
  return {std::string(sides[0]), std::string(sides[1])};
}

std::string text_of(const TensorEdits::Rename& rule) { return rule.pattern + "=" + rule.name; }
std::string text_of(const TensorEdits::Cast& rule) {
  return rule.pattern + "=" + std::string(name(rule.dtype));
}

bool is_wild(std::string_view pattern) {
  return pattern.find_first_of("*?") != std::string_view::npos;
}

/// Bits of an integer's magnitude, or of a float's significand: integers of as many bits are exact.
int exact_bits(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 53;
    case DType::f32:
      return 24;
    case DType::f16:
      return 11;
    case DType::bf16:
      return 8;
    case DType::boolean:
      return 1;
    default:
      break;
  }
  const bool is_signed = name(dtype).front() == 'i';
  return static_cast<int>(8 * size_bytes(dtype)) - (is_signed ? 1 : 0);
}

/// Whether every value of the source is one of the target. Requires dtypes that are computed with.
bool is_exact(DType from, DType to) {
  if (from == to) return true;
  if (is_floating(from) || to == DType::boolean) return false;
  const bool negative = name(from).front() == 'i';
  return exact_bits(from) <= exact_bits(to) &&
         (!negative || is_floating(to) || name(to).front() == 'i');
}

/// A name with its wildcards replaced by what those of a pattern stood for.
std::string renamed(const TensorEdits::Rename& rule, std::span<const std::string_view> parts) {
  std::vector<std::string_view> stars, marks;  // what is left of them, in order
  std::size_t part = 0;
  for (const char c : rule.pattern) {
    if (c == '*') stars.push_back(parts[part++]);
    if (c == '?') marks.push_back(parts[part++]);
  }
  std::string name;
  std::size_t star = 0, mark = 0;
  for (const char c : rule.name) {
    if (c == '*') {
      name += stars[star++];
    } else if (c == '?') {
      name += marks[mark++];
    } else {
      name += c;
    }
  }
  return name;
}

/// Goes through the tensors of a source with edits, and collects what does not fit.
class Editing {
 public:
  Editing(std::span<const TensorInfo> tensors, const TensorEdits& edits)
      : tensors_(tensors), edits_(edits) {
    for (const TensorInfo& tensor : tensors) names_.push_back(tensor.name);
  }

  /// The numbers of what is left.
  std::vector<std::size_t> selected() {
    std::vector<bool> wanted(names_.size(), edits_.select.empty());
    for (const std::string& pattern : edits_.select) mark("select", pattern, wanted, true);
    for (const std::string& pattern : edits_.exclude) mark("exclude", pattern, wanted, false);
    std::vector<std::size_t> numbers;
    for (std::size_t t = 0; t < wanted.size(); ++t) {
      if (wanted[t]) numbers.push_back(t);
    }
    if (numbers.empty() && faults_.empty() && !names_.empty()) {
      faults_.push_back(
          fmt::format("nothing is selected of {} tensors, needed is one", names_.size()));
    }
    return numbers;
  }

  /// The new names of these tensors.
  std::vector<std::string> new_names(std::span<const std::size_t> numbers) {
    const std::vector<TensorEdits::Rename> rules = usable_renames();
    std::vector<Use> uses(rules.size());
    std::vector<std::string> names;
    for (const std::size_t number : numbers) {
      const std::string_view name = names_[number];
      std::optional<std::string> renamed_to;
      for (std::size_t r = 0; r < rules.size(); ++r) {
        const auto parts = match_pattern(rules[r].pattern, name);
        if (!parts) continue;
        uses[r].add(!renamed_to);
        if (!renamed_to) renamed_to = renamed(rules[r], *parts);
      }
      names.push_back(renamed_to ? *std::move(renamed_to) : std::string(name));
    }
    for (std::size_t r = 0; r < rules.size(); ++r)
      check("rename", rules[r], uses[r], numbers.size());
    if (!rules.empty()) check_different(numbers, names);
    return names;
  }

  /// Their dtypes.
  std::vector<DType> new_dtypes(std::span<const std::size_t> numbers) {
    std::vector<Use> uses(edits_.casts.size());
    std::vector<DType> dtypes;
    for (const std::size_t number : numbers) {
      const TensorInfo& tensor = tensors_[number];
      std::optional<DType> dtype;
      for (std::size_t r = 0; r < uses.size(); ++r) {
        const TensorEdits::Cast& rule = edits_.casts[r];
        if (!match_pattern(rule.pattern, tensor.name)) continue;
        if (is_wild(rule.pattern) && is_floating(rule.dtype) && !is_floating(tensor.dtype)) {
          uses[r].passed_over = true;
          continue;
        }
        uses[r].add(!dtype);
        if (!dtype) check_cast(rule, tensor);
        if (!dtype) dtype = rule.dtype;
      }
      dtypes.push_back(dtype.value_or(tensor.dtype));
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      check("cast", edits_.casts[r], uses[r], numbers.size());
    }
    return dtypes;
  }

  void throw_faults(std::string_view operation) const {
    if (faults_.empty()) return;
    std::string text = fmt::format("{}: {} edit{} not fit: ", operation, faults_.size(),
                                   faults_.size() == 1 ? " does" : "s do");
    const std::size_t shown = std::min(faults_.size(), kMostFaults);
    text += fmt::format("{}",
                        fmt::join(faults_.begin(), faults_.begin() + std::ptrdiff_t(shown), "; "));
    if (shown < faults_.size()) text += fmt::format("; and {} more", faults_.size() - shown);
    throw Error(ErrorCode::invalid_argument, text);
  }

 private:
  /// What became of a rule.
  struct Use {
    void add(bool counts) { (counts ? used : shadowed) = true; }

    bool used = false;
    bool shadowed = false;     ///< an earlier rule was taken instead
    bool passed_over = false;  ///< a cast to floats matched no float
  };

  void mark(const char* what, const std::string& pattern, std::vector<bool>& wanted, bool value) {
    bool found = false;
    for (std::size_t t = 0; t < names_.size(); ++t) {
      if (!match_pattern(pattern, names_[t])) continue;
      found = true;
      wanted[t] = value;
    }
    if (!found) {
      faults_.push_back(fmt::format("{} {} matches none of {} tensors{}", what, clipped(pattern),
                                    names_.size(), nearest(pattern)));
    }
  }

  std::vector<TensorEdits::Rename> usable_renames() {
    std::vector<TensorEdits::Rename> usable;
    for (const TensorEdits::Rename& rule : edits_.renames) {
      bool fits = true;
      for (const char wildcard : {'*', '?'}) {
        const auto found = std::count(rule.name.begin(), rule.name.end(), wildcard);
        const auto there = std::count(rule.pattern.begin(), rule.pattern.end(), wildcard);
        if (found == 0 || found == there) continue;
        fits = false;
        faults_.push_back(fmt::format(
            "rename {}: found {} \"{}\" in the new name, needed {} as in the pattern, or none",
            clipped(text_of(rule)), found, wildcard, there));
      }
      if (fits) usable.push_back(rule);
    }
    return usable;
  }

  template <class Rule>
  void check(const char* what, const Rule& rule, const Use& use, std::size_t selected) {
    if (use.used) return;
    std::string fault = fmt::format("{} {} ", what, clipped(text_of(rule)));
    if (use.shadowed) {
      fault += "is not used: earlier rules take all that it matches";
    } else if (use.passed_over) {
      fault += "matches no tensor of floats: a pattern with \"*\" or \"?\" casts floats alone";
    } else {
      fault += fmt::format("matches none of {}{} tensors{}", selected,
                           selected == names_.size() ? "" : " selected", nearest(rule.pattern));
    }
    faults_.push_back(std::move(fault));
  }

  void check_different(std::span<const std::size_t> numbers,
                       const std::vector<std::string>& names) {
    std::map<std::string_view, std::vector<std::string_view>> by_name;
    for (std::size_t i = 0; i < names.size(); ++i) by_name[names[i]].push_back(names_[numbers[i]]);
    for (const auto& [name, from] : by_name) {
      if (from.size() == 1) continue;
      std::string fault =
          fmt::format("{} would be the name of {} tensors, needed is one: {}, {}", clipped(name),
                      from.size(), clipped(from[0]), clipped(from[1]));
      if (from.size() > 2) fault += fmt::format(" and {} more", from.size() - 2);
      faults_.push_back(std::move(fault));
    }
  }

  void check_cast(const TensorEdits::Cast& rule, const TensorInfo& tensor) {
    const std::string begin = fmt::format("cast {}: tensor {} is {}", clipped(text_of(rule)),
                                          clipped(tensor.name), name(tensor.dtype));
    if (rule.dtype == tensor.dtype) return;
    if (!is_computed(tensor.dtype) || !is_computed(rule.dtype)) {
      const DType stored = is_computed(tensor.dtype) ? rule.dtype : tensor.dtype;
      faults_.push_back(fmt::format("{}; {} is stored and read, not cast", begin, name(stored)));
    } else if (is_floating(tensor.dtype) ? !is_floating(rule.dtype)
                                         : !is_exact(tensor.dtype, rule.dtype)) {
      faults_.push_back(
          fmt::format("{}, not all of whose values are exact as {}", begin, name(rule.dtype)));
    }
  }

  std::string nearest(std::string_view pattern) const {
    const std::vector<std::string_view> found = nearest_names(names_, pattern);
    return found.empty() ? std::string() : ", nearest: " + clipped(found.front());
  }

  const std::span<const TensorInfo> tensors_;
  const TensorEdits& edits_;
  std::vector<std::string_view> names_;
  std::vector<std::string> faults_;
};

}  // namespace

TensorEdits::Rename TensorEdits::Rename::parse(std::string_view text) {
  auto [pattern, name] = halves("rename", text, "PATTERN=NAME");
  return {std::move(pattern), std::move(name)};
}

TensorEdits::Cast TensorEdits::Cast::parse(std::string_view text) {
  auto [pattern, dtype] = halves("cast", text, "PATTERN=DTYPE");
  return {std::move(pattern), parse_dtype(dtype)};
}

struct EditedTensors::Scratch {
  /// Elements as they are in the source.
  struct Elements {
    std::size_t held_bytes() const { return bytes.capacity(); }

    std::vector<std::byte> bytes;
  };

  std::size_t most_bytes;
  detail::ScratchPool<Elements> pool;
};

EditedTensors::EditedTensors(std::shared_ptr<const BoxReader> source, const TensorEdits& edits,
                             std::string_view operation, std::size_t scratch_bytes)
    : source_(std::move(source)),
      scratch_(new Scratch{std::max<std::size_t>(scratch_bytes, 16), {}}) {
  const std::span<const TensorInfo> tensors = source_->tensors();
  Editing editing(tensors, edits);
  const std::vector<std::size_t> numbers = editing.selected();
  const std::vector<std::string> names = editing.new_names(numbers);
  const std::vector<DType> dtypes = editing.new_dtypes(numbers);
  editing.throw_faults(operation);
  std::vector<std::size_t> order(numbers.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return names[a] < names[b]; });
  for (const std::size_t i : order) {
    TensorInfo info = tensors[numbers[i]];
    info.name = names[i];
    info.logical_bytes = info.logical_bytes / size_bytes(info.dtype) * size_bytes(dtypes[i]);
    info.dtype = dtypes[i];
    tensors_.push_back(std::move(info));
    numbers_.push_back(numbers[i]);
  }
}

EditedTensors::~EditedTensors() = default;

void EditedTensors::read(std::size_t tensor, const Box& box, std::span<std::byte> out) const {
  const std::size_t number = numbers_[tensor];
  const DType from = source_->tensors()[number].dtype, to = tensors_[tensor].dtype;
  if (from == to) return source_->read(number, box, out);
  std::size_t done_bytes = 0;
  for_each_slab(box, size_bytes(from), scratch_->most_bytes, [&](const Box& slab) {
    const detail::ScratchPool<Scratch::Elements>::Loan scratch(scratch_->pool);
    const std::size_t count = as_size(slab.num_elements());
    if (scratch->bytes.capacity() < count * size_bytes(from)) scratch->bytes = {};  // no growth
    scratch->bytes.resize(count * size_bytes(from));
    source_->read(number, slab, scratch->bytes);
    convert(from, scratch->bytes.data(), to, out.data() + done_bytes, count);
    done_bytes += count * size_bytes(to);
  });
}

const std::byte* EditedTensors::contiguous(std::size_t tensor, const Box& box) const {
  const std::size_t number = numbers_[tensor];
  const bool is_cast = source_->tensors()[number].dtype != tensors_[tensor].dtype;
  return is_cast ? nullptr : source_->contiguous(number, box);
}

}  // namespace shardwise
