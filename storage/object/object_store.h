#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/object_client.h"

namespace shardwise {

/// How a put with a condition ended. `unknown`: no answer came until the deadline, so the object
/// may be there now, or later.
enum class PutOutcome { done, lost_race, unknown };

struct RetryOptions {
  int tries = 10;                            ///< of one request
  std::chrono::milliseconds first_wait{50};  ///< doubled for each try, with full jitter
  std::chrono::milliseconds longest_wait{20'000};
  std::function<void(std::chrono::milliseconds)> wait = nullptr;  ///< null: sleeps
};

/// Gives `size` bytes of an upload from `offset` on; called by several threads at once.
using ReadPart = std::function<void(std::uint64_t offset, std::span<std::byte> into)>;

class ObjectUpload;

/// A bucket whose requests are repeated until their end is known. A request that was answered late,
/// twice, or not at all is repeated only if a second one changes nothing, or if the object itself
/// says whose it is. Throws io if a store does not answer in all tries. Thread-safe.
class ObjectStore {
 public:
  explicit ObjectStore(std::shared_ptr<ObjectClient> client, RetryOptions options = {});

  std::string name() const { return client_->name(); }

  /// Puts an object under a key that nobody else writes. Returns its ETag.
  std::string put(const std::string& key, std::span<const std::byte> body);

  /// Puts an object if the condition holds. `body` is the caller's alone, as it holds an id of its
  /// own: if a repeat finds the condition failed, the object is read, and equal bytes are `done`.
  PutOutcome put_if(const std::string& key, std::span<const std::byte> body,
                    const PutCondition& condition);

  /// All bytes; absent if there is no such object. Throws corrupt if it has more than `most`.
  struct Content {
    ObjectInfo info;
    std::vector<std::byte> bytes;
  };
  std::optional<Content> get(const std::string& key, std::uint64_t most);

  /// Fills `into` from `offset` on. Throws not_found; corrupt if the object is another one than
  /// `if_match`, an ETag or empty, or ends before.
  void get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
           const std::string& if_match);

  std::optional<ObjectInfo> head(const std::string& key);

  /// Everything below a prefix, all pages.
  ObjectPage list(const std::string& prefix, const std::string& delimiter = {});

  /// Removes an object; it is no error if it is not there.
  void remove(const std::string& key);

  /// Puts an object of `size` bytes in parts of `part_bytes`, or larger ones if these were more
  /// than 9,000, up to `threads` of them at a time, under a key that nobody else writes. S3 takes
  /// parts of 5 MiB or more. One part is put by one request. Memory: threads * part. An upload that
  /// fails is aborted.
  void upload(const std::string& key, std::uint64_t size, const ReadPart& read,
              std::size_t part_bytes, int threads);

  /// Aborts those uploads below a prefix that are not complete and whose key `is_dead`.
  void abort_uploads(const std::string& prefix,
                     const std::function<bool(const std::string& key)>& is_dead);

  /// Seconds since 1970 by the store's clock, as its last answer said; 0 if none did.
  std::int64_t date() const;

 private:
  friend class ObjectUpload;

  template <class Request>
  RequestResult repeat(const Request& request, const char* operation, const std::string& key,
                       bool* was_repeated = nullptr);

  std::shared_ptr<ObjectClient> client_;
  RetryOptions options_;
  std::atomic<std::int64_t> date_{0};
};

/// A multipart upload under a key that nobody else writes. Nothing is there until complete(); one
/// that is destroyed before is aborted. Keeps the reference. Thread-safe.
class ObjectUpload {
 public:
  /// Begins it. Throws io.
  ObjectUpload(ObjectStore& store, const std::string& key);
  ~ObjectUpload();
  ObjectUpload(const ObjectUpload&) = delete;
  ObjectUpload& operator=(const ObjectUpload&) = delete;

  /// Puts a part, numbered from 0 on. All but the last are of one size. Throws io.
  void put(std::size_t number, std::span<const std::byte> bytes);

  /// Makes all parts, of `size` bytes together, the object. Throws io.
  void complete(std::uint64_t size);

 private:
  ObjectStore& store_;
  OpenUpload upload_;
  bool is_complete_ = false;
  std::mutex mutex_;  // guards the next one
  std::vector<std::string> etags_;
};

}  // namespace shardwise
