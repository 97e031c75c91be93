#include "shardwise/storage/object/detail/http.h"

#define CURL_DISABLE_TYPECHECK
#define CURL_DISABLE_DEPRECATION  // libcurl 7.80 has no other name for CURLOPT_PROTOCOLS
#include <curl/curl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/detail/dynamic_library.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostAnswerHeaders = 256, kMostAnswerHeaderBytes = std::size_t{64} << 10;
constexpr std::size_t kMostAnswerBytes = std::size_t{32} << 20;

constexpr std::string_view kNeededCurl =
    "libcurl 7.80 or later (Debian's libcurl4) for URLs of object stores";

/// The functions of libcurl that a client needs.
struct Curl {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_reset) easy_reset;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;

  Curl() {
    const DynamicLibrary library("libcurl.so.4", kNeededCurl);
    library.find(global_init, "curl_global_init");
    library.find(easy_init, "curl_easy_init");
    library.find(easy_reset, "curl_easy_reset");
    library.find(easy_setopt, "curl_easy_setopt");
    library.find(easy_perform, "curl_easy_perform");
    library.find(easy_cleanup, "curl_easy_cleanup");
    library.find(easy_strerror, "curl_easy_strerror");
    library.find(slist_append, "curl_slist_append");
    library.find(slist_free_all, "curl_slist_free_all");
    if (global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("start libcurl: found a refusal, needed {}", kNeededCurl));
    }
  }
};

const Curl& curl() {
  static const Curl loaded;
  return loaded;
}

/// For messages: a query may hold a signature, which is as good as a key.
std::string_view without_query(std::string_view url) { return url.substr(0, url.find('?')); }

/// The header lines that libcurl sends.
class HeaderLines {
 public:
  explicit HeaderLines(const NamedTexts& headers) {
    for (const auto& [name, value] : headers) {
      const bool has_control =
          std::ranges::any_of(value, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
      if (has_control) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("send the header {}: found a control character in its value, "
                                "needed plain text",
                                name));
      }
      add(value.empty() ? name + ";" : fmt::format("{}: {}", name, value));
    }
    add("Expect:");        // a body follows at once: waiting for a 100 costs a round trip
    add("Content-Type:");  // of libcurl's own, which no signature covers
  }
  ~HeaderLines() { curl().slist_free_all(lines_); }
  HeaderLines(const HeaderLines&) = delete;
  HeaderLines& operator=(const HeaderLines&) = delete;

  curl_slist* lines() const { return lines_; }

 private:
  void add(const std::string& line) {
    curl_slist* const longer = curl().slist_append(lines_, line.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    lines_ = longer;
  }

  curl_slist* lines_ = nullptr;
};

