#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/storage/object/detail/sigv4.h"
#include "shardwise/storage/object/object_client.h"

namespace shardwise::detail {

/// The texts of an <Error>; those that it lacks are empty.
struct S3Error {
  std::string code = {}, message = {}, request_id = {}, region = {};
};

/// Absent if the text is no <Error>, such as a proxy's page. Never throws corrupt.
std::optional<S3Error> parse_s3_error(std::string_view text);

/// The functions below throw corrupt, with the operation, if an answer is another one.

/// ListObjectsV2.
ObjectPage parse_object_page(std::string_view text, std::string_view operation);

/// A page of ListMultipartUploads. The next one begins after the two markers; they are empty on the
/// last one.
struct UploadPage {
  std::vector<OpenUpload> uploads = {};
  std::string key_marker = {}, id_marker = {};
};
UploadPage parse_upload_page(std::string_view text, std::string_view operation);

/// The id in the answer of CreateMultipartUpload.
std::string parse_upload_id(std::string_view text, std::string_view operation);

/// The ETag in the answer of CompleteMultipartUpload.
std::string parse_completed_etag(std::string_view text, std::string_view operation);

/// The keys in the answer of STS's AssumeRoleWithWebIdentity.
Credentials parse_assumed_role(std::string_view text, std::string_view operation);

/// The body of CompleteMultipartUpload: parts are numbered from 1 on.
std::string completed_parts_xml(std::span<const std::string> etags);

}  // namespace shardwise::detail
