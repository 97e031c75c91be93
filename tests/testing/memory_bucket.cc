#include "testing/memory_bucket.h"

#include <algorithm>

#include "shardwise/shard/error.h"

namespace shardwise {
RequestResult MemoryBucket::done(std::string message) const {
  return {RequestStatus::done, std::move(message), now};
}

void MemoryBucket::pass_time() {
  ++now;
  std::vector<Change> due;
  std::erase_if(late_, [&](auto& one) {
    if (--one.first > 0) return false;
    due.push_back(std::move(one.second));
    return true;
  });
  for (const Change& change : due) {
    change();
    if (changed) changed();
  }
}

void MemoryBucket::observe(std::string_view verb, const std::string& key) {
  if (observed) observed(verb, key);
}

RequestResult MemoryBucket::apply(std::string_view verb, const std::string& key,
                                  const Change& change) {
  observe(verb, key);
  const std::lock_guard lock(mutex_);
  const Fault fault_now = fault ? fault(requests_) : Fault{};
  ++requests_;
  pass_time();
  const auto run = [&] {
    RequestResult result = change();
    if (changed) changed();
    return result;
  };
  switch (fault_now.kind) {
    case RequestFault::none:
      return run();
    case RequestFault::lost:
      return {RequestStatus::unknown, "no answer", now};
    case RequestFault::refused:
      return {RequestStatus::busy, "slow down", now};
    case RequestFault::unanswered:
      run();
      return {RequestStatus::unknown, "no answer", now};
    case RequestFault::twice:
      run();
      return run();
    case RequestFault::late:
      break;
  }
  late_.emplace_back(fault_now.delay, change);
  return {RequestStatus::unknown, "no answer", now};
}

void MemoryBucket::deliver() {
  const std::lock_guard lock(mutex_);
  for (auto& [delay, change] : std::exchange(late_, {})) {
    change();
    if (changed) changed();
  }
}

std::map<std::string, std::string> MemoryBucket::objects() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> all;
  for (const auto& [key, object] : objects_) {
    all[key] = {reinterpret_cast<const char*>(object.bytes.data()), object.bytes.size()};
  }
  return all;
}

RequestResult MemoryBucket::put(const std::string& key, std::span<const std::byte> body,
                                const PutCondition& condition, std::string& etag) {
  std::string given;
  const auto put_it = [this, key, bytes = std::vector<std::byte>(body.begin(), body.end()),
                       condition, tag = next_etag()]() -> RequestResult {
    const auto at = objects_.find(key);
    if (condition.if_absent && at != objects_.end()) {
      return {RequestStatus::condition_failed, "it is there", now};
    }
    if (!condition.if_match.empty()) {
      if (at == objects_.end()) return {RequestStatus::not_found, "it is not there", now};
      if (at->second.etag != condition.if_match) {
        return {RequestStatus::condition_failed, "it is another one", now};
      }
    }
    objects_[key] = {bytes, tag, now};
    return done();
  };
  RequestResult result = apply("put", key, put_it);
  const std::lock_guard lock(mutex_);
  if (result.ok()) etag = objects_[key].etag;
  return result;
}

RequestResult MemoryBucket::get(const std::string& key, std::uint64_t offset,
                                std::span<std::byte> into, const std::string& if_match) {
  observe("get", key);
  const std::lock_guard lock(mutex_);
  pass_time();
  const auto at = objects_.find(key);
  if (at == objects_.end()) return {RequestStatus::not_found, "it is not there", now};
  const Object& object = at->second;
  if (!if_match.empty() && object.etag != if_match) {
    return {RequestStatus::condition_failed, "it is another one", now};
  }
  if (offset > object.bytes.size() || into.size() > object.bytes.size() - offset) {
    throw Error(ErrorCode::corrupt, "get of " + key + ": it ends before that");
  }
  std::copy_n(object.bytes.begin() + static_cast<std::ptrdiff_t>(offset), into.size(),
              into.begin());
  return done();
}

