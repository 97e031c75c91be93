#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "shardwise/shard/host/mutex.h"

namespace shardwise {

/// A request as a server reads it. Header names are in lower case; path and query are as they came.
struct ServedRequest {
  std::string method, path, query;
  std::map<std::string, std::string> headers = {};
  std::string body = {};

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found != headers.end() ? found->second : std::string();
  }
};

/// An answer to send, which may be a wrong one.
struct ServedAnswer {
  int status = 200;
  std::map<std::string, std::string> headers = {};
  std::string body = {};
  std::optional<std::size_t> length = {};  ///< Content-Length, if it is not the body's
  std::optional<std::size_t> cut = {};     ///< bytes after which the connection is closed
};

/// An HTTP/1.1 server on a free port of 127.0.0.1, with a thread for each connection. Thread-safe;
/// the handler is called under a lock.
class LoopbackServer {
 public:
  using Handler = std::function<ServedAnswer(const ServedRequest&)>;

  explicit LoopbackServer(Handler handler);
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  /// "http://127.0.0.1:PORT".
  std::string url() const;

  /// Connections that were accepted.
  int connections() const;

 private:
  void serve(int connection);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  mutable Mutex mutex_;
  std::vector<int> open_ SHARDWISE_GUARDED_BY(mutex_);
  int connections_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  Mutex handling_;
  std::vector<std::jthread> threads_;  // the acceptor's to add to
  std::jthread acceptor_;
};

/// One bucket, "bucket", in memory, of path style: what ObjectClient needs of S3. Signatures are
/// checked: the key's secret is "secret". Requests are counted, and the next ones can be made to
/// fail.
class FaultyS3 {
 public:
  /// Before the request has its effect, it is answered by this; or after it.
  struct Fault {
    enum When { before, after } when = before;
    ServedAnswer answer = {};
  };

  FaultyS3();

  std::string url() const { return server_.url(); }

  /// The next requests meet these faults, in their order; absent: none.
  void plan(std::vector<std::optional<Fault>> faults);

  /// Changes each answer on its way out.
  std::function<void(const ServedRequest&, ServedAnswer&)> change;

  /// Requests since the last call, as "GET /bucket/key".
  std::vector<std::string> take_requests();

  int connections() const { return server_.connections(); }

 private:
  struct Object {
    std::string body, etag;
  };
  struct Upload {
    std::string key;
    std::map<int, Object> parts = {};
  };
  using Query = std::map<std::string, std::string>;

  ServedAnswer answer(const ServedRequest& request);
  ServedAnswer act(const ServedRequest& request);
  ServedAnswer act_on_object(const ServedRequest& request, const std::string& key, Query query);
  ServedAnswer put(const ServedRequest& request, const std::string& key);
  ServedAnswer get(const ServedRequest& request, const std::string& key) const;
  ServedAnswer list(const Query& query) const;
  ServedAnswer list_uploads(const Query& query) const;
  ServedAnswer complete(const ServedRequest& request, const std::string& id);
  std::string next_etag();

  Mutex mutex_;
  std::deque<std::optional<Fault>> faults_ SHARDWISE_GUARDED_BY(mutex_);
  std::vector<std::string> requests_ SHARDWISE_GUARDED_BY(mutex_);
  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
  int last_number_ = 0;
  LoopbackServer server_;  // last: its threads use the others
};

/// An answer with an <Error>.
ServedAnswer error_answer(int status, std::string_view code);

}  // namespace shardwise
