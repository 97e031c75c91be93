#include "shardwise/checkpoint/detail/edits/apply_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "shardwise/checkpoint/detail/edits/edit_text.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

// What a message shows. It ends up on a terminal.
constexpr std::size_t kMostFaults = 20;

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
std::string renamed(std::string_view pattern, std::string_view name,
                    std::span<const std::string_view> parts) {
  std::vector<std::string_view> stars, marks;  // what is left of them, in order
  std::size_t part = 0;
  for (const char c : pattern) {
    if (c == '*') stars.push_back(parts[part++]);
    if (c == '?') marks.push_back(parts[part++]);
  }
  std::string made;
  std::size_t star = 0, mark = 0;
  for (const char c : name) {
    if (c == '*') {
      made += stars[star++];
    } else if (c == '?') {
      made += marks[mark++];
    } else {
      made += c;
    }
  }
  return made;
}

/// A dim that may be counted from the end; absent if there is none.
std::optional<std::size_t> dim_of(std::int64_t dim, const Shape& shape) {
  const std::int64_t rank = std::ssize(shape);
  if (dim < -rank || dim >= rank) return std::nullopt;
  return as_size(dim < 0 ? dim + rank : dim);
}

std::optional<Sharding> transposed(const std::optional<Sharding>& sharding,
                                   std::span<const std::size_t> order) {
  if (!sharding || sharding->spec().rank() != order.size()) return std::nullopt;
  std::vector<PartitionSpec::Entry> entries;
  for (const std::size_t dim : order) entries.push_back(sharding->spec()[dim]);
  return Sharding(sharding->mesh(), PartitionSpec(std::move(entries)), sharding->policy());
}

/// Goes through the tensors of a source with edits, and collects what does not fit.
class Editing {
 public:
  Editing(std::span<const TensorInfo> tensors, const TensorEdits& edits)
      : tensors_(tensors), edits_(edits) {
    for (const TensorInfo& tensor : tensors) names_.push_back(tensor.name);
  }

  std::vector<EditedTensor> run(std::string_view operation) {
    select();
    transpose();
    split();
    join();
    rename();
    cast();
    throw_faults(operation);
    std::ranges::sort(made_, {}, [](const EditedTensor& tensor) { return tensor.info.name; });
    return std::move(made_);
  }

 private:
  /// A selected tensor of the source.
  struct Selected {
    std::size_t number;
    TensorInfo info;                 ///< as it is transposed
    std::vector<std::size_t> order;  ///< empty: it is not transposed
    bool taken = false;              ///< by a split or join
  };

  /// What became of a rule.
  struct Use {
    void add(bool counts) { (counts ? used : shadowed) = true; }

    bool used = false;
    bool shadowed = false;  ///< an earlier rule was taken instead
    bool passed_over =
        false;  ///< it has wildcards and matches only tensors that it leaves as they are
  };

  /// Tensors of a join that belong together.
  struct Group {
    std::vector<Selected*> members;  ///< one for each pattern; null: none is there
    std::size_t first = 0;           ///< a pattern that has one
    std::vector<std::string_view> wildcards;
  };

  void select() {
    std::vector<bool> wanted(names_.size(), edits_.select.empty());
    for (const std::string& pattern : edits_.select) mark("select", pattern, wanted, true);
    for (const std::string& pattern : edits_.exclude) mark("exclude", pattern, wanted, false);
    for (std::size_t t = 0; t < wanted.size(); ++t) {
      if (wanted[t]) selected_.push_back({.number = t, .info = tensors_[t], .order = {}});
    }
    if (selected_.empty() && faults_.empty() && !names_.empty()) {
      fault("nothing is selected of {} tensors, needed is one", names_.size());
    }
  }

