#include "bench/interrupt.h"

#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

// What a signal handler may write to.
volatile std::sig_atomic_t noted = 0;

void note(int) { noted = 1; }

}  // namespace

InterruptNote::InterruptNote() {
  noted = 0;
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
  if (noted != 0) throw Error(ErrorCode::cancelled, "bench: interrupted");
}

}  // namespace shardwise::tools
