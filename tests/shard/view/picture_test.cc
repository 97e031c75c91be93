#include "shardwise/shard/view/picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/view/detail/xml.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::int64_t count(std::string_view text, std::string_view part) {
  std::int64_t times = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++times;
  return times;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Number of characters; each takes one column here.
std::int64_t columns_of(const std::string& line) {
  return std::count_if(line.begin(), line.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// The values of the attribute `name` in order; fails the test where the XML is not well-formed.
std::vector<std::string> attributes(std::string_view xml, std::string_view name) {
  std::vector<std::string> open, values;
  int roots = 0;
  const auto check_text = [](std::string_view text) {
    for (std::size_t at = text.find('&'); at != text.npos; at = text.find('&', at + 1)) {
      const std::string_view entity = text.substr(at, text.find(';', at) - at + 1);
      EXPECT_TRUE(entity == "&amp;" || entity == "&lt;" || entity == "&gt;" || entity == "&quot;");
    }
    EXPECT_EQ(text.find_first_of("<\x01"), text.npos);
  };
  while (!xml.empty()) {
    const std::size_t begin = std::min(xml.find('<'), xml.size());
    check_text(xml.substr(0, begin));
    EXPECT_TRUE(!open.empty() || xml.substr(0, begin).find_first_not_of('\n') == xml.npos);
    xml.remove_prefix(begin);
    if (xml.empty()) break;
    std::string_view tag = xml.substr(1, xml.find('>') - 1);
    xml.remove_prefix(tag.size() + 2);
    if (tag[0] == '/') {
      EXPECT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
      continue;
    }
    const bool closed = tag.back() == '/';
    if (closed) tag.remove_suffix(1);
    const std::string element(tag.substr(0, tag.find(' ')));
    roots += open.empty() ? 1 : 0;
    tag.remove_prefix(element.size());
    std::vector<std::string_view> names;
    while (!tag.empty()) {
      const std::size_t equals = tag.find("=\"");
      if (tag[0] != ' ' || equals == tag.npos) {
        ADD_FAILURE() << "attributes: " << tag;
        break;
      }
      const std::string_view attribute = tag.substr(1, equals - 1);
      const std::size_t end = tag.find('"', equals + 2);
      const std::string_view value = tag.substr(equals + 2, end - equals - 2);
      EXPECT_EQ(std::count(names.begin(), names.end(), attribute), 0);
      names.push_back(attribute);
      check_text(value);
      if (attribute == name) values.emplace_back(value);
      tag.remove_prefix(end + 1);
    }
    if (!closed) open.push_back(element);
  }
  EXPECT_EQ(roots, 1);
  EXPECT_TRUE(open.empty());
  return values;
}

TEST(TextPicture, ShowsTilesDevicesAndPadding) {
  EXPECT_EQ(text_picture(make_sharding("data,model", "data=2,model=2"), {3, 5}),
            R"([3, 5]: 2 x 2 tiles of [2, 3], 1 copy of each; data,model on data=2,model=2

     0:3 3:5
    ┌───┬───┐
0:2 │ 0 │ 1░│
    │   │  ░│
    ├───┼───┤
2:3 │ 2 │ 3░│
    │░░░│░░░│
    └───┴───┘
░░ padding to whole blocks, not in the tensor
)");
}

TEST(TextPicture, OfRanksBelowTwoIsOneRow) {
  EXPECT_EQ(text_picture(make_sharding("", "3@7,5,6"), {}), R"(scalar: 3 copies

 ┌───────┐
 │ 7,5,6 │
 └───────┘
)");
  EXPECT_EQ(text_picture(make_sharding("0", "4"), {2}),
            R"([2]: 4 tiles of [1], 1 copy of each; 0 on 4

  0:1 1:2 2:2 2:2
 ┌───┬───┬───┬───┐
 │ 0 │ 1 │░2░│░3░│
 └───┴───┴───┴───┘
░░ padding to whole blocks, not in the tensor
)");
}

TEST(TextPicture, OfHigherRanksHasAPlanePerLeadingTile) {
  const std::string text = text_picture(make_sharding("0,-,1", "2,2"), {4, 1, 6});
  EXPECT_THAT(text, AllOf(HasSubstr("\n[0:2, :, :]\n"), HasSubstr("\n[2:4, :, :]\n"),
                          HasSubstr("│ 0 │ 1 │"), HasSubstr("│ 2 │ 3 │"), Not(HasSubstr("░"))));
}

TEST(TextPicture, KeepsToItsWidth) {
  const Sharding sharding = make_sharding("-,0+1", "16,4,2");
  for (const std::size_t width : {30u, 47u, 80u, 200u}) {
    const std::string text = text_picture(sharding, {5, 1024}, {.width = width});
    for (const std::string& line : lines_of(text)) {
      EXPECT_LE(columns_of(line), static_cast<std::int64_t>(std::max<std::size_t>(width, 50)));
    }
    for (std::int64_t device = 0; device < 128; device += 2) {
      EXPECT_EQ(count(text, " " + std::to_string(device) + "," + std::to_string(device + 1)), 1);
    }
  }
  // Many devices on a tile are counted.
  EXPECT_THAT(text_picture(make_sharding("-", "1000"), {4}), HasSubstr(" 0,1,2,3,4,5,6,7 +992 "));
}

TEST(TextPicture, HasColoursOnlyWhereAsked) {
  const Sharding sharding = make_sharding("0,1", "2,2");
  const std::string plain = text_picture(sharding, {3, 3});
  std::string colored = text_picture(sharding, {3, 3}, {.color = true});
  EXPECT_EQ(count(plain, "\x1b"), 0);
  EXPECT_EQ(count(colored, "\x1b[30;48;5;"), 6);  // the lower tiles fill one line of two
  for (std::size_t at = colored.find('\x1b'); at != colored.npos; at = colored.find('\x1b')) {
    colored.erase(at, colored.find('m', at) - at + 1);
  }
  EXPECT_EQ(colored, plain);
}

TEST(Picture, SaysWhatIsLeftOut) {
  const Sharding sharding = make_sharding("0,1,2", "8,64,32");
  const Shape shape{8, 64, 32};
  EXPECT_THAT(text_picture(sharding, shape, {.max_tiles = 100}),
              HasSubstr("\nand 16284 more tiles: drawn are the first 1 of 8 planes, 10 of 64 rows, "
                        "10 of 32 columns\n"));
  const std::string svg = svg_picture(sharding, shape, {.max_tiles = 4096});
  EXPECT_EQ(attributes(svg, "data-box").size(), 4096u);
  EXPECT_THAT(svg, HasSubstr("and 12288 more tiles: drawn are the first 2 of 8 planes"));
  EXPECT_EQ(attributes(svg_picture(sharding, shape, {.max_tiles = 0}), "data-box").size(), 1u);
  // So many tiles that going through them would not end.
  const std::int64_t side = std::int64_t{1} << 20;
  const Sharding large(Mesh({{"a", side}, {"b", side}, {"c", side}}),
                       PartitionSpec{{"a"}, {"b"}, {"c"}});
  EXPECT_EQ(attributes(svg_picture(large, {side, side, side}), "data-box").size(), 256u);
}

TEST(SvgPicture, ShowsEveryTileOfAnySharding) {
  RandomShardings random(61);
  for (int round = 0; round < 1000; ++round) {
    const Shape shape = random.shape(static_cast<std::size_t>(random.draw(0, 4)));
    const Mesh mesh = random.mesh();
    const Sharding sharding =
        random.sharding(mesh, random.spec_with_parts(mesh, shape.size()), shape);
    SCOPED_TRACE(sharding.to_string() + " of " + to_string(shape));
    const std::string svg = svg_picture(sharding, shape);
    const Shape block = sharding.shard_shape(shape);
    std::vector<std::string> boxes;
    std::int64_t filled = 0, padded = 0;
    for (std::int64_t position = 0; position < mesh.size(); ++position) {
      if (sharding.replica_id(position) > 0) continue;
      const Box box = sharding.box_at(position, shape);
      boxes.push_back(to_string(box));
      filled += box.empty() ? 0 : 1;
      bool partial = box.empty();
      for (std::size_t dim = shape.size(); dim > 0 && dim + 2 > shape.size(); --dim) {
        partial |= box.extent(dim - 1) < block[dim - 1];
      }
      padded += partial ? 1 : 0;
    }
    std::vector<std::string> drawn = attributes(svg, "data-box");
    std::sort(boxes.begin(), boxes.end());
    std::sort(drawn.begin(), drawn.end());
    ASSERT_EQ(drawn, boxes);
    ASSERT_EQ(count(svg, "class=\"tile c"), filled);
    ASSERT_EQ(count(svg, "class=\"slot\""), padded == 0 ? 0 : padded + 1);  // one explains it
    ASSERT_EQ(count(svg, ">empty<"), static_cast<std::int64_t>(boxes.size()) - filled);
    // The text shows as many slots: each has a bar to its left, and each row ends in one more.
    if (!boxes.empty()) {
      const std::string text = text_picture(sharding, shape, {.width = 100000});
      const std::int64_t devices = count(text, "│") - count(text, "│\n");
      const std::int64_t lines_a_tile = devices / static_cast<std::int64_t>(boxes.size());
      ASSERT_TRUE(lines_a_tile == 1 || lines_a_tile == 2);
      ASSERT_EQ(devices, lines_a_tile * static_cast<std::int64_t>(boxes.size()));
    }
  }
}

TEST(SvgPicture, DrawsSlotsToScale) {
  const std::string svg = svg_picture(make_sharding("0,1", "2,2"), {4, 7});
  // The second column's tiles fill 3 of 4 columns.
  const std::vector<std::string> widths = attributes(svg.substr(0), "width");
  EXPECT_EQ(std::count(widths.begin(), widths.end(), "150.0"), 2);
  EXPECT_EQ(std::count(widths.begin(), widths.end(), "112.5"), 2);
  EXPECT_THAT(svg, HasSubstr("<title>tile [0, 1]: [0:2, 4:7], 6 elements, on 1</title>"));
}

TEST(SvgPicture, IsWellFormedWhateverAxesAreCalled) {
  const Mesh mesh({{"<a>&\xfe\xff", 2}, {"caf\u00e9", 2}});
  const std::string svg = svg_picture(Sharding(mesh, PartitionSpec{{"<a>&\xfe\xff"}}), {4});
  EXPECT_EQ(attributes(svg, "data-box").size(), 2u);
  EXPECT_THAT(svg, AllOf(HasSubstr("&lt;a&gt;&amp;\uFFFD\uFFFD=2"), HasSubstr("caf\u00e9=2")));
}

TEST(Picture, RefusesShapesThatDoNotFit) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] { svg_picture(make_sharding("0", "4", "strict"), {6}); }),
              HasSubstr("strict"));
  message_of(ErrorCode::invalid_argument, [] { text_picture(make_sharding("0", "4"), {6, 6}); });
}

TEST(Picture, OfAnAbstractMeshShowsPositions) {
  EXPECT_THAT(text_picture(make_sharding("0", "3@?"), {3}), HasSubstr("│ 0 │ 1 │ 2 │"));
}

TEST(XmlText, EscapesMarkupAndReplacesWhatIsNotText) {
  const struct {
    const char* text;
    const char* expected;
  } cases[] = {
      {"a<b & \"c\" > d", "a&lt;b &amp; &quot;c&quot; &gt; d"},
      {"\t\n\r ~", "\t\n\r ~"},
      {"\x01\x1f", "\uFFFD\uFFFD"},
      {"\u00e9\u20ac\U0001F600", "\u00e9\u20ac\U0001F600"},
      {"\xc3", "\uFFFD"},            // cut off
      {"\xc0\x80", "\uFFFD\uFFFD"},  // longer than need be
      {"\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},            // a surrogate
      {"\xef\xbf\xbe", "\uFFFD\uFFFD\uFFFD"},            // U+FFFE
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // beyond Unicode
      {"\xc3<", "\uFFFD&lt;"},
  };
  for (const auto& c : cases) EXPECT_EQ(detail::xml_text(c.text), c.expected) << c.text;
}

}  // namespace
}  // namespace shardwise