RequestResult MemoryBucket::head(const std::string& key, ObjectInfo& info) {
  observe("head", key);
  const std::lock_guard lock(mutex_);
  pass_time();
  const auto at = objects_.find(key);
  if (at == objects_.end()) return {RequestStatus::not_found, "it is not there", now};
  info = {key, at->second.bytes.size(), at->second.etag, at->second.modified};
  return done();
}

RequestResult MemoryBucket::list(const std::string& prefix, const std::string& delimiter,
                                 const std::string& from, ObjectPage& page) {
  observe("list", prefix);
  const std::lock_guard lock(mutex_);
  pass_time();
  std::string last;
  for (auto at = objects_.lower_bound(std::max(prefix, from)); at != objects_.end(); ++at) {
    const std::string& key = at->first;
    if (!key.starts_with(prefix)) break;
    if (!last.empty() && key.starts_with(last)) continue;
    if (page.objects.size() + page.prefixes.size() == page_size) {
      page.next = key;
      break;
    }
    const std::size_t end =
        delimiter.empty() ? std::string::npos : key.find(delimiter, prefix.size());
    if (end == std::string::npos) {
      page.objects.push_back({key, at->second.bytes.size(), at->second.etag, at->second.modified});
    } else {
      page.prefixes.push_back(last = key.substr(0, end + delimiter.size()));
    }
  }
  return done();
}

RequestResult MemoryBucket::remove(const std::string& key) {
  return apply("remove", key, [this, key] {
    objects_.erase(key);
    return done();
  });
}

RequestResult MemoryBucket::begin_upload(const std::string& key, std::string& id) {
  RequestResult result = apply("begin", key, [this, key] {
    const std::string made = "upload-" + std::to_string(++etags_);
    uploads_[made] = {key, {}};
    return done(made);
  });
  if (result.ok()) id = result.message;
  return result;
}

RequestResult MemoryBucket::put_part(const OpenUpload& upload, int number,
                                     std::span<const std::byte> body, std::string& etag) {
  RequestResult result =
      apply("part", upload.key,
            [this, upload, number, tag = next_etag(),
             bytes = std::vector<std::byte>(body.begin(), body.end())]() -> RequestResult {
              const auto at = uploads_.find(upload.id);
              if (at == uploads_.end())
                return {RequestStatus::not_found, "there is no such upload", now};
              at->second.second[number] = {bytes, tag, now};
              return done(tag);
            });
  if (result.ok()) etag = result.message;
  return result;
}

RequestResult MemoryBucket::complete_upload(const OpenUpload& upload,
                                            std::span<const std::string> etags, std::string& etag) {
  RequestResult result = apply(
      "complete", upload.key,
      [this, upload, tag = next_etag(),
       wanted = std::vector<std::string>(etags.begin(), etags.end())]() -> RequestResult {
        const auto at = uploads_.find(upload.id);
        if (at == uploads_.end()) {
          return {RequestStatus::not_found, "there is no such upload", now};
        }
        Object object{{}, tag, now};
        int number = 0;
        for (const auto& [part, content] : at->second.second) {
          if (part != ++number || content.etag != wanted.at(static_cast<std::size_t>(part) - 1)) {
            throw Error(ErrorCode::corrupt, "complete " + upload.key + ": other parts");
          }
          object.bytes.insert(object.bytes.end(), content.bytes.begin(), content.bytes.end());
        }
        objects_[upload.key] = std::move(object);
        uploads_.erase(at);
        return done(tag);
      });
  if (result.ok()) etag = result.message;
  return result;
}

RequestResult MemoryBucket::abort_upload(const OpenUpload& upload) {
  return apply("abort", upload.key, [this, upload] {
    uploads_.erase(upload.id);
    return done();
  });
}

RequestResult MemoryBucket::list_uploads(const std::string& prefix,
                                         std::vector<OpenUpload>& uploads) {
  observe("uploads", prefix);
  const std::lock_guard lock(mutex_);
  pass_time();
  uploads.clear();
  for (const auto& [id, upload] : uploads_) {
    if (upload.first.starts_with(prefix)) uploads.push_back({upload.first, id});
  }
  return done();
}

}  // namespace shardwise
