#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace shardwise {

/// How one request to an object store ended.
enum class RequestStatus {
  done,
  not_found,         ///< there is no such object, or upload
  condition_failed,  ///< the object is there (if_absent), or is another one (if_match)
  busy,              ///< nothing has happened, and a repeat may succeed: 409, 429, 503
  unknown,           ///< it may have happened, or may still happen: no answer, or 500
};

/// The end of one request. `message` says why it is not done: method, key, HTTP status, the store's
/// code and its request id.
struct RequestResult {
  RequestStatus status = RequestStatus::done;
  std::string message = {};
  std::int64_t date = 0;  ///< seconds since 1970, by the store's clock; 0 if it did not say

  bool ok() const { return status == RequestStatus::done; }
};

/// An object's facts. The entity tag (ETag) is the store's, quotes included: another for each
/// content that was put under the key.
struct ObjectInfo {
  std::string key = {};
  std::uint64_t size = 0;
  std::string etag = {};
  std::int64_t modified = 0;  ///< seconds since 1970, by the store's clock; 0 if unknown

  bool operator==(const ObjectInfo&) const = default;
};

/// When a put may happen. At most one of the two is set.
struct PutCondition {
  bool if_absent = false;     ///< If-None-Match: *
  std::string if_match = {};  ///< an ETag
};

/// A multipart upload that is neither complete nor aborted.
struct OpenUpload {
  std::string key, id;

  bool operator==(const OpenUpload&) const = default;
};

/// A page of a listing. AWS lists in the order of the keys' bytes; SeaweedFS, for one, lists "a/b"
/// before "a-", so callers that need an order sort.
struct ObjectPage {
  std::vector<ObjectInfo> objects = {};
  std::vector<std::string> prefixes = {};  ///< of keys that go on after the delimiter
  std::string next = {};                   ///< where the next page begins; empty: this is the last
};

/// A bucket, request by request: each call sends one request, without a repeat. Keys are any bytes
/// but NUL, 1 to 1,024 of them, UTF-8. Errors that no repeat mends are thrown: no rights, no such
/// bucket, another region, a wrong clock (io); an answer that breaks the protocol (corrupt).
/// Blocks until the answer, or the client's time-out: then the status is `unknown`. Thread-safe.
class ObjectClient {
 public:
  virtual ~ObjectClient() = default;

  /// For messages: "s3://bucket".
  virtual std::string name() const = 0;

  /// Puts a whole object, and sets `etag`.
  virtual RequestResult put(const std::string& key, std::span<const std::byte> body,
                            const PutCondition& condition, std::string& etag) = 0;

  /// Gets `into.size()` bytes from `offset` on; `not_found`; `condition_failed` if `if_match` is
  /// not empty and the object is another one. An object that ends before that is `corrupt`, thrown.
  virtual RequestResult get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
                            const std::string& if_match) = 0;

  virtual RequestResult head(const std::string& key, ObjectInfo& info) = 0;

  /// Lists keys that begin with `prefix`. Keys that hold the delimiter, if there is one, after the
  /// prefix are folded into `prefixes`. `from`: ObjectPage::next of the page before.
  virtual RequestResult list(const std::string& prefix, const std::string& delimiter,
                             const std::string& from, ObjectPage& page) = 0;

  /// It is done, too, if there is no such object.
  virtual RequestResult remove(const std::string& key) = 0;

  /// A multipart upload. Parts are numbered from 1 on; all but the last have 5 MiB or more. Nothing
  /// is under the key until it is completed with the parts' ETags, in their order. Completing one
  /// that is complete already is `not_found`.
  virtual RequestResult begin_upload(const std::string& key, std::string& id) = 0;
  virtual RequestResult put_part(const OpenUpload& upload, int number,
                                 std::span<const std::byte> body, std::string& etag) = 0;
  virtual RequestResult complete_upload(const OpenUpload& upload,
                                        std::span<const std::string> etags, std::string& etag) = 0;
  virtual RequestResult abort_upload(const OpenUpload& upload) = 0;  ///< done, too, if it is gone
  virtual RequestResult list_uploads(const std::string& prefix,
                                     std::vector<OpenUpload>& uploads) = 0;
};

}  // namespace shardwise
