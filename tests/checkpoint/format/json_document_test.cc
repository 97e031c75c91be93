#include "shardwise/checkpoint/detail/format/json_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

TEST(JsonDocument, SaysInOneClauseWhatIsWrong) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "is not JSON: syntax error at byte 1"},
      {"{\"a\":1} x", "is not JSON: syntax error at byte 9"},
      {"\xef\xbb\xbf{}", "byte order mark"},
      {R"({"a":1,"b":{"c":1,"c":2}})", "the same key twice"},
      {R"({"a":1,"\u0061":2})", "the same key twice"},
      {R"([[[[]]]])", "is nested deeper than 3 levels"},
      {R"([[[{"a":1}]]])", "is nested deeper than 3 levels"},
      {R"({"a":1e999})", "beyond the range of a double"},
      {R"([-1.5e+400])", "beyond the range of a double"},
      {"[1" + std::string(400, '0') + "]", "beyond the range of a double"},
      {"[1e99999999999999999999]", "beyond the range of a double"},
      {"[0.00000000001e400]", "beyond the range of a double"},
      {"[-1.8e308]", "beyond the range of a double"},
      {"[17976931348623159e292]", "beyond the range of a double"},
      {"[1.0", "is not JSON: syntax error at byte 5"},
      {std::string("{}\0 ", 4), "is not JSON: syntax error at byte 3"},
      {R"(["a", "b\udc00"])", "is not JSON: syntax error at byte 15"},
      {R"({"a\udc00":1})", "is not JSON: syntax error at byte 10"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { JsonDocument(c.text, 3); }),
                HasSubstr(c.message))
        << c.text;
  }
}

TEST(JsonDocument, FindsAKeyThatComesTwiceAmongMany) {
  for (const int count : {2, 15, 16, 17, 18, 100}) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) text += "\"k" + std::to_string(i) + "\":1,";
    JsonDocument(text + "\"last\":1}", 3);
    EXPECT_THROW(JsonDocument(text + "\"k0\":1}", 3), Error) << count;
    EXPECT_THROW(JsonDocument(text + "\"k1\":1}", 3), Error) << count;
  }
}

TEST(JsonDocument, IsATreeOfWhatWasWritten) {
  const std::string text =
      R"( {"list": [1, -2 , 2.50,[] ,{}], "s":"a\"\u00fc\ud83d\ude00\n", "n":null,"b":[true,false]} )";
  const JsonDocument document(text, 5);
  const JsonValue& root = document.root();
  EXPECT_EQ(root.MemberCount(), 4u);
  const JsonValue& list = root["list"];
  ASSERT_TRUE(list.IsArray());
  ASSERT_EQ(list.Size(), 5u);
  EXPECT_EQ(list[0].GetInt64(), 1);
  EXPECT_EQ(list[1].GetInt64(), -2);
  EXPECT_EQ(list[2].GetDouble(), 2.5);
  std::vector<std::string> kinds;
  for (const JsonValue& value : list.GetArray()) kinds.emplace_back(kind_name(value));
  EXPECT_EQ(kinds, (std::vector<std::string>{"number", "number", "number", "array", "object"}));
  EXPECT_EQ(text_of(root["s"]), "a\"\xc3\xbc\xf0\x9f\x98\x80\n");
  EXPECT_STREQ(kind_name(root["s"]), "string");
  EXPECT_STREQ(kind_name(root["n"]), "null");
  EXPECT_STREQ(kind_name(root["b"][0]), "boolean");
  EXPECT_STREQ(kind_name(root["b"][1]), "boolean");
  EXPECT_FALSE(root.HasMember("x"));
  EXPECT_FALSE(root.HasMember("a"));
}

TEST(JsonDocument, GivesMembersOfTheRootAsTheyWereWritten) {
  const JsonDocument document(
      R"( {"list" :  [1, -2 , 2.50,[] ,{"s":0}] , "s":"a\"\u00fc\ud83d\ude00\n",
      "e1":1e2,"n":null,"o":
      {"s" : [":"] } ,"b": true,":,":-0 } )",
      5);
  EXPECT_EQ(document.raw_member("list"), R"([1, -2 , 2.50,[] ,{"s":0}])");
  EXPECT_EQ(document.raw_member("s"), R"("a\"\u00fc\ud83d\ude00\n")");
  EXPECT_EQ(document.raw_member("e1"), "1e2");
  EXPECT_EQ(document.raw_member("n"), "null");
  EXPECT_EQ(document.raw_member("o"), R"({"s" : [":"] })");
  EXPECT_EQ(document.raw_member("b"), "true");
  EXPECT_EQ(document.raw_member(":,"), "-0");
}

