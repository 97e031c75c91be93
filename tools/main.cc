// The `shardwise` command: words in, exit status out. The work is in commands/.
//
// Exit status: 0 done, 1 the answer is no (verify found damage), 2 bad usage, 3 failure (verify
// could not read something).

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "command_line.h"
#include "output.h"
#include "shardwise/shard/error.h"
#include "usage.h"

namespace shardwise::tools {
namespace {

constexpr int kBadUsage = 2, kFailure = 3;

/// Words that could not be read may have asked for it, too.
bool asks_for_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--json") return true;
  }
  return false;
}

/// Replaces names of the library in a message by the command's options.
std::string with_options(std::string text) {
  constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
      {"Existing::replace", "--replace"},
      {"Existing::skip", "--skip-existing"},
      {"as no rule matches", "as no rule of --spec matches; '*=-' matches all"}};
  for (const auto& [own, option] : kOptions) {
    if (const std::size_t at = text.find(own); at != std::string::npos) {
      text.replace(at, own.size(), option);
    }
  }
  return text;
}

/// Runs the command; returns its exit status. A failure goes to `report`(code, message).
template <class Report>
int run(int argc, char** argv, const Report& report) {
  std::string command = "shardwise";
  try {
    const CommandLine line = parse_command_line(argc, argv);
    if (!line.command.empty()) command = line.command;
    const int status = line.run();
    finish_stdout();
    return status;
  } catch (const BadUsage& error) {
    report("usage", with_options(error.what()));
    return kBadUsage;
  } catch (const Error& error) {
    report(name(error.code()), with_options(error.what()));
  } catch (const std::bad_alloc&) {
    report("resource_exhausted", command + ": there is not enough memory");
  } catch (const std::length_error&) {  // of a container
    report("resource_exhausted", command + ": more is asked for than any memory holds");
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) != 0) {
      report("io", "the result cannot be written to stdout: " + error.code().message());
    } else {
      report("io", command + ": the system refused: " + error.what());
    }
  } catch (const std::exception& error) {
    report("internal", command + ": " + error.what());
  }
  return kFailure;
}

}  // namespace
}  // namespace shardwise::tools

int main(int argc, char** argv) {
  using namespace shardwise::tools;
  hold_closed_streams();
  const bool json = asks_for_json(argc, argv);
  return run(argc, argv, [json](std::string_view code, std::string_view message) {
    report_error(json, code, message);
  });
}