  void transpose() {
    std::vector<Use> uses(edits_.transposes.size());
    std::vector<bool> usable;
    for (const TensorEdits::Transpose& rule : edits_.transposes) {
      std::vector<std::size_t> sorted = rule.order;
      std::ranges::sort(sorted);
      bool fits = !sorted.empty();
      for (std::size_t d = 0; d < sorted.size(); ++d) fits = fits && sorted[d] == d;
      usable.push_back(fits);
      if (!fits) {
        fault("transpose {}: needed are the dims from 0 to {}, each once", clipped(rule_text(rule)),
              std::max<std::size_t>(sorted.size(), 1) - 1);
      }
    }
    for (Selected& tensor : selected_) {
      for (std::size_t r = 0; r < uses.size(); ++r) {
        const TensorEdits::Transpose& rule = edits_.transposes[r];
        if (!usable[r] || !match_pattern(rule.pattern, names_[tensor.number])) continue;
        if (rule.order.size() != tensor.info.shape.size()) {
          uses[r].passed_over = true;
          if (is_wild(rule.pattern)) continue;
          uses[r].used = true;
          fault("transpose {}: tensor {} is {}, needed are {} dims", clipped(rule_text(rule)),
                clipped(tensor.info.name), to_string(tensor.info.shape), rule.order.size());
          continue;
        }
        uses[r].add(tensor.order.empty());
        if (!tensor.order.empty()) continue;
        tensor.order = rule.order;
        const Shape stored = tensor.info.shape;
        for (std::size_t d = 0; d < stored.size(); ++d) {
          tensor.info.shape[d] = stored[rule.order[d]];
        }
        tensor.info.sharding = transposed(tensor.info.sharding, rule.order);
      }
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      if (!usable[r]) continue;
      const TensorEdits::Transpose& rule = edits_.transposes[r];
      check("transpose", rule_text(rule), {&rule.pattern, 1}, uses[r],
            fmt::format("matches no tensor of {} dims", rule.order.size()));
    }
  }

  void split() {
    std::vector<Use> uses(edits_.splits.size());
    std::vector<bool> usable;
    for (const TensorEdits::Split& rule : edits_.splits) {
      bool fits = true;
      for (const std::string& name : rule.names) {
        fits = has_wildcards_of("split", rule_text(rule), rule.pattern, name) && fits;
      }
      if (rule.names.empty() ||
          (!rule.extents.empty() && rule.extents.size() != rule.names.size())) {
        fits = false;
        fault("split {}: found {} names and {} extents, needed is an extent for each name",
              clipped(rule_text(rule)), rule.names.size(), rule.extents.size());
      }
      usable.push_back(fits);
    }
    for (Selected& tensor : selected_) {
      for (std::size_t r = 0; r < uses.size(); ++r) {
        const TensorEdits::Split& rule = edits_.splits[r];
        if (!usable[r]) continue;
        const auto wildcards = match_pattern(rule.pattern, names_[tensor.number]);
        if (!wildcards) continue;
        uses[r].add(!tensor.taken);
        if (tensor.taken) continue;
        tensor.taken = true;
        add_parts(rule, tensor, *wildcards);
      }
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      if (!usable[r]) continue;
      check("split", rule_text(edits_.splits[r]), {&edits_.splits[r].pattern, 1}, uses[r]);
    }
  }

  void add_parts(const TensorEdits::Split& rule, const Selected& tensor,
                 std::span<const std::string_view> wildcards) {
    const std::string begin = fmt::format("split {}: tensor {} is {}", clipped(rule_text(rule)),
                                          clipped(tensor.info.name), to_string(tensor.info.shape));
    const std::optional<std::size_t> dim = dim_of(rule.dim, tensor.info.shape);
    if (!dim) return fault("{}, which has no dim {}", begin, rule.dim);
    const std::int64_t whole = tensor.info.shape[*dim];
    std::vector<std::int64_t> extents = rule.extents;
    if (extents.empty()) {
      const std::int64_t parts = std::ssize(rule.names);
      if (whole % parts != 0) {
        return fault(
            "{}, and {} is not divisible by {}: extents say how long the parts are, as in "
            "\"@{}:{},...\"",
            begin, whole, parts, rule.dim, whole / parts + 1);
      }
      extents.assign(rule.names.size(), whole / parts);
    }
    std::int64_t from = 0;
    bool fits = true;
    for (const std::int64_t extent : extents) {
      fits = fits && extent >= 0 && extent <= whole - from;
      if (fits) from += extent;
    }
    if (!fits || from != whole) {
      return fault("{}, whose dim {} has {}, not the sum of {}", begin, *dim, whole,
                   fmt::join(extents, " + "));
    }
    from = 0;
    for (std::size_t part = 0; part < extents.size(); ++part) {
      EditedTensor made{.info = tensor.info, .dim = *dim, .parts = {}};
      made.info.name = renamed(rule.pattern, rule.names[part], wildcards);
      made.info.shape[*dim] = extents[part];
      made.info.pieces = made.info.chunks = 0;
      made.info.stored_bytes = 0;
      made.parts.push_back({.source = tensor.number,
                            .order = tensor.order,
                            .from = from,
                            .begin = 0,
                            .end = extents[part]});
      from += extents[part];
      made_.push_back(std::move(made));
    }
  }

