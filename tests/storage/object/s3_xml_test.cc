#include "shardwise/storage/object/detail/s3_xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "shardwise/storage/object/detail/times.h"
#include "shardwise/storage/object/detail/xml_reader.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

std::vector<std::pair<std::string, std::string>> elements_of(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> elements;
  XmlReader xml(text, "read a test");
  while (xml.next()) elements.emplace_back(xml.path(), xml.text());
  return elements;
}

TEST(XmlReader, ReadsElementsFromTheInsideOut) {
  using Elements = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(elements_of("<?xml version='1.0'?>\n<!-- > --><A xmlns=\"x>y\" b='<'>\n"
                        " <B>1 &amp; &#x32;&#51;</B>\n <s:B/><C>\n</C>x </A>\n"),
            (Elements{{"A/B", "1 & 23"}, {"A/B", ""}, {"A/C", "\n"}, {"A", ""}}));
  EXPECT_EQ(elements_of("<A>&lt;&gt;&quot;&apos;&#xe4;&#x6c34;&#x1f642;</A>"),
            (Elements{{"A", "<>\"'\xc3\xa4\xe6\xb0\xb4\xf0\x9f\x99\x82"}}));
}

TEST(XmlReader, RefusesOtherTexts) {
  std::string deep;
  for (int i = 0; i < 17; ++i) deep += "<A>";
  struct Case {
    std::string text;
    const char* found;
  };
  const Case cases[] = {{"", "no element"},
                        {"text", "text outside of an element"},
                        {"<A>", "an end inside an element"},
                        {"<A", "a tag without an end"},
                        {"<A b='>", "a tag without an end"},
                        {"<A></B>", "an end of another element"},
                        {"<A></A></A>", "an end of no element"},
                        {"<A/><A/>", "a second outermost element"},
                        {"<A/>x", "text outside of an element"},
                        {"<!DOCTYPE A [<!ENTITY x 'y'>]><A>&x;</A>", "a tag without a name"},
                        {"<A>&x;</A>", "an unknown entity"},
                        {"<A>&#0;</A>", "an unknown entity"},
                        {"<A>&#xd800;</A>", "an unknown entity"},
                        {"<A>&#x110000;</A>", "an unknown entity"},
                        {"<A>&#;</A>", "an unknown entity"},
                        {"<A>&amp</A>", "an entity without an end"},
                        {"<!-- x", "a comment without an end"},
                        {"<A><![CDATA[x]]></A>", "a tag without a name"},
                        {deep, "elements nested too deep"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { elements_of(c.text); }), HasSubstr(c.found));
  }
}

constexpr std::string_view kPage =
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
    "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>a/+%41=</NextContinuationToken>"
    "<Contents><Key>a+b%2Bc%2Fd</Key><Size>7</Size><ETag>&quot;e&quot;</ETag>"
    "<LastModified>2009-10-12T17:50:30.000Z</LastModified><Owner><ID>x</ID></Owner></Contents>"
    "<CommonPrefixes><Prefix>p%20q/</Prefix></CommonPrefixes></ListBucketResult>";

