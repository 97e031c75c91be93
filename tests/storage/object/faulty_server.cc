#include "storage/object/faulty_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/sigv4.h"

namespace shardwise {
namespace {

constexpr std::string_view kPath = "/bucket";

std::string decoded(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      bytes += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
      i += 2;
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

/// Bytes after a request are kept for the next one.
class Connection {
 public:
  explicit Connection(int socket) : socket_(socket) {}

  std::optional<ServedRequest> request() {
    const std::optional<std::string> head = until("\r\n\r\n");
    if (!head) return {};
    ServedRequest request;
    bool is_first = true;
    for (std::string_view line : split(*head, '\n')) {
      line = trim(line);
      if (is_first) {
        const auto words = split(line, ' ');
        request.method = words.at(0);
        const auto target = words.at(1);
        request.path = target.substr(0, target.find('?'));
        if (target.size() > request.path.size())
          request.query = target.substr(request.path.size() + 1);
        is_first = false;
        continue;
      }
      const std::size_t colon = line.find(':');
      if (colon == line.npos) continue;
      std::string name(line.substr(0, colon));
      std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
      request.headers[name] = trim(line.substr(colon + 1));
    }
    const std::string length = request.header("content-length");
    const std::size_t size = length.empty() ? 0 : std::stoul(length);
    while (held_.size() < size) {
      if (!more()) return {};
    }
    request.body = held_.substr(0, size);
    held_.erase(0, size);
    return request;
  }

  /// False if the connection is to be closed.
  bool send(const ServedRequest& request, const ServedAnswer& answer) {
    std::string text = "HTTP/1.1 " + std::to_string(answer.status) + " Status\r\n";
    for (const auto& [name, value] : answer.headers) text += name + ": " + value + "\r\n";
    if (answer.status != 204) {
      text +=
          "Content-Length: " + std::to_string(answer.length.value_or(answer.body.size())) + "\r\n";
    }
    text += "\r\n";
    if (request.method != "HEAD") text += answer.body;
    if (answer.cut) text.resize(std::min(*answer.cut, text.size()));
    std::string_view rest = text;
    while (!rest.empty()) {
      const ssize_t n = ::send(socket_, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      rest.remove_prefix(static_cast<std::size_t>(n));
    }
    return !answer.cut;
  }

 private:
  std::optional<std::string> until(std::string_view end) {
    for (;;) {
      const std::size_t found = held_.find(end);
      if (found != held_.npos) {
        std::string text = held_.substr(0, found);
        held_.erase(0, found + end.size());
        return text;
      }
      if (!more()) return {};
    }
  }

  bool more() {
    char part[65'536];
    const ssize_t n = ::recv(socket_, part, sizeof part, 0);
    if (n <= 0) return false;
    held_.append(part, static_cast<std::size_t>(n));
    return true;
  }

  const int socket_;
  std::string held_;
};

/// The answer to a request whose signature is not right.
std::optional<ServedAnswer> refusal(const ServedRequest& request) {
  const std::string sent = request.header("authorization");
  detail::RequestToSign to_sign{.method = request.method,
                                .path = request.path,
                                .query = request.query,
                                .headers = {},
                                .payload_hash = request.header("x-amz-content-sha256")};
  if (to_sign.payload_hash != detail::sha256_hex(std::as_bytes(std::span(request.body)))) {
    return error_answer(400, "XAmzContentSHA256Mismatch");
  }
  constexpr std::string_view kNames = "SignedHeaders=";
  const std::size_t begin = sent.find(kNames);
  if (begin == sent.npos) return error_answer(403, "AccessDenied");
  const std::string names =
      sent.substr(begin + kNames.size(), sent.find(',', begin) - begin - kNames.size());
  for (const std::string_view name : split(names, ';')) {
    to_sign.headers.emplace_back(name, request.header(std::string(name)));
  }
  const auto at = sent.find("Credential=") + 11;
  const std::string id = sent.substr(at, sent.find('/', at) - at);
  const std::string needed = detail::sigv4_authorization(
      to_sign, {.access_key_id = id, .secret_access_key = "secret"}, {"us-east-1", "s3"});
  if (sent != needed) return error_answer(403, "SignatureDoesNotMatch");
  return {};
}

}  // namespace

ServedAnswer error_answer(int status, std::string_view code) {
  return {.status = status,
          .headers = {{"x-amz-request-id", "request-1"}},
          .body = "<?xml version=\"1.0\"?><Error><Code>" + std::string(code) +
                  "</Code><Message>words of the store</Message><RequestId>request-1</RequestId>"
                  "</Error>"};
}

LoopbackServer::LoopbackServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t size = sizeof address;
  if (listener_ < 0 || ::bind(listener_, any, size) != 0 || ::listen(listener_, 64) != 0 ||
      ::getsockname(listener_, any, &size) != 0) {
    throw std::runtime_error("no server");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::jthread([this] {
    for (;;) {
      const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (connection < 0) return;
      const int on = 1;
      ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      {
        const MutexLock lock(mutex_);
        open_.push_back(connection);
        ++connections_;
      }
      threads_.emplace_back([this, connection] { serve(connection); });
    }
  });
}

LoopbackServer::~LoopbackServer() {
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  {
    const MutexLock lock(mutex_);
    for (const int connection : open_) ::shutdown(connection, SHUT_RDWR);
  }
  threads_.clear();
  for (const int connection : open_) ::close(connection);
  ::close(listener_);
}

std::string LoopbackServer::url() const { return "http://127.0.0.1:" + std::to_string(port_); }

int LoopbackServer::connections() const {
  const MutexLock lock(mutex_);
  return connections_;
}

void LoopbackServer::serve(int connection) {
  Connection stream(connection);
  while (const auto request = stream.request()) {
    ServedAnswer answer;
    {
      const MutexLock lock(handling_);
      answer = handler_(*request);
    }
    if (!stream.send(*request, answer)) break;
  }
  ::shutdown(connection, SHUT_RDWR);
}

FaultyS3::FaultyS3() : server_([this](const ServedRequest& request) { return answer(request); }) {}

void FaultyS3::plan(std::vector<std::optional<Fault>> faults) {
  const MutexLock lock(mutex_);
  faults_.assign(faults.begin(), faults.end());
}

std::vector<std::string> FaultyS3::take_requests() {
  const MutexLock lock(mutex_);
  return std::exchange(requests_, {});
}

ServedAnswer FaultyS3::answer(const ServedRequest& request) {
  std::optional<Fault> fault;
  {
    const MutexLock lock(mutex_);
    requests_.push_back(request.method + " " + request.path);
    if (!faults_.empty()) {
      fault = faults_.front();
      faults_.pop_front();
    }
  }
  if (fault && fault->when == Fault::before) return fault->answer;
  ServedAnswer answer = act(request);
  if (fault) return fault->answer;
  if (change) change(request, answer);
  return answer;
}

std::string FaultyS3::next_etag() { return "\"etag-" + std::to_string(++last_number_) + "\""; }

ServedAnswer FaultyS3::act(const ServedRequest& request) {
  if (auto refused = refusal(request)) return *refused;
  Query query;
  for (const std::string_view part : split(request.query, '&')) {
    const std::size_t equals = std::min(part.find('='), part.size());
    query[decoded(part.substr(0, equals))] =
        decoded(part.substr(std::min(equals + 1, part.size())));
  }
  const std::string_view path = request.path;
  if (path == kPath) return query.contains("uploads") ? list_uploads(query) : list(query);
  if (!path.starts_with("/bucket/")) return error_answer(404, "NoSuchBucket");
  return act_on_object(request, decoded(path.substr(kPath.size() + 1)), std::move(query));
}

ServedAnswer FaultyS3::act_on_object(const ServedRequest& request, const std::string& key,
                                     Query query) {
  const std::string& method = request.method;
  if (method == "POST" && query.contains("uploads")) {
    const std::string id = "upload-" + std::to_string(++last_number_);
    uploads_[id] = {.key = key};
    return {.body = "<InitiateMultipartUploadResult><UploadId>" + id +
                    "</UploadId></InitiateMultipartUploadResult>"};
  }
  if (query.contains("uploadId")) {
    const std::string& id = query["uploadId"];
    if (!uploads_.contains(id)) return error_answer(404, "NoSuchUpload");
    if (method == "POST") return complete(request, id);
    if (method == "DELETE") {
      uploads_.erase(id);
      return {.status = 204};
    }
    Object part{request.body, next_etag()};
    uploads_[id].parts[std::stoi(query["partNumber"])] = part;
    return {.headers = {{"ETag", part.etag}}};
  }
  if (method == "PUT") return put(request, key);
  if (method == "DELETE") {
    objects_.erase(key);
    return {.status = 204};
  }
  return get(request, key);
}

ServedAnswer FaultyS3::put(const ServedRequest& request, const std::string& key) {
  const auto found = objects_.find(key);
  const std::string if_match = request.header("if-match");
  if (request.header("if-none-match") == "*" && found != objects_.end()) {
    return error_answer(412, "PreconditionFailed");
  }
  if (!if_match.empty() && found == objects_.end()) return error_answer(404, "NoSuchKey");
  if (!if_match.empty() && found->second.etag != if_match) {
    return error_answer(412, "PreconditionFailed");
  }
  Object object{request.body, next_etag()};
  objects_[key] = object;
  return {.headers = {{"ETag", object.etag}}};
}

ServedAnswer FaultyS3::get(const ServedRequest& request, const std::string& key) const {
  const auto found = objects_.find(key);
  const bool is_head = request.method == "HEAD";
  const auto error = [is_head](int status, std::string_view code) {
    ServedAnswer answer = error_answer(status, code);
    if (is_head) answer.body.clear();
    return answer;
  };
  if (found == objects_.end()) return error(404, "NoSuchKey");
  const Object& object = found->second;
  const std::string if_match = request.header("if-match");
  if (!if_match.empty() && if_match != object.etag) return error(412, "PreconditionFailed");
  ServedAnswer answer{
      .headers = {{"ETag", object.etag}, {"Last-Modified", "Mon, 12 Oct 2009 17:50:30 GMT"}},
      .body = object.body};
  const std::string range = request.header("range");
  if (range.empty()) return answer;
  const std::size_t first = std::stoul(range.substr(6));
  const std::size_t last =
      std::min(std::stoul(range.substr(range.find('-') + 1)), object.body.size() - 1);
  if (first >= object.body.size()) return error(416, "InvalidRange");
  answer.status = 206;
  answer.body = object.body.substr(first, last - first + 1);
  answer.headers["Content-Range"] = "bytes " + std::to_string(first) + "-" + std::to_string(last) +
                                    "/" + std::to_string(object.body.size());
  return answer;
}

ServedAnswer FaultyS3::list(const Query& query) const {
  constexpr int kPageSize = 100;
  const auto value = [&query](const char* name) {
    const auto found = query.find(name);
    return found != query.end() ? found->second : std::string();
  };
  const std::string prefix = value("prefix"), delimiter = value("delimiter");
  const std::string from = decoded(value("continuation-token"));
  const auto encoded = [](const std::string& key) {
    return detail::percent_encoded(key, detail::Slash::keep);
  };
  std::string body, last, folded;
  int count = 0;
  for (const auto& [key, object] : objects_) {
    if (!key.starts_with(prefix) || (!from.empty() && key <= from)) continue;
    const std::size_t end =
        delimiter.empty() ? std::string::npos : key.find(delimiter, prefix.size());
    const std::string fold =
        end == key.npos ? std::string() : key.substr(0, end + delimiter.size());
    if (!fold.empty() && fold == folded) {
      last = key;
      continue;
    }
    if (count++ == kPageSize) {
      body += "<IsTruncated>true</IsTruncated><NextContinuationToken>" + encoded(last) +
              "</NextContinuationToken>";
      break;
    }
    last = key;
    folded = fold;
    body += fold.empty()
                ? "<Contents><Key>" + encoded(key) +
                      "</Key><LastModified>2009-10-12T17:50:30.000Z</LastModified><ETag>" +
                      object.etag + "</ETag><Size>" + std::to_string(object.body.size()) +
                      "</Size></Contents>"
                : "<CommonPrefixes><Prefix>" + encoded(fold) + "</Prefix></CommonPrefixes>";
  }
  return {.body =
              "<ListBucketResult><EncodingType>url</EncodingType>" + body + "</ListBucketResult>"};
}

ServedAnswer FaultyS3::list_uploads(const Query& query) const {
  std::string body;
  for (const auto& [id, upload] : uploads_) {
    if (!upload.key.starts_with(query.at("prefix"))) continue;
    body += "<Upload><Key>" + detail::percent_encoded(upload.key, detail::Slash::keep) +
            "</Key><UploadId>" + id + "</UploadId></Upload>";
  }
  return {.body = "<ListMultipartUploadsResult><EncodingType>url</EncodingType>" + body +
                  "</ListMultipartUploadsResult>"};
}

ServedAnswer FaultyS3::complete(const ServedRequest& request, const std::string& id) {
  Upload& upload = uploads_[id];
  Object object{.body = {}, .etag = next_etag()};
  for (const auto& [number, part] : upload.parts) {
    const std::string quoted = "&#34;" + part.etag.substr(1, part.etag.size() - 2) + "&#34;";
    if (request.body.find("<PartNumber>" + std::to_string(number) + "</PartNumber><ETag>" +
                          quoted) == request.body.npos) {
      return error_answer(400, "InvalidPart");
    }
    object.body += part.body;
  }
  objects_[upload.key] = object;
  uploads_.erase(id);
  return {.body = "<CompleteMultipartUploadResult><ETag>" + object.etag +
                  "</ETag></CompleteMultipartUploadResult>"};
}

}  // namespace shardwise