  void join() {
    for (const TensorEdits::Join& rule : edits_.joins) {
      bool fits = true;
      for (const std::string& pattern : rule.patterns) {
        fits = has_wildcards_of("join", rule_text(rule), pattern, rule.name, true) && fits;
      }
      if (rule.patterns.empty()) fault("join {}: found no pattern", clipped(rule_text(rule)));
      if (!fits || rule.patterns.empty()) continue;
      std::vector<Use> uses(rule.patterns.size());
      std::map<std::string, Group> groups;
      for (Selected& tensor : selected_) add_member(rule, tensor, uses, groups);
      for (std::size_t p = 0; p < uses.size(); ++p) {
        check("join", rule_text(rule), {&rule.patterns[p], 1}, uses[p], {}, uses.size() > 1);
      }
      for (auto& [name, group] : groups) {
        if (is_whole(rule, uses, group)) add_joined(rule, name, group);
      }
    }
  }

  void add_member(const TensorEdits::Join& rule, Selected& tensor, std::span<Use> uses,
                  std::map<std::string, Group>& groups) {
    for (std::size_t p = 0; p < rule.patterns.size(); ++p) {
      const auto wildcards = match_pattern(rule.patterns[p], names_[tensor.number]);
      if (!wildcards) continue;
      uses[p].add(!tensor.taken);
      if (tensor.taken) continue;
      const std::string name = renamed(rule.patterns[p], rule.name, *wildcards);
      Group& group = groups[name];
      if (group.members.empty()) {
        group = {.members = std::vector<Selected*>(rule.patterns.size()),
                 .first = p,
                 .wildcards = *wildcards};
      }
      if (group.members[p] != nullptr) {
        fault("join {}: {} and {} would both be the part {} of {}", clipped(rule_text(rule)),
              clipped(group.members[p]->info.name), clipped(tensor.info.name), p, clipped(name));
      }
      group.members[p] = &tensor;
      tensor.taken = true;
    }
  }

  /// Whether there is a tensor for each pattern. Patterns that match nothing were told of.
  bool is_whole(const TensorEdits::Join& rule, std::span<const Use> uses, const Group& group) {
    bool whole = true;
    for (std::size_t p = 0; p < group.members.size(); ++p) {
      if (group.members[p] != nullptr) continue;
      whole = false;
      if (!uses[p].used) continue;
      const std::string missing =
          renamed(rule.patterns[group.first], rule.patterns[p], group.wildcards);
      fault("join {}: found {}, and no {} to be joined to it{}", clipped(rule_text(rule)),
            clipped(group.members[group.first]->info.name), clipped(missing), nearest(missing));
    }
    return whole;
  }

  void add_joined(const TensorEdits::Join& rule, const std::string& name, const Group& group) {
    const TensorInfo& first = group.members.front()->info;
    const std::optional<std::size_t> dim = dim_of(rule.dim, first.shape);
    if (!dim) {
      return fault("join {}: tensor {} is {}, which has no dim {}", clipped(rule_text(rule)),
                   clipped(first.name), to_string(first.shape), rule.dim);
    }
    EditedTensor made{.info = first, .dim = *dim, .parts = {}};
    made.info.name = name;
    made.info.shape[*dim] = 0;
    made.info.pieces = made.info.chunks = 0;
    made.info.stored_bytes = 0;
    for (const Selected* member : group.members) {
      const TensorInfo& info = member->info;
      Shape there = info.shape, needed = first.shape;
      if (*dim < there.size()) there[*dim] = needed[*dim] = 0;
      if (there != needed) {
        return fault("join {}: tensor {} is {}, which does not fit beside {}, {}, along dim {}",
                     clipped(rule_text(rule)), clipped(info.name), to_string(info.shape),
                     clipped(first.name), to_string(first.shape), *dim);
      }
      const std::int64_t begin = made.info.shape[*dim], end = begin + info.shape[*dim];
      made.parts.push_back({.source = member->number,
                            .order = member->order,
                            .from = 0,
                            .begin = begin,
                            .end = end});
      made.info.shape[*dim] = end;
      made.info.pieces += info.pieces;
      made.info.chunks += info.chunks;
      made.info.stored_bytes += info.stored_bytes;
      if (made.info.sharding != info.sharding) made.info.sharding.reset();
    }
    made_.push_back(std::move(made));
  }

