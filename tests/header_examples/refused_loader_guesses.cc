// Guessed names of loaders and sources that do not exist. refused_guesses_test.py compiles this.
#include <memory>

#include "shardwise/shardwise.h"

namespace sw = shardwise;

void guesses(sw::Loader& loader, sw::HostLoader& host, std::shared_ptr<const sw::Source> s,
             const sw::LoaderState& state) {
  sw::CsvOptions options{.separator = ';'};            // shows: delimiter
  auto t = sw::open_csv("d.csv", {.separator = ';'});  // shows: delimiter
  loader.seek(40);                      // shows: LoaderState: {.seed = 1, .next_batch = 40}
  host.seek(40);                        // shows: LoaderState: {.seed = 1, .next_batch = 40}
  loader.restore(state);                // shows: loader_state_from_json(text)
  host.restore("{}");                   // shows: loader_state_from_json(text)
  loader.load_state(state);             // shows: loader_state_from_json(text)
  auto both = sw::concatenate({s, s});  // shows: concat({a, b})
}