TEST(JsonDocument, TellsIntegersThatFit) {
  const struct {
    const char* text;
    std::optional<std::int64_t> value;
    bool integer;
  } cases[] = {
      {"0", 0, true},
      {"-0", 0, true},
      {"9223372036854775807", INT64_MAX, true},
      {"-9223372036854775808", INT64_MIN, true},
      {"9223372036854775808", {}, true},
      {"18446744073709551615", {}, true},
      {"18446744073709551616", {}, false},
      {"-9223372036854775809", {}, false},
      {"1.0", {}, false},
      {"1e2", {}, false},
      {"\"1\"", {}, false},
      {"true", {}, false},
  };
  for (const auto& c : cases) {
    const JsonDocument document(c.text, 1);
    const JsonValue& root = document.root();
    ASSERT_EQ(root.IsInt64(), c.value.has_value()) << c.text;
    EXPECT_EQ(c.value ? root.GetInt64() : 0, c.value.value_or(0)) << c.text;
    EXPECT_EQ(root.IsNumber() && !root.IsDouble(), c.integer) << c.text;
  }
}

bool is_read(const std::string& text) {
  try {
    JsonDocument(text, 1000);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// The last one's exponent, counted from its last digit, is below that of an int.
TEST(JsonDocument, TakesNumbersThatAreTooSmallForADouble) {
  const std::string zeros(400, '0');
  for (const std::string& number :
       {std::string("1e-400"), "0." + zeros + "1", "0." + zeros + "1e50",
        "-1" + zeros.substr(100) + "e-800", std::string("1e-99999999999999999999"),
        std::string("0e99"), std::string("-0.00e+99"), "0." + zeros + "1e500",
        std::string("0.00000000001e-2147483639")}) {
    EXPECT_TRUE(is_read("[" + number + "]")) << number;
  }
}

// Such are numbers that fit, but whose digits or exponent alone are too large: nobody prints them.
TEST(JsonDocument, RefusesNumbersOfWhichAPartIsBeyondADouble) {
  for (const std::string& number :
       {"10" + std::string(400, '0') + "e-800", std::string("0e999"), std::string("-0.00e+999")}) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { JsonDocument(number, 1); }),
                HasSubstr("beyond the range of a double"));
  }
}

TEST(JsonDocument, KnowsFourBlanks) {
  EXPECT_TRUE(is_read(" \t\r\n{ \t\r\n\"a\" \t\r\n: \t\r\n[ \t\r\n1 \t\r\n] \t\r\n} \t\r\n"));
  for (const char* other : {"\v1", "\f1", "1\v", "\xa0 1", "[1\b]", "1/**/"}) {
    EXPECT_FALSE(is_read(other)) << other;
  }
  EXPECT_FALSE(is_read(std::string("1\0", 2)));
}

// Before an escape strings take another way than after one.
TEST(JsonDocument, RefusesControlCharactersInStrings) {
  for (const std::string before : {"", "\\n"}) {
    for (char c = 0; c < 0x20; ++c) {
      EXPECT_FALSE(is_read("\"" + before + c + "\"")) << static_cast<int>(c);
    }
    for (const char c : {' ', '\x7f', '/', '~'}) {
      const std::string text = "\"" + before + c + "\"";
      EXPECT_EQ(text_of(JsonDocument(text, 1).root()),
                (before.empty() ? "" : "\n") + std::string{c});
    }
  }
}

TEST(JsonDocument, DecodesEscapes) {
  const struct {
    const char *text, *decoded;
  } cases[] = {
      {R"("\"\\\/\b\f\n\r\t")", "\"\\/\b\f\n\r\t"},
      {R"("\u0001\u007f")", "\x01\x7f"},
      {R"("\u0080\u07ff")", "\xc2\x80\xdf\xbf"},
      {R"("\u0800\ud7ff")", "\xe0\xa0\x80\xed\x9f\xbf"},
      {R"("\ue000\uFfFf")", "\xee\x80\x80\xef\xbf\xbf"},
      {R"("\ud800\udc00")", "\xf0\x90\x80\x80"},
      {R"("\udbff\udfff")", "\xf4\x8f\xbf\xbf"},
      {R"("\ud912\udeab")", "\xf1\x94\xaa\xab"},
  };
  for (const auto& c : cases) EXPECT_EQ(text_of(JsonDocument(c.text, 1).root()), c.decoded);
  for (const char* bad :
       {R"("\ud800")", R"("\ud800x")", R"("\ud800\n")", R"("\ud800\udbff")", R"("\ud800\ue000")",
        R"("\udbffudfff")", R"("\udc00")", R"("\udfff")", R"("\u00g0")", R"("\u 123")",
        R"("\u+123")", R"("\u0x1f")", R"("\x")", R"("\U0041")", R"("\a")"}) {
    EXPECT_FALSE(is_read(bad)) << bad;
  }
}

