#include "shardwise/storage/object/object_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/storage/object/detail/parallel_requests.h"

namespace shardwise {
namespace {

constexpr std::uint64_t kMostParts = 9'000;  // S3 takes 10,000

std::chrono::milliseconds jittered(std::chrono::milliseconds most) {
  thread_local std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(
      std::uniform_int_distribution<std::int64_t>(0, most.count())(random));
}

[[noreturn]] void fail(ErrorCode code, const char* operation, const std::string& bucket,
                       const std::string& key, const std::string& message) {
  throw Error(code, fmt::format("{} of {}/{}: {}", operation, bucket, key, message));
}

}  // namespace

ObjectStore::ObjectStore(std::shared_ptr<ObjectClient> client, RetryOptions options)
    : client_(std::move(client)), options_(std::move(options)) {
  if (!options_.wait) {
    options_.wait = [](std::chrono::milliseconds time) { std::this_thread::sleep_for(time); };
  }
}

// Sends a request until it is neither busy nor unknown, or the tries are over.
template <class Request>
RequestResult ObjectStore::repeat(const Request& request, const char* operation,
                                  const std::string& key, bool* was_repeated) {
  std::chrono::milliseconds wait = options_.first_wait;
  for (int attempt = 1;; ++attempt) {
    RequestResult result = request();
    if (result.date != 0) date_.store(result.date, std::memory_order_relaxed);
    const bool is_open =
        result.status == RequestStatus::busy || result.status == RequestStatus::unknown;
    if (!is_open) return result;
    if (attempt == options_.tries) {
      if (was_repeated != nullptr) return result;
      fail(ErrorCode::io, operation, name(), key,
           fmt::format("no answer in {} tries; the last one: {}", attempt, result.message));
    }
    options_.wait(jittered(wait));
    wait = std::min(2 * wait, options_.longest_wait);
  }
}

std::string ObjectStore::put(const std::string& key, std::span<const std::byte> body) {
  std::string etag;
  const RequestResult result =
      repeat([&] { return client_->put(key, body, {}, etag); }, "put", key);
  if (!result.ok()) fail(ErrorCode::io, "put", name(), key, result.message);
  return etag;
}

PutOutcome ObjectStore::put_if(const std::string& key, std::span<const std::byte> body,
                               const PutCondition& condition) {
  std::string etag;
  bool was_repeated = false;
  const RequestResult result =
      repeat([&] { return client_->put(key, body, condition, etag); }, "put", key, &was_repeated);
  if (result.ok()) return PutOutcome::done;
  // A repeated success answers like a lost race, and a proxy may repeat, too.
  const std::optional<Content> found = get(key, body.size());
  const bool is_ours =
      found && found->info.size == body.size() && std::ranges::equal(found->bytes, body);
  if (is_ours) return PutOutcome::done;
  const bool is_answered =
      result.status == RequestStatus::condition_failed || result.status == RequestStatus::not_found;
  if (is_answered) return PutOutcome::lost_race;
  // A put that still is on its way fails now, unless the object is as its condition wants it.
  const bool may_come =
      condition.if_absent ? !found : found && found->info.etag == condition.if_match;
  return may_come ? PutOutcome::unknown : PutOutcome::lost_race;
}

std::optional<ObjectStore::Content> ObjectStore::get(const std::string& key, std::uint64_t most) {
  for (int attempt = 1;; ++attempt) {
    std::optional<ObjectInfo> info = head(key);
    if (!info) return std::nullopt;
    Content content{std::move(*info), {}};
    content.bytes.resize(static_cast<std::size_t>(std::min(content.info.size, most)));
    if (content.bytes.empty()) return content;
    const RequestResult result =
        repeat([&] { return client_->get(key, 0, content.bytes, content.info.etag); }, "get", key);
    if (result.ok()) return content;
    if (result.status == RequestStatus::not_found) return std::nullopt;
    // Another object was put since: it is read in its place.
    if (attempt == options_.tries) fail(ErrorCode::io, "get", name(), key, result.message);
  }
}

void ObjectStore::get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
                      const std::string& if_match) {
  if (into.empty()) return;
  const RequestResult result =
      repeat([&] { return client_->get(key, offset, into, if_match); }, "get", key);
  if (result.ok()) return;
  if (result.status == RequestStatus::not_found) {
    fail(ErrorCode::not_found, "get", name(), key, result.message);
  }
  fail(ErrorCode::corrupt, "get", name(), key,
       fmt::format("found another object than {}, which was opened: it has been replaced or "
                   "removed ({})",
                   if_match, result.message));
}

std::optional<ObjectInfo> ObjectStore::head(const std::string& key) {
  ObjectInfo info;
  const RequestResult result = repeat([&] { return client_->head(key, info); }, "head", key);
  if (result.status == RequestStatus::not_found) return std::nullopt;
  if (!result.ok()) fail(ErrorCode::io, "head", name(), key, result.message);
  return info;
}

