#include "shardwise/jobs/detail/save/terms.h"

#include <fmt/format.h>

#include "shardwise/checkpoint/detail/record/packer.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {

using namespace detail;

namespace {

// Visits each term with its name, in the order of reports of differences.
template <class Visit>
void for_each_term(const SaveTerms& terms, const Visit& visit) {
  visit("step", fmt::to_string(terms.step));
  visit("codec", std::string(name(terms.codec)));
  visit("existing", std::string(name(terms.existing)));
  visit("writers", fmt::to_string(terms.writers));
  visit("devices", fmt::to_string(terms.devices));
  visit("most_failed_saves", terms.most_failed_saves == 0
                                 ? "none (OnSaveError::raise)"
                                 : fmt::to_string(terms.most_failed_saves));
  visit("local_roots", terms.copies < 0 ? "none"
                                        : fmt::format("{} copies and {} processes per host",
                                                      terms.copies, terms.processes_per_host));
  visit("user_json", "a text with the hash " + to_hex(terms.user));
  visit("objects_json", "a text with the hash " + to_hex(terms.objects));
}

}  // namespace

void check_local_roots(const std::string& what, const RootTerms& terms, std::int64_t keep_last,
                       int processes) {
  if (!terms.local_roots) return;
  const LocalRoots& local = *terms.local_roots;
  const char* problem = nullptr;
  if (keep_last == 1) problem = "keep_last is 1, needed is 0 (all), or 2 or more";
  if (local.copies < 0 || local.processes_per_host < 1) {
    problem = "needed are 0 copies or more, and 1 process per host or more";
  } else if (processes % local.processes_per_host != 0 ||
             local.copies >= processes / local.processes_per_host) {
    problem = "needed are whole hosts, and more of them than copies";
  }
  if (problem == nullptr) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: local_roots with {} copies, {} processes per "
                          "host, {} processes: {}",
                          what, local.copies, local.processes_per_host, processes, problem));
}

SaveTerms terms_of(std::int64_t step, const SaveOptions& options, std::int64_t devices,
                   const std::optional<LocalRoots>& local_roots, std::int64_t most_failed_saves) {
  SaveTerms terms{.step = step,
                  .codec = options.codec,
                  .existing = options.existing,
                  .writers = options.writers,
                  .devices = devices,
                  .most_failed_saves = most_failed_saves};
  if (local_roots) {
    terms.copies = local_roots->copies;
    terms.processes_per_host = local_roots->processes_per_host;
  }
  terms.user = hash64(options.user_json);
  terms.objects = hash64(options.objects_json);
  return terms;
}

std::string difference(const SaveTerms& of_first, const SaveTerms& own, int rank) {
  if (of_first == own) return {};
  std::vector<std::string> firsts;
  for_each_term(of_first, [&](const char*, const std::string& value) { firsts.push_back(value); });
  std::string found;
  std::size_t number = 0;
  for_each_term(own, [&](const char* name, const std::string& value) {
    const std::string& first = firsts[number++];
    if (!found.empty() || first == value) return;
    found = fmt::format("rank 0 saves with {} {}, rank {} with {}: needed is the same on all ranks",
                        name, first, rank, value);
  });
  return found;
}

void put(Packer& packer, const SaveTerms& terms) {
  packer.number(terms.step);
  packer.number(static_cast<std::int64_t>(terms.codec));
  packer.number(static_cast<std::int64_t>(terms.existing));
  packer.number(terms.writers);
  packer.number(terms.devices);
  packer.number(terms.most_failed_saves);
  packer.number(terms.copies + 1);
  packer.number(terms.processes_per_host);
  packer.word(terms.user);
  packer.word(terms.objects);
}

SaveTerms take_terms(Unpacker& unpacker) {
  SaveTerms terms;
  terms.step = unpacker.integer(0);
  terms.codec = static_cast<Codec>(unpacker.integer(0, static_cast<int>(Codec::none)));
  terms.existing = static_cast<Existing>(unpacker.integer(0, static_cast<int>(Existing::skip)));
  terms.writers = unpacker.integer(1);
  terms.devices = unpacker.integer(0);
  terms.most_failed_saves = unpacker.integer(0);
  terms.copies = unpacker.integer(0) - 1;
  terms.processes_per_host = unpacker.integer(0);
  terms.user = unpacker.word();
  terms.objects = unpacker.word();
  return terms;
}

}  // namespace shardwise::jobs_detail
