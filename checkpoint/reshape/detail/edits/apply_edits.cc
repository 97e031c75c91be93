#include "shardwise/reshape/detail/edits/apply_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "shardwise/reshape/detail/edits/edit_faults.h"
#include "shardwise/reshape/detail/edits/edit_names.h"
#include "shardwise/reshape/detail/edits/edit_text.h"
#include "shardwise/reshape/detail/edits/exact_cast.h"
#include "shardwise/shard/text.h"

namespace shardwise::reshape_detail {
namespace {

/// A dim that may be counted from the end; absent if it is out of range.
std::optional<std::size_t> dim_of(std::int64_t dim, const Shape& shape) {
  const std::int64_t rank = std::ssize(shape);
  if (dim < -rank || dim >= rank) return std::nullopt;
  return as_size(dim < 0 ? dim + rank : dim);
}

std::vector<std::size_t> same_order(std::size_t rank) {
  std::vector<std::size_t> order(rank);
  for (std::size_t d = 0; d < rank; ++d) order[d] = d;
  return order;
}

/// These dims of a tensor; kNewDim is one of extent 1.
void take_dims(TensorInfo& tensor, std::span<const std::size_t> order) {
  Shape shape;
  for (const std::size_t dim : order) shape.push_back(dim == kNewDim ? 1 : tensor.shape[dim]);
  if (tensor.sharding && tensor.sharding->spec().rank() == tensor.shape.size()) {
    std::vector<PartitionSpec::Entry> entries;
    for (const std::size_t dim : order) {
      entries.push_back(dim == kNewDim ? PartitionSpec::Entry() : tensor.sharding->spec()[dim]);
    }
    tensor.sharding = Sharding(tensor.sharding->mesh(), PartitionSpec(std::move(entries)),
                               tensor.sharding->policy());
  }
  tensor.shape = shape;
}

/// True if a tensor can be cut as its sources were.
bool fits_sharding(const TensorInfo& tensor) {
  try {
    static_cast<void>(tensor.sharding->shard_shape(tensor.shape));
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Clears the counts that are known of a checkpoint's tensors, but not of parts of them.
void forget_pieces(TensorInfo& tensor) {
  tensor.pieces = tensor.chunks = 0;
  tensor.stored_bytes = 0;
}

/// Goes through the tensors of a source with edits, and collects what does not fit.
class Editing {
 public:
  Editing(std::span<const TensorInfo> tensors, const TensorEdits& edits)
      : tensors_(tensors), edits_(edits), names_(names_of(tensors)), faults_(names_) {}

  std::vector<EditedTensor> run(std::string_view operation) {
    select();
    transpose();
    resize();
    split();
    join();
    rename();
    cast();
    faults_.throw_if_any(operation);
    std::ranges::sort(made_, {}, [](const EditedTensor& tensor) { return tensor.info.name; });
    return std::move(made_);
  }

 private:
  /// A selected tensor of the source.
  struct Selected {
    std::size_t number;
    TensorInfo info;                 ///< as it is transposed and resized
    std::vector<std::size_t> order;  ///< empty: it is not transposed
    bool taken = false;              ///< by a split or join
  };

  /// Tensors of a join that belong together.
  struct Group {
    std::map<std::size_t, Selected*> members;  ///< by pattern, or by number
    std::vector<std::string_view> wildcards;
  };

  static std::vector<std::string_view> names_of(std::span<const TensorInfo> tensors) {
    std::vector<std::string_view> names;
    for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
    return names;
  }

  void select() {
    std::vector<bool> wanted(names_.size(), edits_.select.empty());
    for (const std::string& pattern : edits_.select) mark("select", pattern, wanted, true);
    for (const std::string& pattern : edits_.exclude) mark("exclude", pattern, wanted, false);
    for (std::size_t t = 0; t < wanted.size(); ++t) {
      if (wanted[t]) selected_.push_back({.number = t, .info = tensors_[t], .order = {}});
    }
    faults_.set_selected(selected_.size());
    if (selected_.empty() && faults_.empty() && !names_.empty()) {
      fault("nothing is selected of {} tensors, needed is one", names_.size());
    }
  }

  void transpose() {
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
    const auto rank_of = [](const TensorEdits::Transpose& rule) { return rule.order.size(); };
    by_rank("transpose", edits_.transposes, usable, rank_of,
            [](const TensorEdits::Transpose& rule, Selected& tensor) {
              tensor.order = rule.order;
              take_dims(tensor.info, rule.order);
            });
  }

  void resize() {
    const auto rank_of = [](const TensorEdits::Resize& rule) { return rule.extents.size(); };
    by_rank("resize", edits_.resizes, std::vector<bool>(edits_.resizes.size(), true), rank_of,
            [this](const TensorEdits::Resize& rule, Selected& tensor) { resize(rule, tensor); });
  }

  void resize(const TensorEdits::Resize& rule, Selected& tensor) {
    const bool pads = rule.how == TensorEdits::Resize::How::pad;
    TensorInfo& info = tensor.info;
    const std::string begin = fmt::format("resize {}: tensor {} is {}", clipped(rule_text(rule)),
                                          clipped(info.name), to_string(info.shape));
    Shape shape = info.shape;
    for (std::size_t d = 0; d < shape.size(); ++d) {
      const std::int64_t wanted = rule.extents[d];
      if (wanted == TensorEdits::Resize::kSame) continue;
      if (wanted < 0 || (pads ? wanted < shape[d] : wanted > shape[d])) {
        return fault("{}, needed to {} it is an extent of at {} {} along dim {}; \"{}\" {}", begin,
                     pads ? "pad" : "slice", pads ? "least" : "most", shape[d], d,
                     pads ? "slice" : "pad", pads ? "takes the beginning" : "adds zeros");
      }
      shape[d] = wanted;
    }
    if (shape == info.shape) return;
    if (pads && info.dtype == DType::f8_e8m0fnu) {
      return fault("{} of {}, which has no zero to pad it with", begin, name(info.dtype));
    }
    try {
      static_cast<void>(num_bytes(shape, size_bytes(DType::c128)));  // of any dtype
    } catch (const Error& error) {
      return fault("{}: {}", begin, error.what());
    }
    info.shape = shape;
    forget_pieces(info);
  }

  /// Gives each tensor to the first rule that matches it and is of as many dims. Rules that are not
  /// usable were told of.
  template <class Rule, class RankOf, class Apply>
  void by_rank(const char* what, const std::vector<Rule>& rules, const std::vector<bool>& usable,
               RankOf&& rank_of, Apply&& apply) {
    std::vector<RuleUse> uses(rules.size());
    for (Selected& tensor : selected_) {
      bool taken = false;
      for (std::size_t r = 0; r < uses.size(); ++r) {
        const Rule& rule = rules[r];
        if (!usable[r] || !match_pattern(rule.pattern, names_[tensor.number])) continue;
        if (rank_of(rule) != tensor.info.shape.size()) {
          uses[r].passed_over = true;
          if (is_wild(rule.pattern)) continue;
          uses[r].used = true;
          fault("{} {}: tensor {} is {}, needed are {} dims", what, clipped(rule_text(rule)),
                clipped(tensor.info.name), to_string(tensor.info.shape), rank_of(rule));
          continue;
        }
        uses[r].add(!taken);
        if (!taken) apply(rule, tensor);
        taken = true;
      }
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      if (!usable[r]) continue;
      faults_.check_used(what, rule_text(rules[r]), rules[r].pattern, uses[r],
                         fmt::format("matches no tensor of {} dims", rank_of(rules[r])));
    }
  }

  void split() {
    std::vector<RuleUse> uses(edits_.splits.size());
    std::vector<bool> usable;
    for (const TensorEdits::Split& rule : edits_.splits) {
      bool fits = true;
      for (const std::string& name : rule.names) {
        fits = faults_.has_wildcards_of("split", rule_text(rule), rule.pattern, name) && fits;
      }
      if (rule.names.empty() ||
          (!rule.extents.empty() && rule.extents.size() != rule.names.size())) {
        fits = false;
        fault("split {}: found {} names and {} extents, needed is an extent for each name",
              clipped(rule_text(rule)), rule.names.size(), rule.extents.size());
      }
      if (std::ranges::any_of(rule.names, is_numbered) &&
          (rule.names.size() > 1 || std::ranges::count(rule.names[0], '#') > 1 ||
           !rule.extents.empty())) {
        fits = false;
        fault("split {}: found a \"#\", which needs one name with one of them, and no extents",
              clipped(rule_text(rule)));
      }
      if (rule.takes_dim && !rule.extents.empty()) {
        fits = false;
        fault("split {}: found extents, needed none, as each name is of one index",
              clipped(rule_text(rule)));
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
      faults_.check_used("split", rule_text(edits_.splits[r]), edits_.splits[r].pattern, uses[r]);
    }
  }

  void add_parts(const TensorEdits::Split& rule, const Selected& tensor,
                 std::span<const std::string_view> wildcards) {
    const std::string begin = fmt::format("split {}: tensor {} is {}", clipped(rule_text(rule)),
                                          clipped(tensor.info.name), to_string(tensor.info.shape));
    const std::optional<std::size_t> dim = dim_of(rule.dim, tensor.info.shape);
    if (!dim) return fault("{}, which has no dim {}", begin, rule.dim);
    const std::int64_t whole = tensor.info.shape[*dim];
    if (is_numbered(rule.names.front())) return add_indices(rule, tensor, wildcards, *dim);
    if (rule.takes_dim) {
      if (whole == std::ssize(rule.names)) return add_indices(rule, tensor, wildcards, *dim);
      return fault("{}, whose dim {} has {} indices, needed are {}, one for each name", begin, *dim,
                   whole, rule.names.size());
    }
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
      made.info.name = edited_name(rule.pattern, rule.names[part], wildcards);
      made.info.shape[*dim] = extents[part];
      forget_pieces(made.info);
      made.parts.push_back(part_of(tensor));
      made.parts.back().from = from;
      from += extents[part];
      made_.push_back(std::move(made));
    }
  }

  /// One tensor for each index of a dim, without that dim.
  void add_indices(const TensorEdits::Split& rule, const Selected& tensor,
                   std::span<const std::string_view> wildcards, std::size_t dim) {
    const std::size_t rank = tensor.info.shape.size();
    std::vector<std::size_t> others = same_order(rank);
    others.erase(others.begin() + std::ptrdiff_t(dim));
    EditedPart part = part_of(tensor);
    if (part.order.empty()) part.order = same_order(rank);
    part.order.erase(part.order.begin() + std::ptrdiff_t(dim));
    part.is_scalar = part.order.empty();
    const bool by_number = is_numbered(rule.names.front());
    for (std::int64_t index = 0; index < tensor.info.shape[dim]; ++index) {
      EditedTensor made{.info = tensor.info, .parts = {part}};
      const std::string name = by_number ? numbered_name(rule.names.front(), as_size(index))
                                         : rule.names[as_size(index)];
      made.info.name = edited_name(rule.pattern, name, wildcards);
      take_dims(made.info, others);
      forget_pieces(made.info);
      made.parts.back().from = index;
      made_.push_back(std::move(made));
    }
  }

  static EditedPart part_of(const Selected& tensor) {
    return {
        .source = tensor.number, .source_rank = tensor.info.shape.size(), .order = tensor.order};
  }

  void join() {
    for (const TensorEdits::Join& rule : edits_.joins) {
      bool fits = !rule.patterns.empty();
      if (!fits) fault("join {}: found no pattern", clipped(rule_text(rule)));
      for (const std::string& pattern : rule.patterns) {
        fits = faults_.has_wildcards_of("join", rule_text(rule), pattern, rule.name, true) && fits;
      }
      if (std::ranges::any_of(rule.patterns, is_numbered) &&
          (rule.patterns.size() > 1 || std::ranges::count(rule.patterns[0], '#') > 1)) {
        fits = false;
        fault("join {}: found a \"#\", which needs one pattern with one of them",
              clipped(rule_text(rule)));
      }
      if (!fits) continue;
      std::vector<RuleUse> uses(rule.patterns.size());
      std::map<std::string, Group> groups;
      for (Selected& tensor : selected_) add_member(rule, tensor, uses, groups);
      for (std::size_t p = 0; p < uses.size(); ++p) {
        faults_.check_used("join", rule_text(rule), rule.patterns[p], uses[p], {}, uses.size() > 1);
      }
      for (auto& [name, group] : groups) {
        if (is_whole(rule, uses, group)) add_joined(rule, name, group);
      }
    }
  }

  void add_member(const TensorEdits::Join& rule, Selected& tensor, std::span<RuleUse> uses,
                  std::map<std::string, Group>& groups) {
    for (std::size_t p = 0; p < rule.patterns.size(); ++p) {
      const std::string& pattern = rule.patterns[p];
      auto match = match_edited(pattern, names_[tensor.number]);
      if (!match) continue;
      uses[p].add(!tensor.taken);
      if (tensor.taken) continue;
      tensor.taken = true;
      const std::string name = edited_name(pattern, rule.name, match->wildcards);
      Group& group = groups[name];
      const auto [at, is_new] =
          group.members.emplace(is_numbered(pattern) ? match->number : p, &tensor);
      group.wildcards = std::move(match->wildcards);
      if (is_new) continue;
      fault("join {}: {} and {} would both be the part {} of {}", clipped(rule_text(rule)),
            clipped(at->second->info.name), clipped(tensor.info.name), at->first, clipped(name));
    }
  }

  /// True if there is a tensor for each pattern, or for each number from 0 on. Patterns that match
  /// nothing are faults already.
  bool is_whole(const TensorEdits::Join& rule, std::span<const RuleUse> uses, const Group& group) {
    const bool by_number = is_numbered(rule.patterns.front());
    const std::size_t needed = by_number ? group.members.size() : rule.patterns.size();
    bool whole = true;
    for (std::size_t p = 0; p < needed; ++p) {
      if (group.members.contains(p)) continue;
      whole = false;
      if (!by_number && !uses[p].used) continue;
      const std::string pattern =
          by_number ? numbered_name(rule.patterns.front(), p) : rule.patterns[p];
      const std::string missing = edited_name(pattern, pattern, group.wildcards);
      fault("join {}: found {}, and no {} to be joined to it{}", clipped(rule_text(rule)),
            clipped(group.members.begin()->second->info.name), clipped(missing),
            faults_.nearest(missing));
    }
    return whole;
  }

  void add_joined(const TensorEdits::Join& rule, const std::string& name, const Group& group) {
    const TensorInfo& first = group.members.begin()->second->info;
    const bool adds_dim = rule.adds_dim || is_numbered(rule.patterns.front());
    Shape shape = first.shape;
    if (adds_dim && shape.size() < kMaxRank) shape.push_back(1);
    const std::optional<std::size_t> dim = dim_of(rule.dim, shape);
    if (!dim || (adds_dim && first.shape.size() == kMaxRank)) {
      return fault("join {}: tensor {} is {}, which has no {}dim {}", clipped(rule_text(rule)),
                   clipped(first.name), to_string(first.shape), adds_dim ? "room for a " : "",
                   rule.dim);
    }
    EditedTensor made{.info = first, .dim = *dim, .parts = {}};
    for (const auto& [place, member] : group.members) {
      TensorInfo info = member->info;
      EditedPart part = part_of(*member);
      if (adds_dim) {
        std::vector<std::size_t> order = same_order(info.shape.size());
        order.insert(order.begin() + std::ptrdiff_t(std::min(*dim, order.size())), kNewDim);
        take_dims(info, order);
        if (part.order.empty()) part.order = same_order(part.source_rank);
        part.order.insert(part.order.begin() + std::ptrdiff_t(std::min(*dim, part.order.size())),
                          kNewDim);
      }
      if (made.parts.empty()) {
        made.info = info;
        made.info.name = name;
        made.info.shape[*dim] = 0;
        forget_pieces(made.info);
      }
      Shape there = info.shape, needed = made.info.shape;
      if (*dim < there.size()) there[*dim] = needed[*dim] = 0;
      if (there != needed) {
        return fault("join {}: tensor {} is {}, which does not fit {}, {}, along {}dim {}",
                     clipped(rule_text(rule)), clipped(member->info.name),
                     to_string(member->info.shape), clipped(first.name), to_string(first.shape),
                     adds_dim ? "a new " : "", *dim);
      }
      part.begin = made.info.shape[*dim];
      if (__builtin_add_overflow(part.begin, info.shape[*dim], &part.end)) {
        return fault("join {}: the parts have more than 2^63 - 1 along dim {}",
                     clipped(rule_text(rule)), *dim);
      }
      made.info.shape[*dim] = part.end;
      made.info.pieces += info.pieces;
      made.info.chunks += info.chunks;
      made.info.stored_bytes += info.stored_bytes;
      if (made.info.sharding != info.sharding) made.info.sharding.reset();
      made.parts.push_back(std::move(part));
    }
    made_.push_back(std::move(made));
  }

  /// Renames tensors that are neither split nor joined.
  void rename() {
    std::vector<RuleUse> uses(edits_.renames.size());
    std::vector<bool> usable;
    for (const TensorEdits::Rename& rule : edits_.renames) {
      usable.push_back(
          faults_.has_wildcards_of("rename", rule_text(rule), rule.pattern, rule.name));
    }
    for (const Selected& tensor : selected_) {
      std::optional<std::string> renamed_to;
      for (std::size_t r = 0; r < uses.size(); ++r) {
        if (!usable[r]) continue;
        const TensorEdits::Rename& rule = edits_.renames[r];
        const auto wildcards = match_pattern(rule.pattern, names_[tensor.number]);
        if (!wildcards) continue;
        uses[r].add(!renamed_to && !tensor.taken);
        if (!renamed_to) renamed_to = edited_name(rule.pattern, rule.name, *wildcards);
      }
      if (tensor.taken) continue;
      EditedTensor made{.info = tensor.info, .parts = {}};
      if (renamed_to) made.info.name = *std::move(renamed_to);
      made.parts.push_back(part_of(tensor));
      made_.push_back(std::move(made));
    }
    for (std::size_t r = 0; r < uses.size(); ++r) {
      if (!usable[r]) continue;
      faults_.check_used("rename", rule_text(edits_.renames[r]), edits_.renames[r].pattern,
                         uses[r]);
    }
    if (!edits_.keeps_names()) check_different();
  }

  void cast() {
    std::vector<RuleUse> uses(edits_.casts.size());
    std::vector<DType> dtypes(names_.size());
    for (const Selected& selected : selected_) {
      const TensorInfo& tensor = selected.info;
      std::optional<DType> dtype;
      for (std::size_t r = 0; r < uses.size(); ++r) {
        const TensorEdits::Cast& rule = edits_.casts[r];
        if (!match_pattern(rule.pattern, names_[selected.number])) continue;
        const bool is_other = is_float(rule.dtype)     ? !is_float(tensor.dtype)
                              : is_complex(rule.dtype) ? !is_complex(tensor.dtype)
                                                       : false;
        if (is_wild(rule.pattern) && is_other) {
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
      faults_.check_used(
          "cast", rule_text(edits_.casts[r]), edits_.casts[r].pattern, uses[r],
          is_complex(edits_.casts[r].dtype)
              ? "matches no complex tensor: a pattern with \"*\" or \"?\" casts those alone"
              : "matches no tensor of floats: a pattern with \"*\" or \"?\" casts floats alone");
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
      if (tensor.info.sharding && !fits_sharding(tensor.info)) tensor.info.sharding.reset();
      tensor.info.dtype = dtype;
      tensor.info.logical_bytes = num_bytes(tensor.info.shape, size_bytes(dtype));
    }
  }

  template <class... Values>
  void fault(fmt::format_string<Values...> text, Values&&... values) {
    faults_.add(fmt::format(text, std::forward<Values>(values)...));
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
            faults_.nearest(pattern));
    }
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
      faults_.add(std::move(said));
    }
  }

  void check_cast(const TensorEdits::Cast& rule, const TensorInfo& tensor) {
    const std::string begin = fmt::format("cast {}: tensor {} is {}", clipped(rule_text(rule)),
                                          clipped(tensor.name), name(tensor.dtype));
    if (rule.dtype == tensor.dtype) return;
    if (!can_cast(tensor.dtype, rule.dtype)) {
      fault("{}, not all of whose values are exact as {}", begin, name(rule.dtype));
    }
  }

  const std::span<const TensorInfo> tensors_;
  const TensorEdits& edits_;
  const std::vector<std::string_view> names_;
  std::vector<Selected> selected_;
  std::vector<EditedTensor> made_;
  EditFaults faults_;
};

}  // namespace

std::vector<EditedTensor> apply_edits(std::span<const TensorInfo> tensors, const TensorEdits& edits,
                                      std::string_view operation) {
  return Editing(tensors, edits).run(operation);
}

}  // namespace shardwise::reshape_detail
