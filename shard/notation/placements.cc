#include "shardwise/shard/notation/placements.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shardwise/shard/detail/scanner.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/detail/dim_piece.h"

namespace shardwise {
namespace {

constexpr std::array<std::string_view, 5> kOps = {"sum", "avg", "product", "max", "min"};

/// DTensor's long form names its arguments, its short form does not.
void pass_name(detail::Scanner& in, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (!in.accept(name)) continue;
    in.expect("=");
    return;
  }
}

std::size_t parse_dim(detail::Scanner& in) {
  in.expect("(");
  pass_name(in, {"dim"});
  if (in.peek("-")) in.fail("a dim counted from the front; no dim is negative here");
  return static_cast<std::size_t>(in.number());
}

PartialOp parse_op(detail::Scanner& in) {
  if (!in.accept("(") || in.accept(")")) return PartialOp::sum;
  pass_name(in, {"reduce_op"});
  const char* const needed = "sum, avg, product, max or min";
  const auto of = [](std::string_view word) { return std::find(kOps.begin(), kOps.end(), word); };
  auto op = kOps.end();
  if (in.peek_quote()) {
    op = of(in.quoted());
  } else {
    for (op = kOps.begin(); op != kOps.end() && !in.accept(*op);) ++op;
  }
  if (op == kOps.end()) in.fail(needed);
  in.expect(")");
  return static_cast<PartialOp>(op - kOps.begin());
}

Placement parse_one(detail::Scanner& in) {
  if (in.accept("R") || in.accept("Replicate")) {
    if (in.accept("(")) in.expect(")");
    return Placement::replicate();
  }
  if (in.accept("P") || in.accept("Partial")) return Placement::partial(parse_op(in));
  Placement placement;
  if (in.accept("S") || in.accept("Shard")) {
    placement = Placement::shard(parse_dim(in));
  } else if (in.accept("StridedShard") || in.accept("_StridedShard") || in.accept("_S")) {
    placement = Placement::strided_shard(parse_dim(in), 1);
    in.expect(",");
    pass_name(in, {"split", "split_factor", "sf"});
    placement.split = in.number();
  } else {
    in.fail("a placement as in \"S(0)\", \"R\", \"P(sum)\" or \"StridedShard(0, split=2)\"");
  }
  in.expect(")");
  return placement;
}

bool is_linear(PartialOp op) { return op == PartialOp::sum || op == PartialOp::avg; }

}  // namespace

std::string Placement::to_string() const {
  switch (kind) {
    case Placement::Kind::shard:
      return fmt::format("S({})", dim);
    case Placement::Kind::strided_shard:
      return fmt::format("StridedShard({}, split={})", dim, split);
    case Placement::Kind::partial:
      return fmt::format("P({})", kOps[static_cast<std::size_t>(op)]);
    case Placement::Kind::replicate:
      break;
  }
  return "R";
}

Placements::Placements(Mesh mesh, std::vector<Placement> list)
    : mesh_(std::move(mesh)), list_(std::move(list)) {
  const auto fail = [this](const std::string& what) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("placements \"{}\": {}", to_string(), what));
  };
  if (list_.size() != mesh_.rank()) {
    fail(fmt::format("there are {} for the {} axes of mesh \"{}\"; needed is one per axis",
                     list_.size(), mesh_.rank(), mesh_.to_string()));
  }
  const Placement* partial = nullptr;
  for (std::size_t axis = 0; axis < list_.size(); ++axis) {
    const Placement& placement = list_[axis];
    const std::string& name = mesh_.axes()[axis].name;
    if (placement.split < 1) {
      fail(fmt::format("axis \"{}\" has split factor {}; needed is at least 1", name,
                       placement.split));
    }
    if (placement.kind != Placement::Kind::partial) continue;
    if (partial && partial->op != placement.op &&
        !(is_linear(partial->op) && is_linear(placement.op))) {
      fail(fmt::format("axis \"{}\" has {} after {}; needed is one kind of reduction", name,
                       placement.to_string(), partial->to_string()));
    }
    partial = &placement;
  }
}

Placements Placements::parse(Mesh mesh, std::string_view text) {
  detail::Scanner in("placements", text);
  const char* const close = in.accept("(") ? ")" : in.accept("[") ? "]" : nullptr;
  const auto ended = [&] { return close ? in.accept(close) : in.at_end(); };
  std::vector<Placement> list;
  while (!ended()) {
    if (!list.empty()) {
      in.expect(",");
      if (close && ended()) break;  // Python's "(Shard(dim=0),)"
    }
    list.push_back(parse_one(in));
  }
  in.expect_end();
  return Placements(std::move(mesh), std::move(list));
}

bool Placements::is_partial() const {
  return std::any_of(list_.begin(), list_.end(), [](const Placement& placement) {
    return placement.kind == Placement::Kind::partial;
  });
}

void Placements::check(const Shape& shape) const {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cut by the placements \"{}\": shape {}: {}", to_string(),
                            shardwise::to_string(shape), what));
  };
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] >= 0) continue;
    fail(fmt::format("dim {} has extent {}; needed is at least 0", dim, shape[dim]));
  }
  for (std::size_t axis = 0; axis < list_.size(); ++axis) {
    if (!list_[axis].cuts() || list_[axis].dim < shape.size()) continue;
    fail(fmt::format("axis \"{}\" has {}; needed is a dim below {}", mesh_.axes()[axis].name,
                     list_[axis].to_string(), shape.size()));
  }
}

Shape Placements::local_shape(std::int64_t position, const Shape& shape) const {
  check(shape);
  Shape local = shape;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    local[dim] = detail::piece_at(mesh_, list_, dim, shape[dim], position).length();
  }
  return local;
}

std::optional<Box> Placements::box_at(std::int64_t position, const Shape& shape) const {
  check(shape);
  Box box = Box::whole(shape);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const detail::DimPiece piece = detail::piece_at(mesh_, list_, dim, shape[dim], position);
    if (piece.has_gaps()) return std::nullopt;
    box.set(dim, piece.begin(), piece.begin() + piece.length());
  }
  return box;
}

std::vector<std::vector<IndexRun>> Placements::runs_at(std::int64_t position,
                                                       const Shape& shape) const {
  check(shape);
  std::vector<std::vector<IndexRun>> runs;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    runs.push_back(detail::piece_at(mesh_, list_, dim, shape[dim], position).runs());
  }
  return runs;
}

std::string Placements::to_string() const {
  std::string text;
  for (const Placement& placement : list_) {
    if (!text.empty()) text += ',';
    text += placement.to_string();
  }
  return text;
}

}  // namespace shardwise
