#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "commands/commands.h"
#include "commands/python/import.h"
#include "objects.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/elements.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct CatOptions {
  std::string path, step, tensor, box;
  std::vector<std::string> words;  ///< after the path
  std::optional<std::string> npy;
  bool all = false;
  bool json = false;
};

/// Elements of a tensor as the user writes them: a box, or an index as in numpy.
struct Choice {
  std::string_view text;
  bool is_index = false;  ///< "w[0:3]": ends beyond the dim are cut off, as numpy does
};

[[noreturn]] void refuse_box(const Choice& choice, const std::string& problem) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} \"{}\": {}; as in Python, \"{}\"", choice.is_index ? "index" : "box",
                          choice.text, problem, choice.is_index ? "[0:4, :, 3]" : "0:4,:,3"));
}

/// A place in a dim; a negative one counts from its end. Absent for an empty text.
std::optional<std::int64_t> place(const Choice& choice, std::string_view text, std::int64_t extent,
                                  bool cut_off) {
  if (text.empty()) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse_box(choice, fmt::format("found \"{}\", needed a whole number", text));
  }
  const std::int64_t from_begin = value < 0 ? value + extent : value;
  if (cut_off) return std::clamp<std::int64_t>(from_begin, 0, extent);
  if (from_begin < 0 || from_begin > extent) {
    refuse_box(choice, fmt::format("found {} in a dim of {}", value, extent));
  }
  return from_begin;
}

/// The parts of each dim; "..." stands for as many ":" as are needed.
std::vector<std::string_view> parts_of(const Choice& choice, const Shape& shape) {
  std::string_view inner = trim(choice.text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']') {
    inner = trim(inner.substr(1, inner.size() - 2));
  }
  std::vector<std::string_view> parts;
  if (!inner.empty()) parts = split(inner, ',');
  if (parts.size() > 1 && trim(parts.back()).empty()) parts.pop_back();  // "[0:3,]"
  for (std::string_view& part : parts) part = trim(part);
  const auto dots = std::ranges::find(parts, "...");
  const std::size_t given = parts.size() - (dots == parts.end() ? 0 : 1);
  if (given > shape.size()) {
    refuse_box(choice, fmt::format("found {} dims, needed at most the {} of {}", given,
                                   shape.size(), to_string(shape)));
  }
  const auto at = dots == parts.end() ? dots : parts.erase(dots);
  parts.insert(at, shape.size() - given, ":");
  return parts;
}

/// "0:4,:,3": a range, all or one index of each dim, as Python writes it; other dims are whole. In
/// brackets, too, as boxes are shown.
ShownBox parse_box(const Choice& choice, const Shape& shape) {
  ShownBox shown{Box::whole(shape), {}};
  const std::vector<std::string_view> parts = parts_of(choice, shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::string_view part = parts[d];
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) {
      const auto index = place(choice, part, shape[d], false);
      if (!index || *index == shape[d]) {
        refuse_box(choice,
                   fmt::format("found \"{}\", needed an index of a dim of {}", part, shape[d]));
      }
      shown.box.set(d, *index, *index + 1);
      continue;
    }
    const std::string_view after = trim(part.substr(colon + 1));
    if (after.find(':') != std::string_view::npos) {
      refuse_box(choice, fmt::format("found \"{}\", needed a range without a step", part));
    }
    const bool cut = choice.is_index;
    const std::int64_t begin =
        place(choice, trim(part.substr(0, colon)), shape[d], cut).value_or(0);
    std::int64_t end = place(choice, after, shape[d], cut).value_or(shape[d]);
    if (end < begin && cut) end = begin;
    if (end < begin) {
      refuse_box(choice,
                 fmt::format("found \"{}\", needed an end that is not before the begin", part));
    }
    shown.box.set(d, begin, end);
    shown.shape.push_back(end - begin);
  }
  return shown;
}

void write_to(std::FILE* file, const void* data, std::size_t bytes) {
  if (std::fwrite(data, 1, bytes, file) == bytes) return;
  throw std::system_error(errno, std::generic_category());
}

void write_npy_file(const std::string& path, const BoxReader& reader, std::size_t tensor,
                    const ShownBox& shown) {
  std::ofstream file(path, std::ios::binary);
  const auto check = [&] {
    if (file) return;
    throw Error(ErrorCode::io, fmt::format("cat: --npy {} cannot be written: {}", path,
                                           std::generic_category().message(errno)));
  };
  check();
  try {
    write_npy(reader, tensor, shown, [&](std::span<const std::byte> bytes) {
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
      check();
    });
    file.close();
    check();
  } catch (...) {  // a part of a tensor is no file of it
    file.close();
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) std::filesystem::remove(path, ignored);
    throw;
  }
}

/// Things that a checkpoint holds besides its tensors, by the names that inspect shows; an object
/// of the user's goes before "metrics" and "user".
nlohmann::ordered_json things_beside(const CheckpointReader& reader) {
  nlohmann::ordered_json things = objects_of(reader);
  if (const Metrics metrics = reader.metrics(); !metrics.empty() && !things.contains("metrics")) {
    things["metrics"] = metrics;
  }
  if (!things.contains("user")) things["user"] = exact_json(reader.user_json());
  return things;
}

bool has_tensor(const BoxReader& reader, const std::string& name) {
  return std::ranges::find(reader.tensors(), name, &TensorInfo::name) != reader.tensors().end();
}

