#include "shardwise/storage/object/detail/s3_xml.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/times.h"
#include "shardwise/storage/object/detail/xml_reader.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void refuse_xml(std::string_view operation, std::string_view found,
                             std::string_view needed) {
  throw Error(ErrorCode::corrupt,
              fmt::format("{}: found an answer with {}, needed {}", operation, found, needed));
}

/// Undoes encoding-type=url, which carries characters that XML cannot.
std::string url_decoded(std::string_view text, std::string_view operation) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      bytes += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const int high = i + 2 < text.size() ? digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) refuse_xml(operation, "the key " + shown(text), "%XX in it");
    bytes += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return bytes;
}

bool is_true(std::string_view text, std::string_view operation) {
  if (text != "true" && text != "false") {
    refuse_xml(operation, "IsTruncated " + shown(text), "true or false");
  }
  return text == "true";
}

/// Reads the whole text; `take` is called at the end of each element, with the path below the
/// outermost element, which has to be `root`.
template <class Take>
void read_elements(std::string_view text, std::string_view operation, std::string_view root,
                   Take&& take) {
  XmlReader xml(text, operation);
  while (xml.next()) {
    const std::string_view path = xml.path();
    const std::string_view outermost = path.substr(0, path.find('/'));
    if (outermost != root) {
      refuse_xml(operation, "the element " + shown(outermost), shown(root));
    }
    if (path.size() > root.size()) take(path.substr(root.size() + 1), xml.text());
  }
}

}  // namespace

std::optional<S3Error> parse_s3_error(std::string_view text) {
  S3Error error;
  try {
    XmlReader xml(text, "read an error");
    while (xml.next()) {
      std::string_view path = xml.path();
      // STS has <ErrorResponse><Error><Code>.
      constexpr std::string_view kAround = "ErrorResponse";
      if (path == "Error" || path == kAround) return error;
      if (path.starts_with("ErrorResponse/")) path.remove_prefix(kAround.size() + 1);
      if (path == "Error/Code") error.code = xml.text();
      if (path == "Error/Message") error.message = xml.text();
      if (path == "Error/RequestId" || path == "RequestId") error.request_id = xml.text();
      if (path == "Error/Region") error.region = xml.text();
    }
  } catch (const Error&) {  // no XML
  }
  return {};
}

ObjectPage parse_object_page(std::string_view text, std::string_view operation) {
  ObjectPage page;
  ObjectInfo object;
  bool is_encoded = false, is_truncated = false;
  read_elements(text, operation, "ListBucketResult",
                [&](std::string_view path, const std::string& value) {
                  if (path == "Contents/Key") {
                    object.key = value;
                  } else if (path == "Contents/Size") {
                    const auto size = parse_count(value);
                    if (!size) refuse_xml(operation, "Size " + shown(value), "a number");
                    object.size = static_cast<std::uint64_t>(*size);
                  } else if (path == "Contents/ETag") {
                    object.etag = value;
                  } else if (path == "Contents/LastModified") {
                    object.modified = parse_iso_time(value).value_or(0);
                  } else if (path == "Contents") {
                    page.objects.push_back(std::move(object));
                    object = {};
                  } else if (path == "CommonPrefixes/Prefix") {
                    page.prefixes.push_back(value);
                  } else if (path == "EncodingType") {
                    is_encoded = value == "url";
                  } else if (path == "IsTruncated") {
                    is_truncated = is_true(value, operation);
                  } else if (path == "NextContinuationToken") {
                    page.next = value;
                  }
                });
  if (is_truncated && page.next.empty()) {
    refuse_xml(operation, "more to come and no NextContinuationToken", "one");
  }
  if (!is_truncated) page.next.clear();
  for (ObjectInfo& info : page.objects) {
    if (is_encoded) info.key = url_decoded(info.key, operation);
    if (info.key.empty()) refuse_xml(operation, "an object without a key", "one");
  }
  for (std::string& prefix : page.prefixes) {
    if (is_encoded) prefix = url_decoded(prefix, operation);
  }
  return page;
}