/// A request under way, and what has come of its answer.
class Transfer {
 public:
  Transfer(CURL* handle, const HttpRequest& request, const HttpOptions& options)
      : handle_(handle), request_(request), lines_(request.headers) {
    curl().easy_reset(handle);
    set_target(options);
    set_body();
    set(CURLOPT_ERRORBUFFER, reason_.data());
    set(CURLOPT_HEADERDATA, this);
    set(CURLOPT_HEADERFUNCTION, static_cast<curl_write_callback>(&on_header));
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_WRITEFUNCTION, static_cast<curl_write_callback>(&on_data));
    set(CURLOPT_PREREQDATA, this);
    set(CURLOPT_PREREQFUNCTION, static_cast<curl_prereq_callback>(&on_send));
  }

  HttpAnswer perform() {
    const CURLcode code = curl().easy_perform(handle_);
    answer_.may_have_left = times_sent_ > 0;
    if (!excess_.empty()) {
      throw Error(ErrorCode::corrupt, fmt::format("{} {}: found an answer with {}", request_.method,
                                                  without_query(request_.url), excess_));
    }
    if (code == CURLE_OK && has_all_headers_) return std::move(answer_);
    std::string why = reason_[0] != '\0' ? reason_.data() : curl().easy_strerror(code);
    if (code == CURLE_ABORTED_BY_CALLBACK) why = "the connection was closed without an answer";
    if (code == CURLE_OK) why = "the connection was closed in the headers";  // for libcurl, an end
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
      throw Error(ErrorCode::io,
                  fmt::format("connect to {}: found \"{}\", needed a certificate that is trusted "
                              "(AWS_CA_BUNDLE names a file of more)",
                              without_query(request_.url), why));
    }
    answer_.status = 0;
    answer_.problem = why;
    return std::move(answer_);
  }

 private:
  template <class Value>
  void set(CURLoption option, Value value) {
    const CURLcode code = curl().easy_setopt(handle_, option, value);
    if (code == CURLE_OK) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("set option {} of libcurl: found \"{}\", needed {}",
                            static_cast<int>(option), curl().easy_strerror(code), kNeededCurl));
  }

  void set_target(const HttpOptions& options) {
    set(CURLOPT_URL, request_.url.c_str());
    set(CURLOPT_CUSTOMREQUEST, request_.method.c_str());
    set(CURLOPT_HTTPHEADER, lines_.lines());
    set(CURLOPT_PROTOCOLS, static_cast<long>(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    set(CURLOPT_PATH_AS_IS, 1L);  // "..", too, may be part of a key
    set(CURLOPT_FOLLOWLOCATION, 0L);
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_NOPROGRESS, 1L);
    set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
    set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_ms));
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_s));
    set(CURLOPT_TIMEOUT_MS, static_cast<long>(options.whole_ms));
    set(CURLOPT_BUFFERSIZE, 512L << 10);
    set(CURLOPT_SSL_VERIFYPEER, 1L);
    set(CURLOPT_SSL_VERIFYHOST, 2L);
    set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    if (!options.ca_file.empty()) set(CURLOPT_CAINFO, options.ca_file.c_str());
    if (is_loopback_host(host())) set(CURLOPT_PROXY, "");
  }

  void set_body() {
    if (request_.method == "HEAD") set(CURLOPT_NOBODY, 1L);
    if (request_.method != "PUT" && request_.method != "POST") return;
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_UPLOAD_BUFFERSIZE, 512L << 10);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request_.body.size()));
    set(CURLOPT_READDATA, this);
    set(CURLOPT_READFUNCTION, static_cast<curl_read_callback>(&on_read));
  }

  std::string_view host() const {
    std::string_view text = request_.url;
    text.remove_prefix(std::min(text.find("://") + 3, text.size()));
    text = text.substr(0, text.find('/'));
    if (text.starts_with('[')) return text.substr(0, text.find(']') + 1);
    return text.substr(0, text.find(':'));
  }

  /// Before each time that libcurl sends the request. It would send it again, by itself, if a kept
  /// connection was closed without an answer: but a PUT may have been done by then.
  static int on_send(void* self, char*, char*, int, int) {
    auto& transfer = *static_cast<Transfer*>(self);
    const std::string& method = transfer.request_.method;
    const bool is_first = transfer.times_sent_++ == 0;
    return is_first || method == "GET" || method == "HEAD" ? CURL_PREREQFUNC_OK
                                                           : CURL_PREREQFUNC_ABORT;
  }

  static std::size_t on_read(char* to, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const auto rest = transfer.request_.body.subspan(transfer.sent_);
    const std::size_t n = std::min(size * count, rest.size());
    if (n > 0) std::memcpy(to, rest.data(), n);
    transfer.sent_ += n;
    return n;
  }

  static std::size_t on_header(char* data, std::size_t size, std::size_t count, void* self) {
    return static_cast<Transfer*>(self)->take_header({data, size * count}) ? size * count : 0;
  }

  bool take_header(std::string_view line) {
    HttpAnswer& answer = answer_;
    if (line.starts_with("HTTP/")) {  // the last one counts: a "100 Continue" may come before it
      answer = {};
      header_bytes_ = 0;
      has_all_headers_ = false;
      const std::size_t at = line.find(' ');
      for (std::size_t i = at + 1; at != line.npos && i < std::min(at + 4, line.size()); ++i) {
        if (std::isdigit(static_cast<unsigned char>(line[i])) == 0) return false;
        answer.status = answer.status * 10 + (line[i] - '0');
      }
      return true;
    }
    header_bytes_ += line.size();
    if (answer.headers.size() >= kMostAnswerHeaders || header_bytes_ > kMostAnswerHeaderBytes) {
      excess_ = fmt::format("more than {} headers or {}", kMostAnswerHeaders,
                            human_bytes(kMostAnswerHeaderBytes));
      return false;
    }
    if (trim(line).empty()) has_all_headers_ = true;
    const std::size_t colon = line.find(':');
    if (colon == line.npos) return true;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    answer.headers.emplace_back(std::move(name), trim(line.substr(colon + 1)));
    return true;
  }

  static std::size_t on_data(char* data, std::size_t size, std::size_t count, void* self) {
    return static_cast<Transfer*>(self)->take_data({data, size * count}) ? size * count : 0;
  }

  bool take_data(std::string_view data) {
    HttpAnswer& answer = answer_;
    const bool goes_into = !request_.into.empty() && (answer.status == 206 || answer.status == 200);
    const std::size_t held = goes_into ? answer.received : answer.body.size();
    const std::size_t room = goes_into ? request_.into.size() : kMostAnswerBytes;
    if (data.size() > room - held) {
      excess_ = fmt::format("more than {} bytes, status {}", room, answer.status);
      return false;
    }
    if (goes_into) {
      std::memcpy(request_.into.data() + answer.received, data.data(), data.size());
      answer.received += data.size();
    } else {
      answer.body += data;
    }
    return true;
  }

  CURL* const handle_;
  const HttpRequest& request_;
  const HeaderLines lines_;
  HttpAnswer answer_;
  std::string excess_;
  std::array<char, CURL_ERROR_SIZE> reason_ = {};
  std::size_t sent_ = 0, header_bytes_ = 0;
  int times_sent_ = 0;
  bool has_all_headers_ = false;
};

}  // namespace