  /// What is neither split nor joined.
  void rename() {
    std::vector<Use> uses(edits_.renames.size());
    std::vector<bool> usable;
    for (const TensorEdits::Rename& rule : edits_.renames) {
      usable.push_back(has_wildcards_of("rename", rule_text(rule), rule.pattern, rule.name));
    }
    for (const Selected& tensor : selected_) {
      std::optional<std::string> renamed_to;
      for (std::size_t r = 0; r < uses.size(); ++r) {
        if (!usable[r]) continue;
        const TensorEdits::Rename& rule = edits_.renames[r];
        const auto wildcards = match_pattern(rule.pattern, names_[tensor.number]);
        if (!wildcards) continue;
        uses[r].add(!renamed_to && !tensor.taken);
        if (!renamed_to) renamed_to = renamed(rule.pattern, rule.name, *wildcards);
      }
      if (tensor.taken) continue;
      EditedTensor made{.info = tensor.info, .dim = 0, .parts = {}};
      if (renamed_to) made.info.name = *std::move(renamed_to);
      made.parts.push_back(
          {.source = tensor.number, .order = tensor.order, .from = 0, .begin = 0, .end = 0});
      made_.push_back(std::move(made));
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      if (!usable[r]) continue;
      check("rename", rule_text(edits_.renames[r]), {&edits_.renames[r].pattern, 1}, uses[r]);
    }
    if (!edits_.keeps_names()) check_different();
  }

