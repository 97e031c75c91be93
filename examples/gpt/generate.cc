#include "generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "../step_facts.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace gpt {

namespace sw = shardwise;
using Json = nlohmann::ordered_json;

namespace {

Text to_text(const std::string& bytes) {
  Text text;
  for (const char byte : bytes) text.push_back(static_cast<unsigned char>(byte));
  return text;
}

/// Prints texts one after another: the first that has not ended as it grows.
class Stream {
 public:
  explicit Stream(std::vector<std::string> texts) : waiting_(std::move(texts)) {}

  void add(const std::vector<std::optional<std::int32_t>>& tokens) {
    for (std::size_t i = now_; i < tokens.size(); ++i) {
      if (tokens[i]) waiting_[i] += static_cast<char>(*tokens[i]);
    }
    flush();
    while (now_ + 1 < tokens.size() && !tokens[now_]) next();
  }

  void end() {
    while (now_ + 1 < waiting_.size()) next();
    fmt::print("\n");
  }

 private:
  void flush() {
    fmt::print("{}", waiting_[now_]);
    std::fflush(stdout);
    waiting_[now_].clear();
  }
  void next() {
    fmt::print("\n---\n");
    ++now_;
    flush();
  }

  std::vector<std::string> waiting_;
  std::size_t now_ = 0;
};

/// A number that works while the next does not: the largest, if all below it work. 0: none.
std::int64_t largest(const std::function<bool(std::int64_t)>& works, std::int64_t most) {
  std::int64_t good = 0, bad = 1;
  while (bad <= most && works(bad)) {
    good = bad;
    bad *= 2;
  }
  bad = std::min(bad, most + 1);
  while (bad - good > 1) {
    const std::int64_t middle = good + (bad - good) / 2;
    (works(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

std::int32_t stop_byte(const std::string& text) {
  if (text.size() == 1) return static_cast<unsigned char>(text[0]);
  std::int32_t byte = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), byte);
  if (error == std::errc() && end == text.data() + text.size() && byte >= 0 && byte < 256) {
    return byte;
  }
  throw sw::Error(
      sw::ErrorCode::invalid_argument,
      fmt::format("found stop \"{}\", needed one character, or the number of a byte", text));
}

void generate(const GenerateCommand& command, const Sizes& sizes, const Recipe& recipe) {
  const sw::Mesh mesh = parse_mesh(command.mesh);
  sw::Devices devices(mesh.size());
  Serving serving(devices, mesh, Plan(command.plan, mesh), sizes, recipe);
  const auto latest = sw::CheckpointManager(command.checkpoints).latest();
  if (!latest) {
    throw sw::Error(sw::ErrorCode::not_found,
                    fmt::format("generate: found no checkpoint in {}, needed one (--checkpoints)",
                                command.checkpoints.string()));
  }
  serving.restore(sw::CheckpointReader(latest->step.directory));
  std::vector<Text> texts;
  for (const std::string& text : command.texts) texts.push_back(to_text(text));
  Stream stream(command.texts);
  std::vector<double> seconds;
  sw::Stopwatch watch;
  const auto on_step = [&](const std::vector<std::optional<std::int32_t>>& tokens) {
    seconds.push_back(watch.seconds());
    // The first step reads the texts, and takes other memory than the others.
    if (seconds.size() == 1) {
      for (const sw::DeviceId id : devices.addressable()) devices.at(id).reset_peak();
    }
    if (!command.json) stream.add(tokens);
    watch = sw::Stopwatch();
  };
  const std::vector<Text> made = serving.generate(texts, command.options, on_step);
  if (!command.json) return stream.end();
  std::size_t longest = 0;
  for (const Text& text : texts) longest = std::max(longest, text.size());
  const ServingPlans plans = serving.plan(static_cast<std::int64_t>(texts.size()),
                                          static_cast<std::int64_t>(longest), command.options);
  Json json = examples::step_facts(
      (command.options.tokens == 1 ? plans.prefill : plans.decode).get(), mesh.size());
  json["tokens"] = made;
  for (const sw::DeviceId id : devices.addressable()) {
    json["measured_peak_bytes"].push_back(devices.at(id).memory().peak_bytes);
  }
  json["prefill_seconds"] = seconds.front();
  // The step after the first compiles the other program.
  json["step_seconds"] =
      examples::median_after_first({seconds.begin() + (seconds.size() > 1 ? 1 : 0), seconds.end()});
  fmt::print("{}\n", json.dump());
}

void plan_serving(const GenerateCommand& command, const Sizes& sizes, const Recipe& recipe) {
  const sw::Mesh mesh = parse_mesh(command.mesh);
  sw::Devices devices(mesh.size());
  const Plan plan(command.plan, mesh);
  const auto plans_of = [&](const Sizes& of, std::int64_t texts) {
    Serving serving(devices, mesh, plan, of, recipe);
    return serving.plan(texts, of.context - command.options.tokens, command.options);
  };
  const ServingPlans plans = plans_of(sizes, sizes.batch);
  const auto peak = [](const sw::Executable& step) { return step.memory(0).peak_bytes; };
  Json json{{"cache_bytes", plans.cache_bytes()},
            {"prefill_peak_bytes", peak(*plans.prefill)},
            {"decode_peak_bytes", peak(*plans.decode)},
            {"wire_bytes", plans.wire_bytes()}};
  if (command.memory_bytes > 0) {
    const auto fits = [&](const Sizes& of, std::int64_t texts) {
      return plans_of(of, texts).peak_bytes() <= command.memory_bytes;
    };
    constexpr std::int64_t kMost = std::int64_t{1} << 24;
    json["largest_batch"] = largest([&](std::int64_t texts) { return fits(sizes, texts); }, kMost);
    const std::int64_t least = command.options.tokens + 1;  // of the context
    const std::int64_t beyond = largest(
        [&](std::int64_t more) {
          Sizes longer = sizes;
          longer.context = least - 1 + more;
          return fits(longer, sizes.batch);
        },
        kMost);
    json["largest_context"] = beyond == 0 ? 0 : least - 1 + beyond;
  }
  if (command.json) return fmt::print("{}\n", json.dump());
  fmt::print("mesh {}, plan {}: {} texts with a context of {}, the last {} bytes made\n",
             command.mesh, command.plan, sizes.batch, sizes.context, command.options.tokens);
  const auto line = [](const char* name, std::size_t bytes) {
    fmt::print("{:30} {:>12} bytes  {}\n", name, bytes, sw::human_bytes(bytes));
  };
  line("key-value cache of a device", plans.cache_bytes());
  line("peak while texts are read", peak(*plans.prefill));
  line("peak while texts are made", peak(*plans.decode));
  line("on the wire for a byte of each", plans.wire_bytes());
  if (command.memory_bytes == 0) return;
  fmt::print("in {}: {} texts with this context, or these texts with a context of {}\n",
             sw::human_bytes(command.memory_bytes), json["largest_batch"].get<std::int64_t>(),
             json["largest_context"].get<std::int64_t>());
}

}  // namespace gpt
