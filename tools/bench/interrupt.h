#pragma once

#include <csignal>

namespace shardwise::tools {

/// While it lives, Ctrl-C and SIGTERM are noted instead of ending the process, so that what was
/// written can be removed; a second signal ends it. One object at a time. Thread-safe.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  /// Throws cancelled if one has come.
  static void check();

 private:
  struct sigaction interrupt_, terminate_;  // as they were
};

}  // namespace shardwise::tools