  void cast() {
    std::vector<Use> uses(edits_.casts.size());
    std::vector<DType> dtypes(names_.size());
    for (const Selected& selected : selected_) {
      const TensorInfo& tensor = selected.info;
      std::optional<DType> dtype;
      for (std::size_t r = 0; r < uses.size(); ++r) {
        const TensorEdits::Cast& rule = edits_.casts[r];
        if (!match_pattern(rule.pattern, names_[selected.number])) continue;
        if (is_wild(rule.pattern) && is_floating(rule.dtype) && !is_floating(tensor.dtype)) {
          uses[r].passed_over = true;
          continue;
        }
        uses[r].add(!dtype);
        if (!dtype) check_cast(rule, tensor);
        if (!dtype) dtype = rule.dtype;
      }
      dtypes[selected.number] = dtype.value_or(tensor.dtype);
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      check("cast", rule_text(edits_.casts[r]), {&edits_.casts[r].pattern, 1}, uses[r],
            "matches no tensor of floats: a pattern with \"*\" or \"?\" casts floats alone");
    }
    for (EditedTensor& tensor : made_) {
      const DType dtype = dtypes[tensor.parts.front().source];
      for (const EditedPart& part : tensor.parts) {
        if (dtypes[part.source] == dtype) continue;
        fault(
            "{} would be joined of {}, {}, and {}, {}: needed is one dtype, which a cast can give",
            clipped(tensor.info.name), clipped(names_[tensor.parts.front().source]), name(dtype),
            clipped(names_[part.source]), name(dtypes[part.source]));
        break;
      }
      tensor.info.dtype = dtype;
      tensor.info.logical_bytes = num_bytes(tensor.info.shape, size_bytes(dtype));
    }
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

  template <class... Values>
  void fault(fmt::format_string<Values...> text, Values&&... values) {
    faults_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }

  void mark(const char* what, const std::string& pattern, std::vector<bool>& wanted, bool value) {
    bool found = false;
    for (std::size_t t = 0; t < names_.size(); ++t) {
      if (!match_pattern(pattern, names_[t])) continue;
      found = true;
      wanted[t] = value;
    }
    if (!found) {
      fault("{} {} matches none of {} tensors{}", what, clipped(pattern), names_.size(),
            nearest(pattern));
    }
  }

  /// Whether the new name has as many wildcards as the pattern, or none unless it needs them.
  bool has_wildcards_of(const char* what, const std::string& text, std::string_view pattern,
                        std::string_view name, bool needs_all = false) {
    for (const char wildcard : {'*', '?'}) {
      const auto found = std::count(name.begin(), name.end(), wildcard);
      const auto there = std::count(pattern.begin(), pattern.end(), wildcard);
      if (found == there || (found == 0 && !needs_all)) continue;
      fault("{} {}: found {} \"{}\" in the new name, needed {} as in the pattern{}", what,
            clipped(text), found, wildcard, there, needs_all ? "" : ", or none");
      return false;
    }
    return true;
  }

  void check(const char* what, const std::string& text, std::span<const std::string> patterns,
             const Use& use, std::string_view passed_over = {}, bool shows_pattern = false) {
    if (use.used) return;
    std::string said = fmt::format("{} {} ", what, clipped(text));
    if (use.shadowed) {
      said += "is not used: earlier rules take all that it matches";
    } else if (use.passed_over) {
      said += passed_over;
    } else {
      const std::string& pattern = patterns.front();
      said += fmt::format("matches none of {}{} tensors{}{}", selected_.size(),
                          selected_.size() == names_.size() ? "" : " selected",
                          shows_pattern ? " with " + clipped(pattern) : "", nearest(pattern));
    }
    faults_.push_back(std::move(said));
  }

  void check_different() {
    std::map<std::string_view, std::vector<std::string_view>> by_name;
    for (const EditedTensor& tensor : made_) {
      by_name[tensor.info.name].push_back(names_[tensor.parts.front().source]);
    }
    for (const auto& [name, from] : by_name) {
      if (from.size() == 1) continue;
      std::string said =
          fmt::format("{} would be the name of {} tensors, needed is one: {}, {}", clipped(name),
                      from.size(), clipped(from[0]), clipped(from[1]));
      if (from.size() > 2) said += fmt::format(" and {} more", from.size() - 2);
      faults_.push_back(std::move(said));
    }
  }

  void check_cast(const TensorEdits::Cast& rule, const TensorInfo& tensor) {
    const std::string begin = fmt::format("cast {}: tensor {} is {}", clipped(rule_text(rule)),
                                          clipped(tensor.name), name(tensor.dtype));
    if (rule.dtype == tensor.dtype) return;
    if (!is_computed(tensor.dtype) || !is_computed(rule.dtype)) {
      const DType stored = is_computed(tensor.dtype) ? rule.dtype : tensor.dtype;
      fault("{}; {} is stored and read, not cast", begin, name(stored));
    } else if (is_floating(tensor.dtype) ? !is_floating(rule.dtype)
                                         : !is_exact(tensor.dtype, rule.dtype)) {
      fault("{}, not all of whose values are exact as {}", begin, name(rule.dtype));
    }
  }

  std::string nearest(std::string_view pattern) const {
    const std::vector<std::string_view> found = nearest_names(names_, pattern);
    return found.empty() ? std::string() : ", nearest: " + clipped(found.front());
  }

  const std::span<const TensorInfo> tensors_;
  const TensorEdits& edits_;
  std::vector<std::string_view> names_;
  std::vector<Selected> selected_;
  std::vector<EditedTensor> made_;
  std::vector<std::string> faults_;
};

}  // namespace

Box EditedTensor::common(const EditedPart& part, Box box) const {
  if (parts.size() == 1) return box;
  const std::int64_t begin = std::clamp(box.begin(dim), part.begin, part.end);
  box.set(dim, begin, std::clamp(box.end(dim), begin, part.end));
  return box;
}

Box EditedTensor::in_source(const EditedPart& part, const Box& box) const {
  Box there = box;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    const std::int64_t shift = d == dim ? part.from - part.begin : 0;
    there.set(part.order.empty() ? d : part.order[d], box.begin(d) + shift, box.end(d) + shift);
  }
  return there;
}

Box EditedTensor::from_source(const EditedPart& part, const Box& box) const {
  Box here = box;
  for (std::size_t d = 0; d < box.rank(); ++d) {
    const std::int64_t shift = d == dim ? part.begin - part.from : 0;
    const std::size_t stored = part.order.empty() ? d : part.order[d];
    here.set(d, box.begin(stored) + shift, box.end(stored) + shift);
  }
  return here;
}

std::vector<EditedTensor> apply_edits(std::span<const TensorInfo> tensors, const TensorEdits& edits,
                                      std::string_view operation) {
  return Editing(tensors, edits).run(operation);
}

}  // namespace shardwise::detail