ObjectPage ObjectStore::list(const std::string& prefix, const std::string& delimiter) {
  ObjectPage all;
  do {
    ObjectPage page;
    const RequestResult result = repeat(
        [&] {
          page = {};
          return client_->list(prefix, delimiter, all.next, page);
        },
        "list", prefix);
    if (!result.ok()) fail(ErrorCode::io, "list", name(), prefix, result.message);
    if (page.next == all.next && !page.next.empty()) {
      fail(ErrorCode::corrupt, "list", name(), prefix, "found the same page twice");
    }
    std::ranges::move(page.objects, std::back_inserter(all.objects));
    std::ranges::move(page.prefixes, std::back_inserter(all.prefixes));
    all.next = std::move(page.next);
  } while (!all.next.empty());
  return all;
}

void ObjectStore::remove(const std::string& key) {
  const RequestResult result = repeat([&] { return client_->remove(key); }, "remove", key);
  if (!result.ok()) fail(ErrorCode::io, "remove", name(), key, result.message);
}

void ObjectStore::upload(const std::string& key, std::uint64_t size, const ReadPart& read,
                         std::size_t part_bytes, int threads) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  const std::uint64_t least = (size / kMostParts / kStep + 1) * kStep;
  const std::uint64_t part = size / part_bytes < kMostParts ? part_bytes : least;
  if (size <= part) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(size));
    read(0, bytes);
    put(key, bytes);
    return;
  }
  ObjectUpload upload(*this, key);
  // A thread keeps its part's memory for its next part.
  detail::request_all(static_cast<std::size_t>((size - 1) / part + 1), threads, [&](std::size_t i) {
    thread_local std::vector<std::byte> bytes;
    const std::uint64_t begin = i * part;
    bytes.resize(static_cast<std::size_t>(std::min(part, size - begin)));
    read(begin, bytes);
    upload.put(i, bytes);
  });
  upload.complete(size);
}

void ObjectStore::abort_uploads(const std::string& prefix,
                                const std::function<bool(const std::string& key)>& is_dead) {
  std::vector<OpenUpload> uploads;
  const RequestResult listed = repeat(
      [&] {
        uploads.clear();
        return client_->list_uploads(prefix, uploads);
      },
      "list uploads", prefix);
  if (!listed.ok()) fail(ErrorCode::io, "list uploads", name(), prefix, listed.message);
  for (const OpenUpload& upload : uploads) {
    if (!is_dead(upload.key)) continue;
    const RequestResult result =
        repeat([&] { return client_->abort_upload(upload); }, "abort an upload", upload.key);
    if (!result.ok() && result.status != RequestStatus::not_found) {
      fail(ErrorCode::io, "abort an upload", name(), upload.key, result.message);
    }
  }
}

std::int64_t ObjectStore::date() const { return date_.load(std::memory_order_relaxed); }

ObjectUpload::ObjectUpload(ObjectStore& store, const std::string& key)
    : store_(store), upload_{key, {}} {
  const RequestResult result = store_.repeat(
      [&] { return store_.client_->begin_upload(key, upload_.id); }, "begin the upload", key);
  if (!result.ok()) fail(ErrorCode::io, "begin the upload", store_.name(), key, result.message);
}

ObjectUpload::~ObjectUpload() {
  if (is_complete_) return;
  try {
    static_cast<void>(store_.client_->abort_upload(upload_));
  } catch (...) {
    // The next collection of garbage aborts it.
  }
}

void ObjectUpload::put(std::size_t number, std::span<const std::byte> bytes) {
  std::string etag;
  const RequestResult result = store_.repeat(
      [&] { return store_.client_->put_part(upload_, static_cast<int>(number) + 1, bytes, etag); },
      "put a part", upload_.key);
  if (!result.ok()) fail(ErrorCode::io, "put a part", store_.name(), upload_.key, result.message);
  const std::lock_guard lock(mutex_);
  etags_.resize(std::max(etags_.size(), number + 1));
  etags_[number] = std::move(etag);
}

void ObjectUpload::complete(std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  std::string etag;
  const RequestResult result =
      store_.repeat([&] { return store_.client_->complete_upload(upload_, etags_, etag); },
                    "complete the upload", upload_.key);
  if (!result.ok()) {
    // A repeated success finds no upload. Nobody else writes the key, so its size tells.
    const std::optional<ObjectInfo> found = store_.head(upload_.key);
    if (!found || found->size != size) {
      fail(ErrorCode::io, "complete the upload", store_.name(), upload_.key, result.message);
    }
  }
  is_complete_ = true;
}

}  // namespace shardwise
