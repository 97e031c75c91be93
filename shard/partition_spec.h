#pragma once

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// How each dim of a tensor is cut: per dim an ordered list of mesh axes, major first; an empty
/// list leaves the dim whole (replicated over the axes that no dim uses).
///
/// A spec knows no mesh: Sharding checks that the axes exist and that none is used twice. An axis
/// may be given by name or by number, and in part: if an axis of 8 is seen as 2 x 4, "x:(2)4" is
/// the minor factor and "x:(1)2" the major one (Shardy's sub-axes).
///
/// Immutable value type.
///
///   const PartitionSpec spec{"data", {}, {"a", "b"}};
///   spec.to_string();                                  // "data,-,a+b"
///   PartitionSpec::parse("data,-,a+b") == spec;
///   PartitionSpec{0, std::nullopt} == PartitionSpec{"0", {}};
class PartitionSpec {
 public:
  using Entry = std::vector<std::string>;

  /// An axis by its name or number.
  struct AxisName {
    template <std::convertible_to<std::string_view> Text>
    AxisName(const Text& name) : text(std::string_view(name)) {}
    template <std::integral Number>
    AxisName(Number number) : text(std::to_string(number)) {}

    std::string text;
  };

  /// The entry of one dim: an axis, several in braces, or no axis: {}, std::nullopt, nullptr. A
  /// text is read like one dim in parse().
  struct Dim {
    Dim() = default;
    Dim(std::nullopt_t) {}
    Dim(std::nullptr_t) {}
    Dim(Entry list) : axes(std::move(list)) {}
    Dim(std::initializer_list<AxisName> list) {
      for (const AxisName& axis : list) axes.push_back(axis.text);
    }
    template <std::integral Number>
    Dim(Number number) : Dim({AxisName(number)}) {}
    template <std::convertible_to<std::string_view> Text>
    Dim(const Text& text) : axes(dim_of_text(text)) {}

    Entry axes;
  };

  /// The spec of a scalar.
  PartitionSpec() = default;
  PartitionSpec(std::initializer_list<Dim> dims) {
    for (const Dim& dim : dims) entries_.push_back(dim.axes);
  }
  explicit PartitionSpec(std::vector<Entry> entries) : entries_(std::move(entries)) {}

  template <class A, class B, class... C>
  PartitionSpec(const A&, const B&, const C&...) = delete;  // PartitionSpec{"data", "model"}

  /// As parse().
  template <std::convertible_to<std::string_view> Text>
  PartitionSpec(const Text& text) : PartitionSpec(parse(text)) {}

  /// Every dim whole.
  static PartitionSpec replicated(std::size_t rank);

  /// The same with whole dims added at the end, up to this rank, as JAX reads a short spec. Throws
  /// invalid_argument if it is longer already.
  PartitionSpec padded(std::size_t rank) const;

  /// Reads "data,-,a+b": one entry per dim, "-" for a whole dim, "+" between the axes of one dim;
  /// "" for a scalar. Axes may be names or axis numbers. Also reads JAX's form, see xla_text.h.
  /// Throws invalid_argument, naming the character.
  static PartitionSpec parse(std::string_view text);

  std::size_t rank() const { return entries_.size(); }
  const Entry& operator[](std::size_t dim) const { return entries_[dim]; }

  /// One per dim.
  const std::vector<Entry>& entries() const { return entries_; }

  /// The form that parse() reads.
  std::string to_string() const;

  bool operator==(const PartitionSpec&) const = default;

 private:
  static Entry dim_of_text(std::string_view text);

  std::vector<Entry> entries_;
};

/// PartitionSpec::to_string().
std::ostream& operator<<(std::ostream& out, const PartitionSpec& spec);

}  // namespace shardwise
