#include "shardwise/convert/elements.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <vector>

#include "shardwise/convert/detail/numbers.h"
#include "shardwise/shard/box.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/detail/npy_header.h"

namespace shardwise {
namespace {

constexpr std::size_t kShownSlabBytes = std::size_t{16} << 20;  // bytes read at once
constexpr std::int64_t kShortest = 1000;                        // least elements for a summary
constexpr std::int64_t kEdge = 3;                               // elements shown at each end
constexpr std::int64_t kMostShown = std::int64_t{1} << 20;
constexpr std::size_t kColumns = 100;  // per line, unless one element is wider

/// Puts brackets, commas and line ends around elements, which come in row-major order.
class Brackets {
 public:
  /// `gaps`: in a dim of more than twice kEdge elements, "..." stands after kEdge of them.
  Brackets(const Shape& shape, bool is_json, bool gaps,
           const std::function<void(std::string_view)>& print)
      : extents_(shape),
        gaps_(shape.size(), false),
        at_(Dims::filled(shape.size(), 0)),
        is_json_(is_json),
        print_(print) {
    for (std::size_t d = 0; gaps && d < shape.size(); ++d) {
      if (shape[d] <= 2 * kEdge) continue;
      gaps_[d] = true;
      extents_[d] = 2 * kEdge;
    }
  }

  void add(std::string_view element) {
    // Lists begin in the dims after the last one with an index other than 0.
    std::size_t first = at_.size();
    while (first > 0 && at_[first - 1] == 0) --first;
    if (first > 0) {
      separate(first - 1, element.size());
      if (gaps_[first - 1] && at_[first - 1] == kEdge) {
        put("...");
        separate(first - 1, element.size());
      }
    }
    put(std::string(at_.size() - first, '['));
    put(element);
    for (std::size_t d = at_.size(); d-- > 0;) {
      if (++at_[d] < extents_[d]) break;
      at_[d] = 0;
      put("]");
    }
    if (line_.size() > 4096) flush();
  }

  void flush() {
    print_(line_);
    line_.clear();
  }

 private:
  /// Between two elements, or two lists, of a dim; an element of `next` bytes follows.
  void separate(std::size_t dim, std::size_t next) {
    put(",");
    if (is_json_) return;
    const bool is_innermost = dim + 1 == at_.size();
    const std::size_t after = at_.size();  // a comma, or brackets
    if (is_innermost && column_ + 1 + next + after <= kColumns) return put(" ");
    line_ += '\n';
    column_ = 0;
    put(std::string(dim + 1, ' '));
  }

  void put(std::string_view text) {
    line_ += text;
    column_ += text.size();
  }

  Shape extents_;
  std::vector<bool> gaps_;
  Index at_;
  const bool is_json_;
  const std::function<void(std::string_view)>& print_;
  std::string line_;
  std::size_t column_ = 0;
};

/// Reads the ends of dims that a summary shows side by side into memory: the first and the last
/// kEdge elements of a dim of more than twice kEdge.
std::vector<std::byte> read_ends(const BoxReader& reader, std::size_t tensor, const Box& box,
                                 std::size_t element_bytes) {
  Shape shown = box.shape();
  std::vector<std::size_t> long_dims;
  for (std::size_t d = 0; d < shown.size(); ++d) {
    if (shown[d] <= 2 * kEdge) continue;
    shown[d] = 2 * kEdge;
    long_dims.push_back(d);
  }
  if (num_elements(shown) > kMostShown) {
    throw Error(ErrorCode::unsupported,
                fmt::format("show tensor \"{}\": found {} elements even in a summary, needed a box "
                            "of at most {}",
                            reader.tensors()[tensor].name, num_elements(shown), kMostShown));
  }
  std::vector<std::byte> all(num_bytes(shown, element_bytes)), part;
  // The bits of `choice` select the first or the last elements of each long dim.
  for (std::uint64_t choice = 0; choice < std::uint64_t{1} << long_dims.size(); ++choice) {
    Box from = box, to = Box::whole(shown);
    for (std::size_t i = 0; i < long_dims.size(); ++i) {
      const std::size_t d = long_dims[i];
      const bool last = (choice >> i & 1) != 0;
      from.set(d, last ? box.end(d) - kEdge : box.begin(d),
               last ? box.end(d) : box.begin(d) + kEdge);
      to.set(d, last ? kEdge : 0, last ? 2 * kEdge : kEdge);
    }
    part.resize(num_bytes(from.shape(), element_bytes));
    reader.read(tensor, from, part);
    copy_box(to, element_bytes, {part.data(), to}, {all.data(), Box::whole(shown)});
  }
  return all;
}

/// Calls body(bytes) for parts of the box, in row-major order.
template <class Body>
void for_each_part(const BoxReader& reader, std::size_t tensor, const Box& box,
                   std::size_t element_bytes, Body&& body) {
  std::vector<std::byte> bytes;
  for_each_slab(box, element_bytes, kShownSlabBytes, [&](const Box& slab) {
    bytes.resize(num_bytes(slab.shape(), element_bytes));
    reader.read(tensor, slab, bytes);
    body(std::span<const std::byte>(bytes));
  });
}

}  // namespace

void print_elements(const BoxReader& reader, std::size_t tensor, const ShownBox& shown,
                    ElementText style, const std::function<void(std::string_view)>& print) {
  const DType dtype = reader.tensors()[tensor].dtype;
  const std::size_t element_bytes = size_bytes(dtype);
  const std::int64_t elements = shown.box.num_elements();
  const bool is_json = style == ElementText::json;
  if (elements == 0) return print("[]");
  const bool is_cut = style == ElementText::summary && elements > kShortest;
  Brackets brackets(shown.shape, is_json, is_cut, print);
  const auto texts_of = [&](std::span<const std::byte> bytes, auto&& take) {
    for (std::size_t at = 0; at < bytes.size(); at += element_bytes) {
      take(is_json ? detail::element_json(dtype, bytes.data() + at)
                   : detail::element_text(dtype, bytes.data() + at));
    }
  };
  if (is_json || (style == ElementText::all && elements > kShortest)) {
    for_each_part(reader, tensor, shown.box, element_bytes, [&](std::span<const std::byte> bytes) {
      texts_of(bytes, [&](const std::string& text) { brackets.add(text); });
    });
    return brackets.flush();
  }
  std::vector<std::byte> bytes;
  if (is_cut) {
    bytes = read_ends(reader, tensor, shown.box, element_bytes);
  } else {
    bytes.resize(num_bytes(shown.box.shape(), element_bytes));
    reader.read(tensor, shown.box, bytes);
  }
  // Few enough to be as wide as the widest.
  std::size_t width = 0;
  texts_of(bytes, [&](const std::string& text) { width = std::max(width, text.size()); });
  texts_of(bytes,
           [&](const std::string& text) { brackets.add(fmt::format("{:>{}}", text, width)); });
  brackets.flush();
}

void write_npy(const BoxReader& reader, std::size_t tensor, const ShownBox& shown,
               const std::function<void(std::span<const std::byte>)>& write) {
  static_assert(std::endian::native == std::endian::little);
  const DType dtype = reader.tensors()[tensor].dtype;
  const std::string header = detail::npy_header_text(dtype, shown.shape);
  write(std::as_bytes(std::span(header)));
  for_each_part(reader, tensor, shown.box, size_bytes(dtype), write);
}

}  // namespace shardwise
