// Answers of object stores, URLs, and the files of the AWS tools: read, or refused with an Error.
// The first byte chooses the reader of the rest.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/bucket/detail/markers.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/credentials/credentials.h"
#include "shardwise/storage/object/detail/endpoint.h"
#include "shardwise/storage/object/detail/s3_location.h"
#include "shardwise/storage/object/detail/s3_xml.h"
#include "shardwise/storage/object/detail/times.h"

namespace shardwise {
namespace {

void check_location(std::string_view text) {
  const detail::S3Location location = detail::parse_s3_location(text);
  require(detail::is_url(text), "a URL", text);
  detail::S3Location bare{.bucket = location.bucket, .prefix = location.prefix};
  if (bare.prefix.find('?') == std::string::npos) {
    require(detail::parse_s3_location(bare.to_string()) == bare, "written and read", text);
  }
  if (!location.endpoint.empty()) {
    const detail::Endpoint endpoint = detail::parse_endpoint(location.endpoint);
    require(detail::parse_endpoint(endpoint.scheme() + endpoint.authority).authority ==
                endpoint.authority,
            "endpoint", text);
  }
}

void check_page(std::string_view text) {
  const ObjectPage page = detail::parse_object_page(text, "list");
  for (const ObjectInfo& object : page.objects) require(!object.key.empty(), "key", text);
}

void check_uploads(std::string_view text) {
  const detail::UploadPage page = detail::parse_upload_page(text, "list");
  for (const OpenUpload& upload : page.uploads) {
    require(!upload.key.empty() && !upload.id.empty(), "upload", text);
  }
}

void check_keys(const detail::Credentials& keys, std::string_view text) {
  require(!keys.access_key_id.empty() && !keys.secret_access_key.empty(), "keys", text);
}

void check(unsigned form, std::string_view text) {
  switch (form) {
    case 0:
      return check_location(text);
    case 1:
      return check_page(text);
    case 2:
      return check_uploads(text);
    case 3:
      require(!detail::parse_upload_id(text, "begin").empty(), "id", text);
      return;
    case 4:
      require(!detail::parse_completed_etag(text, "complete").empty(), "ETag", text);
      return;
    case 5:
      return check_keys(detail::parse_assumed_role(text, "assume"), text);
    case 6:
      return check_keys(detail::parse_json_credentials(text, "read"), text);
    case 7:
      detail::parse_s3_error(text);
      return;
    case 8:
      detail::parse_profile(text, "file", detail::ProfileKind::config, "a");
      return;
    case 9:
      detail::parse_profile(text, "file", detail::ProfileKind::credentials, "a");
      return;
    case 10:
      if (const auto claim = bucket_detail::parse_claim(text)) {
        require(bucket_detail::parse_claim(print_claim(*claim)) == claim, "claim", text);
      }
      if (const auto name = bucket_detail::parse_claim_name(text)) {
        require(bucket_detail::claim_name(*name) == text, "claim's name", text);
      }
      return;
    default:
      detail::parse_iso_time(text);
      detail::parse_http_time(text);
  }
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    shardwise::check(data[0] % 12, {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const shardwise::Error&) {
  }
  return 0;
}
