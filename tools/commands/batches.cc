#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/loader/loader_stats.h"
#include "shardwise/loader/open_source.h"
#include "shardwise/loader/stages/filter.h"
#include "shardwise/loader/stages/pack.h"
#include "shardwise/loader/stages/select.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise::tools {
namespace {

struct BatchesOptions {
  std::vector<std::string> sources, specs;
  std::string mesh = "1", order = "shuffled", last = "drop", bad = "fail";
  std::string filter, mix, pack_field, state, timeline;
  std::int64_t batch = 0, epochs = 1, from = 0;
  std::int64_t pack = 0;   ///< 0: not
  std::int64_t count = 0;  ///< 0: all
  std::uint64_t seed = 0;
  int threads = 1, prefetch = 2;
  bool digest = false, json = false;
};

using SourcePtr = std::shared_ptr<const Source>;

constexpr std::size_t kMostDecimals = 9;
constexpr std::int64_t kMostFractions = 1'000'000;  // as Python's sources.mix()

/// Decimal numbers as whole ones in their ratio, rounded to millionths if these add up to more.
std::vector<std::int64_t> parse_weights(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> words;  // before and after the point
  std::size_t begin = 0, decimals = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    const std::size_t point = std::min(word.find('.'), word.size());
    const std::string whole = word.substr(0, point);
    const std::string fraction = point < word.size() ? word.substr(point + 1) : std::string();
    const bool is_number = !(whole + fraction).empty() && whole.size() <= kMostDecimals &&
                           fraction.size() <= kMostDecimals &&
                           (whole + fraction).find_first_not_of("0123456789") == std::string::npos;
    if (!is_number) {
      throw BadUsage(
          fmt::format("batches: --mix \"{}\": needed are numbers with \":\" between "
                      "them, as 3:1 or 0.7:0.3, of at most {} digits before and after "
                      "the point",
                      text, kMostDecimals));
    }
    words.emplace_back(whole, fraction);
    decimals = std::max(decimals, fraction.size());
    begin = end + 1;
  }
  std::vector<std::int64_t> weights;
  weights.reserve(words.size());
  std::int64_t divisor = 0;
  double sum = 0;
  for (const auto& [whole, fraction] : words) {
    const std::string padding(decimals - fraction.size(), '0');
    weights.push_back(std::stoll(fmt::format("0{}{}{}", whole, fraction, padding)));
    divisor = std::gcd(divisor, weights.back());
    sum += static_cast<double>(weights.back());
  }
  if (decimals == 0 || divisor == 0) return weights;
  const bool is_exact = sum / static_cast<double>(divisor) <= static_cast<double>(kMostFractions);
  for (std::int64_t& weight : weights) {
    if (weight == 0) continue;
    const double share = static_cast<double>(weight) / sum * static_cast<double>(kMostFractions);
    weight =
        is_exact ? weight / divisor : std::max(std::int64_t{1}, std::int64_t{std::llround(share)});
  }
  return weights;
}

/// The one field that can hold documents: ragged, of one dim.
std::string packed_field(const Source& source) {
  std::string found;
  for (const Field& field : source.fields()) {
    if (!field.ragged || field.shape.size() != 1) continue;
    if (!found.empty()) {
      throw BadUsage(
          fmt::format("batches: --pack: fields \"{}\" and \"{}\" are both documents: "
                      "name one of them by --pack-field",
                      found, field.name));
    }
    found = field.name;
  }
  if (found.empty()) {
    throw BadUsage("batches: --pack: no field is a document, needed is a ragged one of one dim");
  }
  return found;
}

/// The source, or the records of it that --filter keeps.
SourcePtr kept(const BatchesOptions& options, SourcePtr source) {
  if (options.filter.empty()) return source;
  return words_of("batches", "--filter",
                  [&] { return filter(source, parse_filter(options.filter, source->fields())); });
}

/// The records that the words ask for. `order` is how the loader is to take them.
SourcePtr source_of(const BatchesOptions& options, RecordOrder& order) {
  std::vector<SourcePtr> sources;
  sources.reserve(options.sources.size());
  for (const std::string& text : options.sources) {
    ProgressLine line("index");
    const ProgressFunction told = line.function();
    SourcePtr source = words_of("batches", "source", [&] {
      return open_source(text, [&](std::uint64_t done, std::uint64_t all) {
        if (told && all > 0) told({.done_bytes = done, .total_bytes = all});
      });
    });
    if (!options.mix.empty()) {
      source = kept(options, std::move(source));
      // By themselves, so that the mixture stays exact.
      if (order == RecordOrder::shuffled) source = shuffle(source);
    }
    sources.push_back(std::move(source));
  }
  SourcePtr source;
  if (!options.mix.empty()) {
    source = words_of("batches", "--mix",
                      [&] { return mix(std::move(sources), parse_weights(options.mix)); });
    order = RecordOrder::sequential;
  } else {
    source = kept(options, sources.size() == 1 ? sources[0] : zip(std::move(sources)));
  }
  if (options.pack > 0) {
    const std::string field =
        options.pack_field.empty() ? packed_field(*source) : options.pack_field;
    source = words_of("batches", "--pack",
                      [&] { return pack(source, {.field = field, .window = options.pack}); });
  }
  return source;
}

