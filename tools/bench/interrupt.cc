#include "bench/interrupt.h"

#include <atomic>

#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

// A signal handler writes it, on any thread; other threads read it.
std::atomic<bool> noted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void note(int) { noted = true; }

}  // namespace

InterruptNote::InterruptNote() {
  noted = false;
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &interrupt_);
  sigaction(SIGTERM, &action, &terminate_);
}

InterruptNote::~InterruptNote() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

void InterruptNote::check() {
  if (noted) throw Error(ErrorCode::cancelled, "bench: interrupted");
}

}  // namespace shardwise::tools
