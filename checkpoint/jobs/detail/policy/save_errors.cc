#include "shardwise/jobs/detail/policy/save_errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace shardwise::jobs_detail {
namespace {

// The first byte of the message about a save that has failed on a process, before the text: the
// process has the cause, or it was told of one. A save that has not failed has no bytes.
constexpr std::byte kCause{'!'}, kTold{'-'};

struct Ending {
  std::optional<ErrorCode> code = {};  // nothing: none of Shardwise's
  std::string text = {};
};

Ending ending(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {e.code(), e.what()};
  } catch (const std::exception& e) {
    return {{}, e.what()};
  } catch (...) {
    return {{}, "a source of a save threw something that is no exception"};
  }
}

Bytes message(std::byte kind, const std::string& text) {
  Bytes bytes{kind};
  for (const char character : text) bytes.push_back(static_cast<std::byte>(character));
  return bytes;
}

std::string text_in(const Bytes& message) {
  return {reinterpret_cast<const char*>(message.data()) + 1, message.size() - 1};
}

}  // namespace

SaveErrors::SaveErrors(OnSaveError on_error, std::int64_t most_failed_saves,
                       const std::string& what, Tell tell)
    : most_(on_error == OnSaveError::warn ? most_failed_saves : 0), tell_(std::move(tell)) {
  if (most_failed_saves >= 1) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: most_failed_saves is {}, needed 1 or more", what, most_failed_saves));
}

bool SaveErrors::tolerates(ErrorCode code) const {
  return most_ > 0 &&
         (code == ErrorCode::io || code == ErrorCode::not_found || code == ErrorCode::corrupt);
}

std::exception_ptr SaveErrors::judge(std::int64_t step, const Rendezvous& ranks,
                                     const std::exception_ptr& error, SaveStats& stats) noexcept {
  try {
    std::string why = agree(step, ranks, error);
    if (!why.empty()) {
      stats = {};
      stats.error = std::move(why);
    }
    const MutexLock lock(mutex_);
    stats.failed_saves = stats_.failed_in_a_row;
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// Returns why the save has failed; empty if it has not. Throws an error that ends the job.
std::string SaveErrors::agree(std::int64_t step, const Rendezvous& ranks,
                              const std::exception_ptr& error) {
  if (most_ == 0 && !error) return {};
  const auto own = [&] {
    if (!error) return Bytes();
    const auto [code, text] = ending(error);
    const bool is_cause = code && tolerates(*code);
    if (most_ == 0 || (!is_cause && code != ErrorCode::cancelled)) std::rethrow_exception(error);
    return message(is_cause ? kCause : kTold, text);
  };
  // A cause goes first: the others were told of it.
  const auto first = [](std::vector<Bytes> said) {
    auto failed = std::ranges::find_if(
        said, [](const Bytes& one) { return !one.empty() && one.front() == kCause; });
    if (failed == said.end()) failed = std::ranges::find_if_not(said, &Bytes::empty);
    if (failed == said.end()) return Bytes();
    if (said.size() == 1) return std::move(*failed);
    return message(failed->front(),
                   fmt::format("rank {}: {}", failed - said.begin(), text_in(*failed)));
  };
  Bytes said;
  try {
    said = ranks.agree(own, first);
  } catch (const Error&) {
    if (error) std::rethrow_exception(error);
    throw;
  }
  if (said.empty()) return {};
  std::string text = text_in(said);
  const bool is_cause = said.front() == kCause;
  if (is_cause && note_failed(step, ErrorCode::io, text, ranks.rank())) return text;
  if (error) std::rethrow_exception(error);
  throw Error(ErrorCode::cancelled, fmt::format("save step {}: {}", step, text));
}

bool SaveErrors::note_failed(std::int64_t step, ErrorCode code, const std::string& error,
                             int rank) {
  if (!tolerates(code)) return false;
  std::int64_t in_a_row = 0;
  {
    const MutexLock lock(mutex_);
    ++stats_.failed_saves;
    in_a_row = ++stats_.failed_in_a_row;
    stats_.failed_step = step;
    stats_.error = error;
  }
  if (in_a_row > most_) return false;
  if (rank == 0) {
    tell_(fmt::format("{}; the job goes on: failed saves in a row: {} of at most {}", error,
                      in_a_row, most_));
  }
  return true;
}

void SaveErrors::note_saved() {
  const MutexLock lock(mutex_);
  stats_.failed_in_a_row = 0;
}

ManagerStats SaveErrors::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace shardwise::jobs_detail
