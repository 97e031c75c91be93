#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "storage/object/faulty_server.h"

namespace shardwise {

/// One file of a web server on loopback that gives ranges. Set its members between requests only.
class ServedWebFile {
 public:
  static constexpr const char* kTime = "Mon, 12 Oct 2009 17:50:30 GMT";

  ServedWebFile(std::string its_path, std::string body)
      : path(std::move(its_path)), body_(std::move(body)) {}

  std::string url() const { return server_.url() + path; }
  void set(std::string body, std::string etag) { body_ = std::move(body), etag_ = std::move(etag); }

  /// Requests since the last call, as "GET /f?query".
  std::vector<std::string> take_requests() { return std::exchange(requests_, {}); }

  std::string path;
  bool heeds_if_match = true;
  /// Changes each answer on its way out.
  std::function<void(const ServedRequest&, ServedAnswer&)> change;

 private:
  ServedAnswer answer(const ServedRequest& request) {
    requests_.push_back(request.method + " " + request.path +
                        (request.query.empty() ? "" : "?" + request.query));
    ServedAnswer answer = act(request);
    if (change) change(request, answer);
    return answer;
  }

  ServedAnswer act(const ServedRequest& request) const {
    if (request.path != path) return {.status = 404};
    const std::string if_match = request.header("if-match"), range = request.header("range");
    if (heeds_if_match && !if_match.empty() && if_match != etag_) return {.status = 412};
    ServedAnswer answer{.headers = {{"ETag", etag_}, {"Last-Modified", kTime}}, .body = body_};
    if (range.empty()) return answer;
    const std::size_t first = std::stoul(range.substr(6));
    const std::string size = std::to_string(body_.size());
    if (first >= body_.size()) {
      return {.status = 416, .headers = {{"ETag", etag_}, {"Content-Range", "bytes */" + size}}};
    }
    answer.body = body_.substr(first, std::stoul(range.substr(range.find('-') + 1)) - first + 1);
    answer.status = 206;
    answer.headers["Content-Range"] = "bytes " + std::to_string(first) + "-" +
                                      std::to_string(first + answer.body.size() - 1) + "/" + size;
    return answer;
  }

  std::string body_, etag_ = "\"1\"";
  std::vector<std::string> requests_;
  LoopbackServer server_{[this](const ServedRequest& request) { return answer(request); }};
};

}  // namespace shardwise