/// Prints the object (no tensor) of that name; false if the checkpoint lacks it.
bool print_object(const BoxReader& reader, const CatOptions& options) {
  const auto* checkpoint = dynamic_cast<const CheckpointReader*>(&reader);
  if (checkpoint == nullptr || has_tensor(reader, options.tensor)) return false;
  const nlohmann::ordered_json things = things_beside(*checkpoint);
  const auto found = things.find(options.tensor);
  if (found == things.end()) return false;
  if (options.npy || !options.box.empty()) {
    throw BadUsage(fmt::format("cat: {}: found the object \"{}\", needed a tensor",
                               options.npy ? "--npy" : "--box", options.tensor));
  }
  if (options.json) {
    print_json_text(exact_text({{"object", options.tensor}, {"value", *found}}));
  } else {
    print_shown(shown_text(*found) + "\n");
  }
  return true;
}

/// "w[0:3]" is the tensor w and "[0:3]", unless a tensor has that very name.
std::pair<std::string, std::string> name_and_index(const BoxReader& reader,
                                                   const std::string& word) {
  const std::size_t bracket = word.rfind('[');
  if (bracket == std::string::npos || !word.ends_with(']') || has_tensor(reader, word)) {
    return {word, {}};
  }
  const std::string name = word.substr(0, bracket), index = word.substr(bracket);
  const bool is_index = index.find_first_not_of("0123456789-:., []") == std::string::npos;
  return is_index || has_tensor(reader, name) ? std::pair(name, index)
                                              : std::pair(word, std::string());
}

/// Throws for a command line without the name of a tensor.
[[noreturn]] void ask_for_tensor(const CatOptions& options) {
  if (!is_model(options.path)) existing_root(options.path);  // a file of a checkpoint is told so
  throw BadUsage(
      fmt::format("cat: tensor is required; `shardwise inspect {}` shows the names", options.path));
}

int print_tensor(const CatOptions& options) {
  if (options.npy == "-" && options.json) {
    throw BadUsage("cat: --npy - and --json both write to stdout, needed is one of the two");
  }
  if (options.words.empty()) ask_for_tensor(options);
  std::unique_ptr<BoxReader> reader = describe_tensors(options.path);
  if (print_object(*reader, options)) return 0;
  const auto [name_of_it, index] = name_and_index(*reader, options.tensor);
  if (!index.empty() && !options.box.empty()) {
    throw BadUsage(fmt::format("cat: found {} and --box, needed one of the two", options.tensor));
  }
  std::size_t tensor = find_tensor(*reader, options.path, name_of_it);
  if (!python_format(options.path).empty()) {  // has only been described
    reader = open_tensors(options.path, {}, {name_of_it});
    tensor = find_tensor(*reader, options.path, name_of_it);
  }
  const TensorInfo& info = reader->tensors()[tensor];
  const Choice choice = index.empty() ? Choice{options.box} : Choice{index, true};
  const ShownBox shown = words_of("cat", index.empty() ? "--box" : options.tensor,
                                  [&] { return parse_box(choice, info.shape); });
  if (options.npy == "-") {
    write_npy(*reader, tensor, shown, [](std::span<const std::byte> bytes) {
      write_to(stdout, bytes.data(), bytes.size());
    });
    return 0;
  }
  if (options.npy) write_npy_file(*options.npy, *reader, tensor, shown);
  if (options.json) {
    nlohmann::ordered_json json = {{"tensor", info.name},
                                   {"dtype", name(info.dtype)},
                                   {"shape", dims_json(info.shape)},
                                   {"box", box_json(shown.box)}};
    if (options.npy) {
      json["npy"] = *options.npy;
    } else {
      std::string values;
      print_elements(*reader, tensor, shown, ElementText::json,
                     [&](std::string_view text) { values += text; });
      json["values"] = nlohmann::ordered_json::parse(values);
    }
    print_json(json);
    return 0;
  }
  if (options.npy) {
    print_shown(fmt::format("{}: {} {} -> {}\n", one_line(info.name), name(info.dtype),
                            to_string(shown.shape), *options.npy));
    return 0;
  }
  print_elements(*reader, tensor, shown, options.all ? ElementText::all : ElementText::summary,
                 [](std::string_view text) { write_to(stdout, text.data(), text.size()); });
  write_to(stdout, "\n", 1);
  return 0;
}

int run_cat(CatOptions& options) {
  if (options.words.size() > 1) take_step(options.path, options.step, options.words);
  if (options.words.size() == 2 && names_step(chosen_path(options.path), options.words[1])) {
    throw BadUsage(fmt::format("cat: the step stands before the tensor: `shardwise cat {} {} {}`",
                               options.path, options.words[1], options.words[0]));
  }
  if (options.words.size() > 1) refuse_word("cat", options.words[1]);
  choose_step(options.path, options.step);
  if (!options.words.empty()) options.tensor = options.words[0];
  return run_reading({options.path}, [&options] { return print_tensor(options); });
}

}  // namespace

void declare_cat(CLI::App& app, Run& run) {
  const auto [cat, options] = add_command(
      app, run, "cat", "Show an object, or the elements of a tensor, or write them as .npy",
      "shardwise cat runs/checkpoints 'w1[0:4, :, 3]'\n"
      "  shardwise cat model.safetensors lm_head.weight --npy head.npy",
      run_cat);
  add_place(cat, "path", options.path, kTensors);
  cat.add_option("tensor", options.words,
                 "Its name, or that of an object; w[0:4, -1] are elements of w, as in numpy");
  add_step(cat, options.step, false);
  cat.add_option("--box", options.box,
                 "Which elements, as Python writes it: 0:4,:,3 (default: all); an index takes its "
                 "dim out");
  cat.add_flag("--all", options.all,
               "Show all elements (default: of more than 1000, the first and last three of each "
               "long dim)");
  cat.add_option("--npy", options.npy, "Write them to this file instead; -: to stdout");
}

}  // namespace shardwise::tools
