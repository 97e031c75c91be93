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

#include "commands/commands.h"
#include "objects.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/convert/elements.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::tools {
namespace {

[[noreturn]] void refuse_box(std::string_view text, const std::string& problem) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("box \"{}\": {}; as in Python, \"0:4,:,3\"", text, problem));
}

/// A place in a dim; a negative one counts from its end. Absent for an empty text.
std::optional<std::int64_t> place(std::string_view all, std::string_view text,
                                  std::int64_t extent) {
  if (text.empty()) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    refuse_box(all, fmt::format("found \"{}\", needed a whole number", text));
  }
  const std::int64_t from_begin = value < 0 ? value + extent : value;
  if (from_begin < 0 || from_begin > extent) {
    refuse_box(all, fmt::format("found {} in a dim of {}", value, extent));
  }
  return from_begin;
}

/// "0:4,:,3": a range, all or one index of each dim, as Python writes it; other dims are whole. In
/// brackets, too, as boxes are shown.
ShownBox parse_box(std::string_view text, const Shape& shape) {
  ShownBox shown{Box::whole(shape), {}};
  std::string_view inner = trim(text);
  if (inner.size() >= 2 && inner.front() == '[' && inner.back() == ']') {
    inner = trim(inner.substr(1, inner.size() - 2));
  }
  std::vector<std::string_view> parts;
  if (!inner.empty()) parts = split(inner, ',');
  if (parts.size() > shape.size()) {
    refuse_box(text, fmt::format("found {} dims, needed at most the {} of {}", parts.size(),
                                 shape.size(), to_string(shape)));
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::string_view part = d < parts.size() ? trim(parts[d]) : ":";
    const std::size_t colon = part.find(':');
    if (colon == std::string_view::npos) {
      const auto index = place(text, part, shape[d]);
      if (!index || *index == shape[d]) {
        refuse_box(text,
                   fmt::format("found \"{}\", needed an index of a dim of {}", part, shape[d]));
      }
      shown.box.set(d, *index, *index + 1);
      continue;
    }
    const std::int64_t begin = place(text, trim(part.substr(0, colon)), shape[d]).value_or(0);
    const std::int64_t end = place(text, trim(part.substr(colon + 1)), shape[d]).value_or(shape[d]);
    if (end < begin)
      refuse_box(text,
                 fmt::format("found \"{}\", needed an end that is not before the begin", part));
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

/// Prints the object of that name, which is no tensor; false if there is none.
bool print_object(const BoxReader& reader, const CatOptions& options) {
  const auto* checkpoint = dynamic_cast<const CheckpointReader*>(&reader);
  if (checkpoint == nullptr || std::ranges::find(reader.tensors(), options.tensor,
                                                 &TensorInfo::name) != reader.tensors().end())
    return false;
  const nlohmann::ordered_json objects = objects_of(*checkpoint);
  const auto found = objects.find(options.tensor);
  if (found == objects.end()) return false;
  if (options.npy || !options.box.empty()) {
    throw BadUsage(fmt::format("cat: {}: found the object \"{}\", needed a tensor",
                               options.npy ? "--npy" : "--box", options.tensor));
  }
  if (options.json) {
    fmt::print("{}\n", exact_text({{"object", options.tensor}, {"value", *found}}));
  } else {
    print_shown(shown_text(*found) + "\n");
  }
  return true;
}

}  // namespace

int run_cat(const CatOptions& options) {
  if (options.npy == "-" && options.json) {
    throw BadUsage("cat: --npy - and --json both write to stdout, needed is one of the two");
  }
  const auto reader = open_tensors(options.path, {});
  if (print_object(*reader, options)) return 0;
  const std::size_t tensor = find_tensor(*reader, options.path, options.tensor);
  const TensorInfo& info = reader->tensors()[tensor];
  const ShownBox shown =
      words_of("cat", "--box", [&] { return parse_box(options.box, info.shape); });
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
    print_shown(fmt::format("{}: {} {} -> {}\n", info.name, name(info.dtype),
                            to_string(shown.shape), *options.npy));
    return 0;
  }
  print_elements(*reader, tensor, shown, options.all ? ElementText::all : ElementText::summary,
                 [](std::string_view text) { write_to(stdout, text.data(), text.size()); });
  write_to(stdout, "\n", 1);
  return 0;
}

}  // namespace shardwise::tools