UploadPage parse_upload_page(std::string_view text, std::string_view operation) {
  UploadPage page;
  OpenUpload upload;
  bool is_encoded = false, is_truncated = false;
  read_elements(text, operation, "ListMultipartUploadsResult",
                [&](std::string_view path, const std::string& value) {
                  if (path == "Upload/Key") {
                    upload.key = value;
                  } else if (path == "Upload/UploadId") {
                    upload.id = value;
                  } else if (path == "Upload") {
                    page.uploads.push_back(std::move(upload));
                    upload = {};
                  } else if (path == "EncodingType") {
                    is_encoded = value == "url";
                  } else if (path == "IsTruncated") {
                    is_truncated = is_true(value, operation);
                  } else if (path == "NextKeyMarker") {
                    page.key_marker = value;
                  } else if (path == "NextUploadIdMarker") {
                    page.id_marker = value;
                  }
                });
  for (OpenUpload& one : page.uploads) {
    if (is_encoded) one.key = url_decoded(one.key, operation);
    if (one.key.empty() || one.id.empty()) {
      refuse_xml(operation, "an upload without a key or id", "both");
    }
  }
  if (is_encoded) page.key_marker = url_decoded(page.key_marker, operation);
  if (is_truncated && page.key_marker.empty()) {
    refuse_xml(operation, "more to come and no NextKeyMarker", "one");
  }
  if (!is_truncated) page.key_marker = page.id_marker = {};
  return page;
}

std::string parse_upload_id(std::string_view text, std::string_view operation) {
  std::string id;
  read_elements(text, operation, "InitiateMultipartUploadResult",
                [&](std::string_view path, const std::string& value) {
                  if (path == "UploadId") id = value;
                });
  if (id.empty()) refuse_xml(operation, "no UploadId", "one");
  return id;
}

std::string parse_completed_etag(std::string_view text, std::string_view operation) {
  std::string etag;
  read_elements(text, operation, "CompleteMultipartUploadResult",
                [&](std::string_view path, const std::string& value) {
                  if (path == "ETag") etag = value;
                });
  if (etag.empty()) refuse_xml(operation, "no ETag", "one");
  return etag;
}

Credentials parse_assumed_role(std::string_view text, std::string_view operation) {
  Credentials credentials;
  read_elements(text, operation, "AssumeRoleWithWebIdentityResponse",
                [&](std::string_view path, const std::string& value) {
                  constexpr std::string_view kInside =
                      "AssumeRoleWithWebIdentityResult/Credentials/";
                  if (!path.starts_with(kInside)) return;
                  path.remove_prefix(kInside.size());
                  if (path == "AccessKeyId") credentials.access_key_id = value;
                  if (path == "SecretAccessKey") credentials.secret_access_key = value;
                  if (path == "SessionToken") credentials.session_token = value;
                  if (path == "Expiration") {
                    const auto time = parse_iso_time(value);
                    if (!time) refuse_xml(operation, "Expiration " + shown(value), "a time");
                    credentials.expires = *time;
                  }
                });
  if (credentials.access_key_id.empty() || credentials.secret_access_key.empty()) {
    refuse_xml(operation, "no keys", "AccessKeyId and SecretAccessKey");
  }
  return credentials;
}

std::string completed_parts_xml(std::span<const std::string> etags) {
  std::string xml = "<CompleteMultipartUpload>";
  for (std::size_t i = 0; i < etags.size(); ++i) {
    xml += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>", i + 1);
    for (const char c : etags[i]) {
      if (c == '&' || c == '<' || c == '>' || c == '"') {
        xml += fmt::format("&#{};", static_cast<int>(c));
      } else {
        xml += c;
      }
    }
    xml += "</ETag></Part>";
  }
  return xml + "</CompleteMultipartUpload>";
}

}  // namespace shardwise::detail