// Nothing after the end of the view is read. The copies let a sanitizer see that.
TEST(JsonDocument, RefusesEveryBeginningOfAText) {
  const std::string text = R"({"a\u00e9\ud83d\ude00":[-1.5e+3,true,null,{"b":"\\"}],"ü":false})";
  EXPECT_TRUE(is_read(text));
  for (std::size_t size = 0; size < text.size(); ++size) {
    const std::vector<char> copy(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(JsonDocument(std::string_view(copy.data(), size), 5), Error) << size;
    EXPECT_THROW(JsonDocument(std::string_view(text).substr(0, size), 5), Error) << size;
  }
}

// The other library takes an object with a key twice.
bool has_key_twice(const std::string& text) {
  try {
    JsonDocument(text, 1000);
  } catch (const Error& e) {
    return std::string(e.what()).find("twice") != std::string::npos;
  }
  return false;
}

// Short texts of all that JSON is made of, and broken ones: read where another library reads them.
TEST(JsonDocument, ReadsWhatAnotherLibraryReads) {
  const std::vector<std::string> parts = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"",
                                          "\"a\"",
                                          "\"b\":",
                                          "1",
                                          "-",
                                          "0",
                                          ".",
                                          "e",
                                          "E+",
                                          "12.5e-3",
                                          "true",
                                          "false",
                                          "null",
                                          " ",
                                          "\t",
                                          "\n",
                                          "\\",
                                          "\\u",
                                          "00e9",
                                          "\\n",
                                          "\\ud800",
                                          "ü",
                                          "\x01",
                                          "\xc3",
                                          "\xed\xa0\x80",
                                          "\xf4\x90\x80\x80",
                                          "\xc0\x80",
                                          "1e400",
                                          "1e-400",
                                          "nul",
                                          "/",
                                          "\\udc00",
                                          "a"};
  std::mt19937_64 random(3);
  int read = 0;
  for (int i = 0; i < 300'000; ++i) {
    std::string text;
    for (std::size_t length = 1 + random() % 8; length > 0; --length) {
      text += parts[random() % parts.size()];
    }
    const bool expected = nlohmann::json::accept(text);
    const bool found = is_read(text);
    read += found;
    ASSERT_TRUE(found == expected || has_key_twice(text)) << testing::PrintToString(text);
  }
  EXPECT_GT(read, 3000);
}

// Values of random depth, printed by another library: every text and number comes back.
TEST(JsonDocument, GivesBackWhatAnotherLibraryPrints) {
  std::mt19937_64 random(4);
  const std::function<nlohmann::json(int)> make = [&](int depth) -> nlohmann::json {
    switch (random() % (depth > 0 ? 6 : 4)) {
      case 0:
        return static_cast<std::int64_t>(random());
      case 1:
        return nullptr;
      case 2:
        return std::string(random() % 20, static_cast<char>(random() % 128));
      case 3:
        return "\xc3\xbc\"\\/\x01" + std::to_string(random() % 100);
      case 4: {
        nlohmann::json list = nlohmann::json::array();
        for (auto n = random() % 5; n > 0; --n) list.push_back(make(depth - 1));
        return list;
      }
      default: {
        nlohmann::json object = nlohmann::json::object();
        for (auto n = random() % 30; n > 0; --n) {
          object["k" + std::to_string(random() % 100)] = make(depth - 1);
        }
        return object;
      }
    }
  };
  const std::function<void(const nlohmann::json&, const JsonValue&)> compare =
      [&](const nlohmann::json& expected, const JsonValue& found) {
        ASSERT_STREQ(kind_name(found), expected.type_name());
        if (expected.is_string()) {
          EXPECT_EQ(text_of(found), expected.get<std::string>());
        }
        if (expected.is_number()) {
          EXPECT_EQ(found.GetInt64(), expected.get<std::int64_t>());
        }
        if (expected.is_array()) {
          ASSERT_EQ(found.Size(), expected.size());
          std::size_t i = 0;
          for (const JsonValue& value : found.GetArray()) compare(expected[i++], value);
        }
        if (expected.is_object()) {
          ASSERT_EQ(found.MemberCount(), expected.size());
          for (const auto& [key, value] : expected.items()) compare(value, found[key.c_str()]);
        }
      };
  for (int i = 0; i < 300; ++i) {
    const nlohmann::json value = make(5);
    const std::string text = value.dump(i % 2 == 0 ? -1 : 2, ' ', i % 3 == 0);
    const JsonDocument document(text, 20);
    compare(value, document.root());
  }
}

TEST(IsUtf8, AgreesWithAnotherLibrary) {
  std::mt19937_64 random(5);
  const std::string bytes =
      "a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff";
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (std::size_t length = random() % 6; length > 0; --length) {
      text += bytes[random() % bytes.size()];
    }
    bool expected = true;
    try {
      static_cast<void>(nlohmann::json(text).dump());
    } catch (const nlohmann::json::type_error&) {
      expected = false;
    }
    ASSERT_EQ(is_utf8(text), expected) << testing::PrintToString(text);
  }
}

}  // namespace
}  // namespace shardwise::detail
