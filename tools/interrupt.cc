#include "interrupt.h"

#include <atomic>
#include <string>

#include "shardwise/shard/error.h"

namespace shardwise::tools {
namespace {

// The signal, or 0. A signal handler writes it, on any thread; other threads read it.
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free);

void note(int signal) { noted = signal; }

void note_unless_ignored(int signal, struct sigaction& before) {
  struct sigaction action = {};
  action.sa_handler = note;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(signal, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptNote::InterruptNote() {
  noted = 0;
  note_unless_ignored(SIGINT, interrupt_);
  note_unless_ignored(SIGTERM, terminate_);
}

InterruptNote::~InterruptNote() {
  sigaction(SIGINT, &interrupt_, nullptr);
  sigaction(SIGTERM, &terminate_, nullptr);
}

void InterruptNote::check(std::string_view command) {
  if (has_come()) throw Error(ErrorCode::cancelled, std::string(command) + ": interrupted");
}

bool InterruptNote::has_come() { return noted != 0; }

void InterruptNote::end() {
  std::signal(noted, SIG_DFL);
  std::raise(noted);
}

}  // namespace shardwise::tools
