#pragma once

#include <csignal>
#include <string_view>

namespace shardwise::tools {

/// While it lives, Ctrl-C and SIGTERM are noted instead of ending the process, so that it can name
/// the files it keeps, or remove them; a second signal ends it. A signal that was ignored, as
/// below nohup, still is. One object at a time. Thread-safe.
class InterruptNote {
 public:
  InterruptNote();
  ~InterruptNote();
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  /// Throws cancelled if one has come: "reshard: interrupted".
  static void check(std::string_view command);

  static bool has_come();

  /// Ends the process as the signal that has come would have. Requires has_come().
  static void end();

 private:
  struct sigaction interrupt_, terminate_;  // as they were
};

}  // namespace shardwise::tools