std::vector<FieldPlacement> placements_of(const BatchesOptions& options, const Source& source,
                                          const Mesh& mesh) {
  if (options.specs.empty()) return cut_batch(source, mesh, mesh.axes()[0].name);
  std::map<std::string, std::string, std::less<>> by_field;
  for (const std::string& text : options.specs) {
    const std::size_t equals = text.find('=');
    if (equals == std::string::npos) {
      if (options.specs.size() > 1) {
        throw BadUsage(
            "batches: --spec for all fields cannot be given with others: name the "
            "field, as image=data,-,-");
      }
      return place_all(source, mesh, text);
    }
    by_field[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return place_fields(source, mesh, by_field);
}

/// The batch as one device would hold it.
std::vector<std::byte> bytes_of(const HostArray& array) {
  const std::size_t element_bytes = size_bytes(array.dtype);
  std::vector<std::byte> bytes(num_bytes(array.shape, element_bytes));
  const Box all = Box::whole(array.shape);
  for (const HostPart& part : array.parts) {
    copy_box(part.box, element_bytes, {part.data.get(), part.box}, {bytes.data(), all});
  }
  return bytes;
}

/// A digest of the batch's content, however it is cut.
std::string digest_of(const HostBatch& batch) {
  std::vector<std::uint64_t> facts;
  for (const HostArray& array : batch.fields) {
    for (const std::int64_t extent : array.shape) {
      facts.push_back(static_cast<std::uint64_t>(extent));
    }
    const std::vector<std::byte> bytes = bytes_of(array);
    facts.push_back(hash64(bytes.data(), bytes.size()));
  }
  const std::vector<std::byte> mask = bytes_of(batch.mask);
  facts.push_back(hash64(mask.data(), mask.size()));
  const auto bytes = std::as_bytes(std::span(facts));
  return fmt::format("{:016x}", hash64(bytes.data(), bytes.size()));
}

/// The output for the batches: lines as they come, or one object at the end.
class Report {
 public:
  Report(const BatchesOptions& options, std::vector<std::string> fields)
      : options_(options), fields_(std::move(fields)) {}

  void add(const HostBatch& batch) {
    rows_ += batch.valid_rows;
    const bool hashed = options_.digest || options_.json;
    const std::string digest = hashed ? digest_of(batch) : std::string();
    if (options_.json) {
      list_.push_back({{"index", batch.index},
                       {"epoch", batch.epoch},
                       {"rows", batch.valid_rows},
                       {"digest", digest}});
      return;
    }
    std::string shapes;
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      shapes += fmt::format("  {} {} {}", fields_[i], name(batch.fields[i].dtype),
                            to_string(batch.fields[i].shape));
    }
    print_shown(fmt::format("batch {}  epoch {}  {} rows{}{}{}\n", batch.index, batch.epoch,
                            batch.valid_rows, shapes, hashed ? "  " : "", digest));
  }

  void finish(const HostLoader& loader) {
    const LoaderStats stats = loader.stats();
    if (options_.json) {
      const BadRecordLedger bad = loader.bad_records();
      print_json({{"batches", list_},
                  {"batches_per_epoch", loader.batches_per_epoch()},
                  {"rows", rows_},
                  {"rows_per_second", stats.rows_per_second},
                  {"bottleneck", bottleneck(stats)},
                  {"bad_records", bad.count},
                  {"state", nlohmann::ordered_json::parse(to_json(loader.state()))}});
      return;
    }
    print_shown(fmt::format("{} rows, {:.0f} rows/s; {}\n", rows_, stats.rows_per_second,
                            bottleneck(stats)));
    for (const BadRecord& bad : loader.bad_records().first) {
      print_note(fmt::format("bad record: {}", bad.message));
    }
  }

 private:
  const BatchesOptions& options_;
  std::vector<std::string> fields_;
  nlohmann::ordered_json list_ = nlohmann::ordered_json::array();
  std::int64_t rows_ = 0;
};

int run_batches(BatchesOptions& options) {
  const Mesh mesh = words_of("batches", "--mesh", [&] { return parse_mesh(options.mesh); });
  check_listed(mesh, "batches");
  RecordOrder order =
      words_of("batches", "--order", [&] { return parse_record_order(options.order); });
  const LastBatch last_batch =
      words_of("batches", "--last", [&] { return parse_last_batch(options.last); });
  const BadRecords bad_records =
      words_of("batches", "--bad", [&] { return parse_bad_records(options.bad); });
  const SourcePtr source = source_of(options, order);
  const std::vector<FieldPlacement> placements =
      words_of("batches", "--spec", [&] { return placements_of(options, *source, mesh); });
  LoaderState state{.seed = options.seed, .next_batch = options.from};
  if (!options.state.empty()) {
    state = words_of("batches", "--state",
                     [&] { return loader_state_from_json(text_or_file(options.state)); });
  }
  const auto timeline = options.timeline.empty() ? nullptr : std::make_shared<Timeline>();
  std::ofstream timeline_file;
  if (timeline) timeline_file.open(options.timeline);  // fails at once if it cannot
  const auto check_file = [&] {
    if (timeline_file) return;
    throw Error(ErrorCode::io,
                fmt::format("batches: --timeline {} cannot be written", options.timeline));
  };
  check_file();
  HostLoader loader(source, placements,
                    {.batch_size = options.batch,
                     .epochs = options.epochs,
                     .order = order,
                     .last_batch = last_batch,
                     .bad_records = bad_records,
                     .prefetch = options.prefetch,
                     .threads = options.threads},
                    state, {.timeline = timeline});
  std::vector<std::string> fields;
  fields.reserve(placements.size());
  for (const FieldPlacement& placement : placements) fields.push_back(placement.field);
  Report report(options, std::move(fields));
  for (std::int64_t i = 0; options.count == 0 || i < options.count; ++i) {
    const std::optional<HostBatch> batch = loader.next();
    if (!batch) break;
    report.add(*batch);
  }
  if (timeline) {
    timeline_file << to_trace_json(*timeline) << std::flush;
    check_file();
  }
  report.finish(loader);
  return 0;
}

void add_batches_order(CLI::App& batches, BatchesOptions& options) {
  batches.add_option("--order", options.order, "shuffled or sequential")->capture_default_str();
  batches.add_option("--seed", options.seed, "Seed of the order and of random transforms")
      ->capture_default_str();
  batches.add_option("--epochs", options.epochs, "Passes over the source")
      ->check(whole(1))
      ->capture_default_str();
  batches.add_option("--last", options.last, "Rows that fill no batch: drop, pad or wrap")
      ->capture_default_str();
  batches.add_option("--bad", options.bad, "Records that cannot be read: fail, substitute or mask")
      ->capture_default_str();
  batches.add_option("--from", options.from, "First batch to show")->check(whole(0));
  batches.add_option("--count", options.count, "How many to show (default: all)")->check(whole(1));
  batches
      .add_option(
          "--state", options.state,
          "A loader's state as JSON, or @FILE: show the rest of its run, from the batch and with "
          "the seed that it names")
      ->excludes("--from")
      ->excludes("--seed");
  batches.add_option("--timeline", options.timeline,
                     "File that gets what happened when, for ui.perfetto.dev");
}

}  // namespace

