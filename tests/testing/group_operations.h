#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/process/process_group.h"

namespace shardwise {

inline Bytes bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A rank's message in an operation: different everywhere, of several lengths.
inline Bytes words(int rank, int operation, std::string_view to = "") {
  std::string text = "rank " + std::to_string(rank) + " operation " + std::to_string(operation);
  text += to;
  return bytes_of(text + std::string(static_cast<std::size_t>(operation * 37 % 300), 'x'));
}

/// An exchange of `numbers` messages with each other rank, sent from the last to the first.
inline void run_exchange(const ProcessGroup& group, int operation, int numbers) {
  using Awaited = ProcessGroup::Exchange::Awaited;
  const auto text = [&](int rank, std::uint64_t number) {
    return words(rank, operation, " message " + std::to_string(number));
  };
  const auto count = static_cast<std::uint64_t>(numbers);
  ProcessGroup::Exchange exchange = group.begin_exchange(count);
  std::vector<Awaited> awaited;
  for (std::uint64_t number = count; number-- > 0;) {
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      exchange.send(rank, number, 7 + number, text(group.rank(), number));
      awaited.insert(awaited.begin(), {rank, number, 7 + number});
    }
  }
  while (!awaited.empty()) {
    const auto received = exchange.receive(awaited, true);
    if (!received) continue;
    const auto place = awaited.begin() + static_cast<std::ptrdiff_t>(received->place);
    EXPECT_EQ(received->bytes, text(place->from, place->number));
    awaited.erase(place);
  }
  exchange.finish();
}

/// Operations drawn from a seed, the same on all ranks; fails the test where one gives other bytes.
inline void run_operations(const ProcessGroup& group, std::uint32_t seed, int count) {
  std::mt19937 random(seed);
  const int size = group.size(), own = group.rank();
  for (int i = 0; i < count; ++i) {
    const auto draw = [&](int most) {
      return static_cast<int>(random() % static_cast<unsigned>(most));
    };
    const int root = draw(size);
    switch (draw(7)) {
      case 0:
        EXPECT_EQ(group.broadcast(words(own, i), root), words(root, i));
        break;
      case 1: {
        const auto parts = group.gather(words(own, i), root);
        EXPECT_EQ(parts.size(), own == root ? static_cast<std::size_t>(size) : 0u);
        for (std::size_t r = 0; r < parts.size(); ++r) {
          EXPECT_EQ(parts[r], words(static_cast<int>(r), i));
        }
        break;
      }
      case 2: {
        const auto parts = group.all_gather(words(own, i));
        ASSERT_EQ(parts.size(), static_cast<std::size_t>(size));
        for (std::size_t r = 0; r < parts.size(); ++r) {
          EXPECT_EQ(parts[r], words(static_cast<int>(r), i));
        }
        break;
      }
      case 3:
        group.barrier();
        break;
      case 6:
        run_exchange(group, i, draw(4));
        break;
      case 4: {
        const std::vector<ProcessGroup::Fact> facts{{"number", static_cast<std::uint64_t>(i)}};
        group.agree("operation", facts);
        break;
      }
      default: {
        // Who sends to whom: the same drawing everywhere.
        std::vector<ProcessGroup::Outgoing> outgoing;
        std::vector<int> from;
        for (int a = 0; a < size; ++a) {
          for (int b = 0; b < size; ++b) {
            if (a == b || draw(2) == 0) continue;
            if (a == own) outgoing.push_back({b, words(a, i, std::to_string(b))});
            if (b == own) from.push_back(a);
          }
        }
        const auto parts = group.exchange(std::move(outgoing), from);
        for (std::size_t p = 0; p < from.size(); ++p) {
          EXPECT_EQ(parts[p], words(from[p], i, std::to_string(own)));
        }
      }
    }
  }
}

}  // namespace shardwise