TEST(S3Xml, ReadsAPageOfObjects) {
  const ObjectPage page = parse_object_page(kPage, "list s3://b");
  ASSERT_EQ(page.objects.size(), 1U);
  EXPECT_EQ(page.objects[0], (ObjectInfo{"a b+c/d", 7, "\"e\"", 1'255'369'830}));
  EXPECT_EQ(page.prefixes, std::vector<std::string>{"p q/"});
  EXPECT_EQ(page.next, "a/+%41=");
}

TEST(S3Xml, RefusesAPageThatIsNone) {
  struct Change {
    std::string_view from, to;
    const char* found;
  };
  for (const auto& [from, to, found] :
       {Change{"ListBucketResult", "ListAllMyBucketsResult", "the element"},
        Change{"<Size>7</Size>", "<Size>-7</Size>", "Size \"-7\""},
        Change{"%2F", "%2G", "found an answer with the key"},
        Change{">true<", ">yes<", "IsTruncated \"yes\""},
        Change{"<NextContinuationToken>a/+%41=</NextContinuationToken>", "",
               "no NextContinuationToken"},
        Change{"a+b%2Bc%2Fd", "", "an object without a key"}}) {
    std::string text(kPage);
    for (std::size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
    SCOPED_TRACE(text);
    const std::string message =
        message_of(ErrorCode::corrupt, [&] { parse_object_page(text, "list s3://b"); });
    EXPECT_THAT(message, testing::StartsWith("list s3://b: "));
    EXPECT_THAT(message, HasSubstr(found));
  }
}

TEST(S3Xml, ReadsUploads) {
  const UploadPage page = parse_upload_page(
      "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>a</NextKeyMarker>"
      "<NextUploadIdMarker>2</NextUploadIdMarker><Upload><Key>a</Key><UploadId>1</UploadId></"
      "Upload>"
      "<Upload><UploadId>2</UploadId><Key>a</Key></Upload></ListMultipartUploadsResult>",
      "list");
  EXPECT_EQ(page.uploads, (std::vector<OpenUpload>{{"a", "1"}, {"a", "2"}}));
  EXPECT_EQ(page.key_marker, "a");
  EXPECT_EQ(page.id_marker, "2");
  EXPECT_EQ(
      parse_upload_id("<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>x</UploadId>"
                      "</InitiateMultipartUploadResult>",
                      "begin"),
      "x");
  message_of(ErrorCode::corrupt,
             [] { parse_upload_id("<InitiateMultipartUploadResult/>", "begin"); });
  EXPECT_EQ(parse_completed_etag("<CompleteMultipartUploadResult><ETag>\"x\"</ETag>"
                                 "</CompleteMultipartUploadResult>",
                                 "complete"),
            "\"x\"");
  message_of(ErrorCode::corrupt,
             [] { parse_completed_etag("<CompleteMultipartUploadResult/>", "complete"); });
  const std::string etags[] = {"\"a\"", "<&>"};
  EXPECT_EQ(
      completed_parts_xml(etags),
      "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&#34;a&#34;</ETag></Part>"
      "<Part><PartNumber>2</PartNumber><ETag>&#60;&#38;&#62;</ETag></Part>"
      "</CompleteMultipartUpload>");
}

TEST(S3Xml, ReadsErrors) {
  const auto error = parse_s3_error(
      "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>m</Message>"
      "<RequestId>r</RequestId><Region>eu-west-1</Region></Error>");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "SlowDown");
  EXPECT_EQ(error->message, "m");
  EXPECT_EQ(error->request_id, "r");
  EXPECT_EQ(error->region, "eu-west-1");
  EXPECT_EQ(parse_s3_error("<ErrorResponse><Error><Code>c</Code></Error><RequestId>r</RequestId>"
                           "</ErrorResponse>")
                ->request_id,
            "r");
  EXPECT_FALSE(parse_s3_error(""));
  EXPECT_FALSE(parse_s3_error("<html><body>Bad gateway<hr></body></html>"));
  EXPECT_FALSE(parse_s3_error("<Error><Code>SlowDown</Code>"));
}

TEST(Times, ReadsBothForms) {
  EXPECT_EQ(parse_iso_time("1970-01-01T00:00:00Z"), 0);
  EXPECT_EQ(parse_iso_time("2009-10-12T17:50:30.000Z"), 1'255'369'830);
  EXPECT_EQ(parse_iso_time("2009-10-12T19:50:30+02:00"), 1'255'369'830);
  EXPECT_EQ(parse_iso_time("2009-10-12T13:50:30-0400"), 1'255'369'830);
  EXPECT_EQ(parse_iso_time("2024-02-29T00:00:00Z"), 1'709'164'800);
  EXPECT_EQ(parse_http_time("Mon, 12 Oct 2009 17:50:30 GMT"), 1'255'369'830);
  for (const char* const text : {"", "2009", "2009-13-12T17:50:30Z", "2009-10-12T17:50:30",
                                 "2009-10-12 17:50:30Z", "2009-10-12T17:50:30Z ", "now"}) {
    EXPECT_FALSE(parse_iso_time(text)) << text;
    EXPECT_FALSE(parse_http_time(text)) << text;
  }
  EXPECT_FALSE(parse_http_time("Mon, 12 Okt 2009 17:50:30 GMT"));
}

}  // namespace
}  // namespace shardwise::detail
