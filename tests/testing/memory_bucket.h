#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/storage/object/object_client.h"

namespace shardwise {

/// The fate of a request that changes something. `lost`: it does not arrive. `unanswered`: it
/// is done, and nobody is told. `twice`: a proxy repeats it, and the second answer is told. `late`:
/// it is done some requests later, and nobody is told. `refused`: it is not done, and the client is
/// told to repeat it.
enum class RequestFault { none, lost, unanswered, twice, late, refused };

/// A bucket in memory, whose requests fail as a test says. Thread-safe without a fault.
class MemoryBucket final : public ObjectClient {
 public:
  /// Called before each request that changes something, with its number from 0 on; may throw, as
  /// if the process had been killed. `delay`, of a late one: requests until it is done.
  struct Fault {
    RequestFault kind = RequestFault::none;
    int delay = 1;
  };
  std::function<Fault(int number)> fault = nullptr;
  /// Called before each request, of whatever kind, by the thread that makes it.
  std::function<void(std::string_view verb, const std::string& key)> observed = nullptr;
  /// Called whenever something has changed.
  std::function<void()> changed = nullptr;
  std::int64_t now = 1'000'000;  ///< the store's clock
  std::size_t page_size = 3;     ///< of a listing; small, so that tests have several pages

  std::string name() const override { return "s3://memory"; }
  RequestResult put(const std::string& key, std::span<const std::byte> body,
                    const PutCondition& condition, std::string& etag) override;
  RequestResult get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
                    const std::string& if_match) override;
  RequestResult head(const std::string& key, ObjectInfo& info) override;
  RequestResult list(const std::string& prefix, const std::string& delimiter,
                     const std::string& from, ObjectPage& page) override;
  RequestResult remove(const std::string& key) override;
  RequestResult begin_upload(const std::string& key, std::string& id) override;
  RequestResult put_part(const OpenUpload& upload, int number, std::span<const std::byte> body,
                         std::string& etag) override;
  RequestResult complete_upload(const OpenUpload& upload, std::span<const std::string> etags,
                                std::string& etag) override;
  RequestResult abort_upload(const OpenUpload& upload) override;
  RequestResult list_uploads(const std::string& prefix, std::vector<OpenUpload>& uploads) override;

  /// Does all requests that are late.
  void deliver();

  /// The bytes of all objects, as texts.
  std::map<std::string, std::string> objects() const;
  std::size_t open_uploads() const { return uploads_.size(); }

 private:
  struct Object {
    std::vector<std::byte> bytes;
    std::string etag;
    std::int64_t modified = 0;
  };
  using Change = std::function<RequestResult()>;

  void observe(std::string_view verb, const std::string& key);
  RequestResult apply(std::string_view verb, const std::string& key, const Change& change);
  RequestResult done(std::string message = {}) const;
  std::string next_etag() { return "\"" + std::to_string(++etags_) + "\""; }
  void pass_time();

  mutable std::recursive_mutex mutex_;  // `fault` and `changed` may call
  std::map<std::string, Object> objects_;
  std::map<std::string, std::pair<std::string, std::map<int, Object>>> uploads_;
  std::vector<std::pair<int, Change>> late_;
  int requests_ = 0, etags_ = 0;
};

}  // namespace shardwise
