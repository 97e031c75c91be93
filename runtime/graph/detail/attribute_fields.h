#pragma once

#include <array>
#include <concepts>
#include <string_view>
#include <type_traits>

#include "shardwise/runtime/graph/attributes.h"

namespace shardwise::detail {

// The fields of each struct of attributes, in the order of the text. They are listed once; writing,
// reading and hashing follow the list, each with its own `Fields`. A new struct needs only a
// function here.
//
//   list(name, dims)              ` dims=[0, 1]`, nothing if it is empty
//   numbers(name, a, b, ..)       the same of as many numbers
//   number(scalar)                ` 0.5`
//   number_but_zero(scalar)       the same, nothing for 0.0
//   literal(attributes)           ` 3f1c5a0b99d2e877`, the hash of the bytes
//   text(equation), text(spec)    ` "btd,df->btf"`
//   text(axes)                    ` "data+model"`
//   dtype(word, optional)         ` in f32`, nothing if absent
//   count(name, number)           ` feature_groups=2`, nothing for 1
//   word(enumerator, words)       ` add`, nothing for an empty word
//   flag(word, bool)              ` reverse`, nothing for false
//   body(graph)                   nothing: it follows the line, in braces

/// A struct of attributes that is written, or one that is read.
template <class A, class Struct>
concept Is = std::same_as<std::remove_const_t<A>, Struct>;

inline constexpr std::array<std::string_view, 5> kDecompositions{"cholesky", "lu", "qr", "eigh",
                                                                 "svd"};
inline constexpr std::array<std::string_view, 5> kCombinations{"set", "add", "mul", "min", "max"};
inline constexpr std::array<std::string_view, 3> kOutOfRange{"", "clip", "drop"};
inline constexpr std::array<std::string_view, 6> kReductions{"none", "sum",    "max",
                                                             "min",  "bit_or", "product"};

template <class Fields>
void visit(Fields&, Is<NoAttributes> auto&) {}

template <class Fields>
void visit(Fields& fields, Is<NumberAttributes> auto& a) {
  fields.number(a.number);
}

template <class Fields>
void visit(Fields& fields, Is<LiteralAttributes> auto& a) {
  fields.literal(a);
}

template <class Fields>
void visit(Fields& fields, Is<DimAttributes> auto& a) {
  fields.numbers("dims", a.dim);
}

template <class Fields>
void visit(Fields& fields, Is<DimsAttributes> auto& a) {
  fields.list("dims", a.dims);
}

template <class Fields>
void visit(Fields& fields, Is<SliceAttributes> auto& a) {
  fields.list("begin", a.begin);
  fields.list("end", a.end);
  fields.list("stride", a.stride);
}

template <class Fields>
void visit(Fields& fields, Is<PadAttributes> auto& a) {
  fields.list("begin", a.low);
  fields.list("end", a.high);
  fields.list("stride", a.stride);
  fields.number_but_zero(a.number);
}

template <class Fields>
void visit(Fields& fields, Is<DotAttributes> auto& a) {
  fields.text(a.equation);
  fields.dtype("in", a.result);
}

template <class Fields>
void visit(Fields& fields, Is<ConvolutionAttributes> auto& a) {
  fields.list("lhs", a.lhs);
  fields.list("rhs", a.rhs);
  fields.list("out", a.out);
  fields.list("stride", a.stride);
  fields.list("low", a.low);
  fields.list("high", a.high);
  fields.list("lhs_dilation", a.lhs_dilation);
  fields.list("rhs_dilation", a.rhs_dilation);
  fields.count("feature_groups", a.feature_groups);
  fields.count("batch_groups", a.batch_groups);
}

template <class Fields>
void visit(Fields& fields, Is<DecompositionAttributes> auto& a) {
  fields.word(a.kind, kDecompositions);
}

template <class Fields>
void visit(Fields& fields, Is<TriangularAttributes> auto& a) {
  fields.flag("right", a.right);
  fields.flag("upper", a.upper);
  fields.flag("transpose", a.transpose);
  fields.flag("unit", a.unit);
}

template <class Fields>
void visit(Fields& fields, Is<WindowAttributes> auto& a) {
  fields.list("window", a.window);
  fields.list("stride", a.stride);
  fields.list("low", a.low);
  fields.list("high", a.high);
  fields.list("dilation", a.dilation);
}

template <class Fields>
void visit(Fields& fields, Is<ScatterAttributes> auto& a) {
  fields.numbers("dims", a.dim, a.extent);
}

template <class Fields>
void visit(Fields& fields, Is<ScatterIntoAttributes> auto& a) {
  fields.numbers("dims", a.dim);
  fields.word(a.combination, kCombinations);
  fields.word(a.mode, kOutOfRange);
}

template <class Fields>
void visit(Fields& fields, Is<ShapeAttributes> auto& a) {
  fields.list("end", a.shape);
}

template <class Fields>
void visit(Fields& fields, Is<SortAttributes> auto& a) {
  fields.numbers("dims", a.dim);
  fields.flag("descending", a.descending);
}

template <class Fields>
void visit(Fields& fields, Is<CumulativeAttributes> auto& a) {
  fields.numbers("dims", a.dim);
  fields.flag("reverse", a.reverse);
}

template <class Fields>
void visit(Fields& fields, Is<ScanAttributes> auto& a) {
  fields.numbers("length", a.length);
  fields.numbers("carries", a.carries);
  fields.numbers("xs", a.xs);
  fields.flag("reverse", a.reverse);
  fields.body(a.body);
}

template <class Fields>
void visit(Fields& fields, Is<CondAttributes> auto& a) {
  fields.body(a.body);
  fields.body(a.otherwise);
}

template <class Fields>
void visit(Fields& fields, Is<ResultAttributes> auto& a) {
  fields.numbers("index", a.index);
}

template <class Fields>
void visit(Fields& fields, Is<ManualAttributes> auto& a) {
  fields.text(a.spec);
  fields.numbers("dims", a.replicas);
  fields.flag("sums", a.sums);
}

template <class Fields>
void visit(Fields& fields, Is<ReduceAttributes> auto& a) {
  fields.text(a.axes);
  fields.word(a.reduction, kReductions);
}

}  // namespace shardwise::detail
