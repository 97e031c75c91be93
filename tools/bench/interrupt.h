#pragma once

#include <csignal>

namespace shardwise::tools {

/// While it lives, Ctrl-C and SIGTERM are noted instead of ending the process, so that what was
/// written can be removed; a second one ends it. One at a time. Thread-safe.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  /// Throws cancelled where one has come.
  static void check();

 private:
  struct sigaction interrupt_, terminate_;  // as they were
};

}  // namespace shardwise::tools