/// Handles that are not in use; each keeps its connection. The last one returned is used first. A
/// child of fork() has handles of its own: a connection that two processes use would give one the
/// answers of the other.
class HttpClient::Pool {
 public:
  Pool() { curl(); }
  ~Pool() {
    if (owner_ != getpid()) return;
    for (CURL* const handle : handles_) curl().easy_cleanup(handle);
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  CURL* take() {
    {
      const MutexLock lock(mutex_);
      if (owner_ != getpid()) {  // the parent's: closing them here could end its connections
        handles_.clear();
        owner_ = getpid();
      }
      if (!handles_.empty()) {
        CURL* const handle = handles_.back();
        handles_.pop_back();
        return handle;
      }
    }
    CURL* const handle = curl().easy_init();
    if (handle == nullptr) throw std::bad_alloc();
    return handle;
  }

  void give_back(CURL* handle) {
    const MutexLock lock(mutex_);
    handles_.push_back(handle);
  }

 private:
  Mutex mutex_;
  pid_t owner_ SHARDWISE_GUARDED_BY(mutex_) = getpid();
  std::vector<CURL*> handles_ SHARDWISE_GUARDED_BY(mutex_);
};

std::string_view HttpAnswer::header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &NamedTexts::value_type::first);
  return found == headers.end() ? std::string_view() : found->second;
}

HttpClient::HttpClient(HttpOptions options)
    : options_(std::move(options)), pool_(std::make_unique<Pool>()) {}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::send(const HttpRequest& request) {
  class Taken {
   public:
    explicit Taken(Pool& pool) : pool_(pool), handle_(pool.take()) {}
    ~Taken() { pool_.give_back(handle_); }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    CURL* handle() const { return handle_; }

   private:
    Pool& pool_;
    CURL* const handle_;
  };
  const Taken taken(*pool_);
  return Transfer(taken.handle(), request, options_).perform();
}

bool is_loopback_host(std::string_view host) {
  if (host == "localhost" || host.ends_with(".localhost") || host == "[::1]" || host == "::1") {
    return true;
  }
  const bool is_address =
      host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
  return is_address && std::ranges::count(host, '.') == 3;
}

}  // namespace shardwise::detail
