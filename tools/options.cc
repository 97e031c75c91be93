#include "options.h"

#include <fmt/format.h>

#include <charconv>

#include "output.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "shardwise/storage/object/bucket_path.h"

namespace shardwise::tools {

CLI::Validator whole(std::int64_t least, std::int64_t most) {
  const bool is_open = most == std::numeric_limits<std::int64_t>::max();
  const std::string allowed =
      is_open ? fmt::format("{} or more", least) : fmt::format("from {} to {}", least, most);
  return {[least, most, allowed](const std::string& text) -> std::string {
            std::int64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto [last, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && last == end && least <= value && value <= most) return {};
            return fmt::format("found \"{}\", needed a whole number, {}", text, allowed);
          },
          allowed};
}

CLI::Validator local_path() {
  return {[](const std::string& text) -> std::string {
            if (text.find("://") == std::string::npos) return {};
            return fmt::format(
                "found the URL {}, needed a path of a file system that is mounted here", text);
          },
          ""};
}

namespace {

/// Refuses other URLs than a bucket's, and makes its path of one.
CLI::Validator place() {
  return {[](std::string& text) -> std::string {
            if (text.find("://") == std::string::npos) return {};
            if (!in_bucket(text)) {
              return fmt::format("found the URL {}, needed a local path or s3://BUCKET/PREFIX",
                                 text);
            }
            text = path_of_url(text);
            return {};
          },
          ""};
}

}  // namespace

std::string wrapped_example(std::string_view lines) {
  std::string all;
  for (const std::string_view line : split(lines, '\n')) {
    std::string text(line);
    for (std::size_t begin = 0; text.size() - begin > kWidth;) {
      const std::size_t at = text.rfind(" -", begin + kWidth - 2);
      if (at == std::string::npos || at <= begin + 2) break;
      text.replace(at, 1, " \\\n      ");
      begin = at + 3;
    }
    all += (all.empty() ? "" : "\n") + text;
  }
  return all;
}

void add_step(CLI::App& command, std::string& step, bool as_word) {
  CLI::Option& option = *command.add_option(
      "--step", step, "Which step of the directory: its number, latest, or a name that pins it");
  option.type_name("STEP");
  if (as_word) command.add_option("step", step, "As --step")->excludes(&option);
}

void add_existing(CLI::App& command, Existing& existing, const char* replace, const char* skip) {
  CLI::Option* const replaces = command.add_flag_callback(
      "--replace", [&existing] { existing = Existing::replace; }, replace);
  command
      .add_flag_callback(
          "--skip-existing", [&existing] { existing = Existing::skip; }, skip)
      ->excludes(replaces);
}

void add_bench_options(CLI::App& command, int& repeat, int& threads) {
  command.add_option("--repeat", repeat, "Rounds that are measured, after what warms up")
      ->check(whole(1, 1000))
      ->capture_default_str();
  add_threads(command, threads);
}

void add_path(CLI::App& command, const char* name, std::string& path, const char* description) {
  command.add_option(name, path, description)->check(local_path())->required();
}

void add_path(CLI::App& command, const char* name, std::vector<std::string>& paths,
              const char* description) {
  command.add_option(name, paths, description)->check(local_path())->required();
}

void add_place(CLI::App& command, const char* name, std::string& path, const char* description) {
  command.add_option(name, path, description)->transform(place())->required();
}

void add_place(CLI::App& command, const char* name, std::vector<std::string>& paths,
               const char* description) {
  command.add_option(name, paths, description)->transform(place())->required();
}

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Workers; 0: as many as there are cores")
      ->check(whole(0, 1024))
      ->capture_default_str();
}

namespace {

/// Adds an option for a number of bytes; its value throws as parse_bytes().
void add_bytes(CLI::App& command, const std::string& name, std::size_t& bytes, ByteRange allowed,
               const std::string& description, const char* type,
               std::string_view (*size_of)(std::string_view)) {
  command
      .add_option_function<std::string>(
          name,
          [name, allowed, size_of, &bytes](const std::string& text) {
            try {
              bytes = parse_bytes(size_of(text), allowed);
            } catch (const Error& error) {
              throw CLI::ValidationError(name, error.what());
            }
          },
          description)
      ->type_name(type);
}

}  // namespace

void add_size(CLI::App& command, const std::string& name, std::size_t& bytes, ByteRange allowed,
              const std::string& description) {
  add_bytes(command, name, bytes, allowed, description, "SIZE",
            [](std::string_view text) { return text; });
}

void add_rate(CLI::App& command, const std::string& name, std::size_t& bytes_per_second,
              const std::string& description) {
  add_bytes(command, name, bytes_per_second, {1, std::size_t{1} << 60}, description, "SIZE/s",
            [](std::string_view text) {
              return text.ends_with("/s") ? text.substr(0, text.size() - 2) : text;
            });
}

void add_memory_budget(CLI::App& command, std::size_t& bytes) {
  add_size(command, "--memory-budget", bytes, {std::size_t{8} << 20, std::size_t{1} << 50},
           "Host memory beyond the tensors, in bytes or as 512M, 1.5GiB");
  command.get_option("--memory-budget")->default_str(human_bytes(bytes));
}

void add_edits(CLI::App& command, EditOptions& edits) {
  const auto add = [&command](const char* option, std::vector<std::string>& words, const char* type,
                              const char* description) {
    command.add_option(option, words, description)->type_name(type)->allow_extra_args(false);
  };
  add("--select", edits.select, "PATTERN",
      "Only tensors of these names; * and ? stand for any characters. From this to --join all but "
      "--strip-prefix may be repeated, and patterns match the source's names; --spec takes the new "
      "ones");
  add("--exclude", edits.exclude, "PATTERN", "No tensors of these names");
  add("--rename", edits.renames, "PATTERN=NAME",
      "'model.*=*': each * of the new name is what that * of the pattern stands for; first match "
      "counts");
  add("--cast", edits.casts, "[PATTERN=]DTYPE",
      "bf16 casts all floats, 'ids=i64' numbers it holds exactly; first match counts");
  command
      .add_option("--strip-prefix", edits.strip_prefix,
                  "Only tensors whose names begin so, without it: 'model.' is --select 'model.*' "
                  "--rename 'model.*=*'")
      ->type_name("PREFIX");
  add("--transpose", edits.transposes, "PATTERN=DIMS",
      "'*.kernel=1,0': dims in this order; a pattern with * or ? takes tensors of as many dims; "
      "first match counts");
  add("--resize", edits.resizes, "PATTERN=pad:EXTENTS",
      "'*embed*=pad:50304,-': zeros at the end, '=slice:50257,-': its beginning; - stays "
      "as it is; a pattern with * or ? takes tensors of as many dims; first match counts");
  add("--split", edits.splits, "PATTERN=NAMES@DIM",
      "'*.qkv=*.q,*.k,*.v@0': parts along a dim, all the same, or '...@0:8,4,4'; "
      "'layers.*=layers.#.*@0': one for each index, as with names '*.q,*.k,*.v@+0'; first match "
      "counts");
  add("--join", edits.joins, "PATTERNS=NAME@DIM",
      "'*.q,*.k,*.v=*.qkv@0': side by side along a dim, those for which * is the same; "
      "'layers.#.*=layers.*@0': those with numbers, along a new dim, as with names '...=*.qkv@+0'");
}

}  // namespace shardwise::tools
