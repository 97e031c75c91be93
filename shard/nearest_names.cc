#include <algorithm>
#include <utility>

#include "shardwise/shard/text.h"

namespace shardwise {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before2(b.size() + 1), before(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) before[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, before[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before2[j - 2] + 1);
      }
    }
    std::swap(before2, before);
    std::swap(before, row);
  }
  return before[b.size()];
}

std::vector<std::string_view> nearest_names(const std::vector<std::string_view>& names,
                                            std::string_view wrong) {
  // At most a third of the letters may differ: a more distant hint would mislead. The limit also
  // keeps long lists cheap.
  const std::size_t most = std::max<std::size_t>(1, wrong.size() / 3);
  std::vector<std::pair<std::size_t, std::string_view>> found;
  for (const std::string_view name : names) {
    const std::size_t gap =
        name.size() > wrong.size() ? name.size() - wrong.size() : wrong.size() - name.size();
    if (gap > most) continue;
    const std::size_t d = edit_distance(name, wrong);
    if (d <= most) found.emplace_back(d, name);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string_view> nearest;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, found.size()); ++i) {
    nearest.push_back(found[i].second);
  }
  return nearest;
}

}  // namespace shardwise