void declare_batches(CLI::App& app, Run& run) {
  const auto [batches, options] = add_command(
      app, run, "batches", "Show the minibatches of a data set, and how fast they come",
      "shardwise batches 'idx:images.gz?field=image' 'idx:labels.gz?field=label' --batch 256 \\\n"
      "    --mesh data=4,model=2 --spec image=data,model,- --spec label=data --count 3 --digest\n"
      "  shardwise batches 'tokens:train.bin?dtype=u16&window=1025' --batch 64 --mesh data=8\n"
      "  shardwise batches jsonl:web.jsonl jsonl:books.jsonl --mix 3:1 --pack 1024 --batch 8",
      run_batches);
  batches
      .add_option("source", options.sources,
                  "[FORMAT:]PATH?OPTION=VALUE&..; several are put side by side, or mixed by --mix")
      ->required();
  batches.add_option("--batch", options.batch, "Rows of the global batch")
      ->required()
      ->check(whole(1));
  batches.add_option("--mesh", options.mesh, "Mesh: data=4,model=2")->capture_default_str();
  batches.add_option("--spec", options.specs,
                     "Of all fields, data,-; or FIELD=SPEC, repeated (default: the batch is cut "
                     "over the first axis)");
  batches.add_option("--filter", options.filter, "Records to keep: 'label==3 && length(text)>=16'");
  batches.add_option("--mix", options.mix, "Weights of the sources: 3:1, 0.7:0.3");
  batches.add_option("--pack", options.pack, "Put documents side by side in rows of this length")
      ->check(whole(1));
  batches.add_option("--pack-field", options.pack_field, "Which field the documents are");
  add_batches_order(batches, options);
  batches.add_option("--threads", options.threads, "That read")
      ->check(whole(1, 1024))
      ->capture_default_str();
  batches.add_option("--prefetch", options.prefetch, "Batches held ready")
      ->check(whole(1, 1024))
      ->capture_default_str();
  batches.add_flag("--digest", options.digest,
                   "Of each batch: the same for every mesh, thread count and resume");
}

}  // namespace shardwise::tools
