#include "shardwise/runtime/process/detail/job_member.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <random>
#include <span>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kNoWait{0};

// How long a number is tried before checking whether rank 0 of this job has replaced it.
constexpr milliseconds kLongestTry{250};

constexpr std::size_t kNumberDigits = 32;

std::string new_number() {
  std::random_device random;
  std::string number;
  while (number.size() < kNumberDigits) number += fmt::format("{:08x}", random());
  return number;
}

bool is_number(const std::string& text) {
  return text.size() == kNumberDigits && std::ranges::all_of(text, [](char digit) {
           return std::isxdigit(static_cast<unsigned char>(digit)) != 0;
         });
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

JobMember::JobMember(KeyValueStore with)
    : store(std::move(with)), number_(new_number()), is_open_(store.is_fresh) {
  if (store.is_fresh) {
    job_ = store.prefix + "job";
  } else if (store.rank == 0) {
    job_ = store.prefix + number_;
    for (int rank = 1; rank < store.size; ++rank) strangers_.insert(rank);
  }
}

std::string JobMember::key(std::string_view name) {
  const MutexLock lock(mutex_);
  return fmt::format("{}/{}", job_, name);
}

void JobMember::open() {
  {
    const MutexLock lock(mutex_);
    if (is_open_) return;
  }
  store.set(store.prefix + "open", bytes_of(number_));
  const MutexLock lock(mutex_);
  is_open_ = true;
}

std::vector<int> JobMember::admit(Time end) {
  for (Wait wait(end);;) {
    const bool is_last = wait.is_over();
    std::vector<int> left;
    {
      const MutexLock lock(mutex_);
      left.assign(strangers_.begin(), strangers_.end());
    }
    if (left.empty() || is_last) return left;
    collect(key("hello"), std::move(left), after(wait.next()), [&](int rank, const Bytes& hello) {
      const std::string number = text_of(hello);
      if (!is_number(number)) {
        throw Error(ErrorCode::corrupt,
                    fmt::format("join a job: found {} bytes of rank {}, needed {} digits",
                                hello.size(), rank, kNumberDigits));
      }
      store.set(key(fmt::format("welcome/{}/{}", rank, number)), {});
      const MutexLock lock(mutex_);
      strangers_.erase(rank);
      return true;
    });
  }
}

bool JobMember::join(Time end) {
  std::string tried, hello, welcome = store.prefix + "none";
  for (Wait wait(end); !is_known();) {
    const bool is_last = wait.is_over();
    const auto offered = store.get(store.prefix + "open", tried.empty() ? wait.next() : kNoWait);
    const std::string number = offered ? text_of(*offered) : "";
    if (is_number(number) && number != tried) {
      if (!tried.empty()) store.remove(hello);
      tried = number;
      hello = fmt::format("{}{}/hello/{}", store.prefix, tried, store.rank);
      welcome = fmt::format("{}{}/welcome/{}/{}", store.prefix, tried, store.rank, number_);
      store.set(hello, bytes_of(number_));
    }
    // If the value there is not a number, this only waits.
    if (offered && store.get(welcome, std::min(wait.next(), kLongestTry)) && !tried.empty()) {
      const MutexLock lock(mutex_);
      job_ = store.prefix + tried;
    } else if (is_last) {
      return false;
    }
  }
  if (!tried.empty()) {
    store.remove(hello);
    store.remove(welcome);
  }
  return true;
}

std::optional<Bytes> JobMember::wait_for(const std::string& key, Time end) const {
  for (Wait wait(end);;) {
    const bool is_last = wait.is_over();
    auto value = store.get(key, wait.next());
    if (value || is_last) return value;
  }
}

bool JobMember::is_known() {
  const MutexLock lock(mutex_);
  return !job_.empty();
}

std::vector<int> JobMember::collect(const std::string& key, std::vector<int> from, Time end,
                                    const std::function<bool(int rank, Bytes value)>& take) const {
  for (Wait wait(end); !from.empty();) {
    const bool is_last = wait.is_over();
    std::vector<int> missing;
    for (const int rank : from) {
      // After one that does not come soon, the others are polled without waiting.
      auto value =
          store.get(fmt::format("{}/{}", key, rank), missing.empty() ? wait.next() : kNoWait);
      if (!value) {
        missing.push_back(rank);
      } else if (!take(rank, std::move(*value))) {
        return {};
      }
    }
    from = std::move(missing);
    if (is_last) break;
  }
  return from;
}

}  // namespace shardwise::detail
