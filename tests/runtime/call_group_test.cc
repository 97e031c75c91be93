#include "shardwise/runtime/process/call_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <latch>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shardwise/runtime/process/detail/message.h"
#include "testing/errors.h"
#include "testing/memory_store.h"

namespace shardwise {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr milliseconds kLong{100'000};  // a deadline that nothing here waits for
constexpr milliseconds kShort{30};

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

Bytes bytes(std::string_view text) {
  const auto all = std::as_bytes(std::span(text));
  return {all.begin(), all.end()};
}

std::string text(const Bytes& all) {
  return {reinterpret_cast<const char*>(all.data()), all.size()};
}

/// Text and kind of an error.
std::string shown(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const GroupError& e) {
    return std::string("group: ") + e.what();
  } catch (const Error& e) {
    return std::string(name(e.code())) + ": " + e.what();
  } catch (const std::exception& e) {
    return std::string("other: ") + e.what();
  }
}

std::vector<std::string> on_ranks(int size, const std::function<std::string(int)>& body) {
  std::vector<std::string> said(at(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { said[at(rank)] = shown([&] { return body(rank); }); });
  }
  threads.clear();
  return said;
}

std::vector<CallGroup> groups(MemoryStore& store, int size) {
  std::vector<CallGroup> all;
  for (int rank = 0; rank < size; ++rank) all.emplace_back(store.of(rank, size));
  return all;
}

Bytes joined(const std::vector<Bytes>& values) {
  std::string all;
  for (const Bytes& value : values) all += "+" + text(value);
  return bytes(all.substr(1));
}

std::string step(const CallGroup::Call& call, const std::string& value) {
  return text(call.agree([&] { return bytes(value); }, joined));
}

/// A call of one step.
std::string agree(const CallGroup& group, const std::string& name, const std::string& value = "",
                  milliseconds deadline = kLong, std::vector<CallGroup::Fact> same = {}) {
  return step(group.call(name, std::move(same), deadline), value);
}

TEST(CallGroup, GivesEveryRankWhatRank0Merges) {
  for (int size = 1; size <= 4; ++size) {
    MemoryStore store;
    const auto ranks = groups(store, size);
    for (int round = 0; round < 20; ++round) {
      const auto said = on_ranks(size, [&](int rank) {
        const auto call = ranks[at(rank)].call("save a", {}, kLong);
        const std::string first = step(call, std::to_string(rank));
        return first + " " + step(call, first.substr(0, 1));
      });
      std::string counted = "0", zeros = "0";
      for (int rank = 1; rank < size; ++rank) {
        counted += "+" + std::to_string(rank);
        zeros += "+0";
      }
      EXPECT_THAT(said, Each(counted + " " + zeros));
    }
    EXPECT_EQ(store.size(), 1u);  // rank 0's number
  }
}

TEST(CallGroup, RefusesRanksThatCallForOtherThings) {
  MemoryStore store;
  const auto ranks = groups(store, 3);
  const auto call = [&](const std::string& name, const std::string& path) {
    return on_ranks(3, [&](int rank) {
      const bool differs = rank == 2;
      return agree(ranks[at(rank)], differs ? name : "save a", "", kLong,
                   {{"codec", "zstd"}, {"path", differs ? path : "a"}});
    });
  };
  EXPECT_THAT(
      call("save a", "b"),
      Each("invalid_argument: save a: found path b on rank 2, needed a, as on rank 0: every "
           "rank makes the same calls in the same order"));
  EXPECT_THAT(call("save b", "b"),
              Each(HasSubstr("found \"save b\" on rank 2, needed \"save a\", as on rank 0; found "
                             "path b on rank 2, needed a, as on rank 0")));
  EXPECT_THAT(call("save a", "a"), Each("++"));
  const auto said = on_ranks(3, [&](int rank) {
    return agree(
        ranks[at(rank)], "save a", "", kLong,
        rank == 1 ? std::vector<CallGroup::Fact>{{"path", "a"}} : std::vector<CallGroup::Fact>{});
  });
  EXPECT_THAT(said, Each(HasSubstr("found 1 facts on rank 1, needed 0, as on rank 0")));
}

TEST(CallGroup, ACallThatOneRankLeftOutDoesNotShiftLaterOnes) {
  MemoryStore store;
  const auto ranks = groups(store, 2);
  const auto both = [&](const std::string& name) {
    return on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "save " + name, name); });
  };
  EXPECT_THAT(both("first"), Each("first+first"));
  for (const int alone : {0, 1}) {
    for (const std::string name : {"a", "b", "b"}) {
      EXPECT_EQ(shown([&] { return agree(ranks[at(alone)], "save " + name, "", kShort); }),
                "group: save " + name + ": rank " + std::to_string(1 - alone) +
                    " of 2 did not come within 0.03 s: was it called on one rank only?");
    }
    EXPECT_THAT(both("b"), Each("b+b"));
    EXPECT_THAT(both("c"), Each("c+c"));
  }
  // A rank that hears nothing gets an error that names the missed message.
  shown([&] { return agree(ranks[0], "save d", "", kShort); });
  EXPECT_THAT(shown([&] { return agree(ranks[1], "save e", "", kShort); }),
              HasSubstr(" Rank 0's last call ended without this rank: save d: rank 1 of 2"));
}

TEST(CallGroup, NamesTheRanksThatDoNotComeInTime) {
  MemoryStore store;
  const auto ranks = groups(store, 4);
  // Those that have not joined yet, then those that have.
  for (const std::string came : {"/hello/2", "/0/2/1/value/2"}) {
    const auto said = on_ranks(4, [&](int rank) {
      if (rank == 1 || rank == 3) return std::string("left out");
      const auto call = ranks[at(rank)].call("save a", {}, rank == 0 ? kShort : kLong);
      while (rank == 0 && store.count(came) == 0) std::this_thread::yield();
      return step(call, "");
    });
    EXPECT_EQ(said[0],
              "group: save a: ranks 1 and 3 of 4 did not come within 0.03 s: was it called on one "
              "rank only?");
    EXPECT_EQ(said[2], said[0]);
    EXPECT_THAT(on_ranks(4, [&](int rank) { return agree(ranks[at(rank)], "save b"); }),
                Each("+++"));
  }
}

TEST(CallGroup, ARankThatComesAfterTheOthersWereRefusedIsTold) {
  MemoryStore store;
  const auto ranks = groups(store, 3);
  const auto all = [&](const std::string& name) {
    return on_ranks(3, [&](int rank) { return agree(ranks[at(rank)], name); });
  };
  EXPECT_THAT(all("first"), Each("++"));
  std::latch refused(1);
  const auto said = on_ranks(3, [&](int rank) {
    if (rank == 2) refused.wait();
    const auto call = ranks[at(rank)].call(rank == 1 ? "b" : "a", {}, kLong);
    try {
      return step(call, "");
    } catch (const Error&) {
      if (rank == 1) refused.count_down();
      throw;
    }
  });
  EXPECT_THAT(said, Each("invalid_argument: a: found \"b\" on rank 1, needed \"a\", as on rank 0: "
                         "every rank makes the same calls in the same order"));
  EXPECT_THAT(all("next"), Each("++"));
}

TEST(CallGroup, WhatFailsOnOneRankIsTheSameErrorOnAll) {
  MemoryStore store;
  const auto ranks = groups(store, 3);
  for (const int failing : {0, 1}) {
    const auto said = on_ranks(3, [&](int rank) {
      const auto call = ranks[at(rank)].call("save a", {}, kLong);
      try {
        call.agree(
            [&]() -> Bytes {
              if (rank == failing) throw Error(ErrorCode::io, "no space", ENOSPC);
              return {};
            },
            joined);
      } catch (const Error& e) {
        EXPECT_EQ(e.system_error(), ENOSPC);
        EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { step(call, ""); }),
                  "save a: it has ended, needed is a call under way");
        if (rank == failing) {
          EXPECT_EQ(message_of(ErrorCode::io, [&] { std::rethrow_if_nested(e); }), "no space");
        }
        throw;
      }
      return std::string("no error");
    });
    EXPECT_THAT(said, Each("io: save a: rank " + std::to_string(failing) + ": no space"));
  }
  const auto several = on_ranks(3, [&](int rank) {
    const auto call = ranks[at(rank)].call("save b", {}, kLong);
    return text(call.agree(
        [&]() -> Bytes {
          if (rank == 1) throw Error(ErrorCode::io, "no space");
          if (rank == 2) throw std::runtime_error("by zero");
          return {};
        },
        joined));
  });
  EXPECT_THAT(several, Each("group: save b: rank 1: no space; rank 2: by zero"));
  const auto merging = on_ranks(3, [&](int rank) {
    const auto call = ranks[at(rank)].call("save c", {}, kLong);
    try {
      call.agree([] { return Bytes(); },
                 [](const std::vector<Bytes>&) -> Bytes {
                   throw Error(ErrorCode::already_exists, "c is there");
                 });
    } catch (const Error& e) {
      const auto cause = [&] { std::rethrow_if_nested(e); };
      if (rank == 0) {
        EXPECT_EQ(message_of(ErrorCode::already_exists, cause), "c is there");
      } else {
        EXPECT_NO_THROW(cause());
      }
      throw;
    }
    return std::string("no error");
  });
  EXPECT_THAT(merging, Each("already_exists: save c: rank 0: c is there"));
}

TEST(CallGroup, ALongErrorIsCutBetweenTwoCharacters) {
  MemoryStore store;
  const auto ranks = groups(store, 2);
  std::string umlauts;
  while (umlauts.size() < 100'000) umlauts += "\u00e4";
  const auto said = on_ranks(2, [&](int rank) {
    const auto call = ranks[at(rank)].call("a", {}, kLong);
    return text(call.agree([&]() -> Bytes { throw Error(ErrorCode::io, umlauts); }, joined));
  });
  for (const std::string& error : said) {
    EXPECT_THAT(error, StartsWith("io: a: rank 0: \u00e4"));
    EXPECT_TRUE(error.ends_with("\u00e4...")) << error.substr(error.size() - 10);
    EXPECT_LT(error.size(), 66'000u);
  }
}

TEST(CallGroup, AnErrorBesideTheStepsEndsTheCallOnAllRanks) {
  for (const int steps : {0, 1}) {
    for (const int failing : {0, 1}) {
      MemoryStore store;
      const auto ranks = groups(store, 3);
      const auto said = on_ranks(3, [&](int rank) {
        const auto call = ranks[at(rank)].call("save a", {}, kLong);
        for (int i = 0; i < steps; ++i) step(call, "");
        if (rank == failing) {
          call.end(std::make_exception_ptr(Error(ErrorCode::io, "disk full", ENOSPC)));
          return "io: save a: rank " + std::to_string(rank) + ": disk full";
        }
        return step(call, "");
      });
      EXPECT_THAT(said, Each("io: save a: rank " + std::to_string(failing) + ": disk full"));
      EXPECT_THAT(on_ranks(3, [&](int rank) { return agree(ranks[at(rank)], "b"); }), Each("++"));
    }
  }
}

TEST(CallGroup, ARankThatComesAfterRank0HasLeftDoesNotWork) {
  MemoryStore store;
  const auto ranks = groups(store, 2);
  on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "first"); });
  std::thread leaving([&] {
    ranks[0].call("save a", {}, kLong).end(std::make_exception_ptr(Error(ErrorCode::io, "full")));
  });
  while (store.count("/0/1/1/all") == 0) std::this_thread::yield();
  const auto call = ranks[1].call("save a", {}, kLong);
  EXPECT_EQ(message_of(ErrorCode::io,
                       [&] {
                         call.agree(
                             []() -> Bytes {
                               ADD_FAILURE() << "it worked";
                               return {};
                             },
                             joined);
                       }),
            "save a: rank 0: full");
  leaving.join();
}

TEST(CallGroup, TakesNothingOfAnEarlierJob) {
  MemoryStore store;
  for (int job = 0; job < 3; ++job) {
    const auto ranks = groups(store, 3);
    const auto said = on_ranks(3, [&](int rank) {
      // The others find the last job's number first, and wait for its answer.
      while (rank == 0 && job > 0 && store.count("/hello/") < 2) {
        std::this_thread::yield();
      }
      return agree(ranks[at(rank)], "start", std::to_string(10 * job + rank));
    });
    const auto value = [&](int rank) { return std::to_string(10 * job + rank); };
    EXPECT_THAT(said, Each(value(0) + "+" + value(1) + "+" + value(2)));
  }
}

TEST(CallGroup, AnswersRanksAsTheyCome) {
  MemoryStore store;
  const auto ranks = groups(store, 3);
  const auto said = on_ranks(3, [&](int rank) {
    // Rank 2 has joined, and given its value, though rank 1 has not come.
    while (rank == 1 && store.count("/0/0/1/value/2") == 0) std::this_thread::yield();
    return agree(ranks[at(rank)], "a");
  });
  EXPECT_THAT(said, Each("++"));
}

TEST(CallGroup, RefusesWhatIsNoMessage) {
  for (const std::string key : {"/0/0/call", "/0/0/1/value/1", "/0/0/1/all"}) {
    for (const std::string_view value :
         {"", "x", "\x05", "-\x01\x02-", "0123456789abcdef-", "x!"}) {
      for (const bool has_hash : {false, true}) {
        SCOPED_TRACE(testing::Message() << key << " is \"" << value << "\", hash: " << has_hash);
        const bool of_rank_1 = key.ends_with("/value/1");
        MemoryStore store;
        Bytes replaced = bytes(value);
        if (has_hash) detail::seal(replaced);
        store.replace(key, replaced);
        const auto ranks = groups(store, 2);
        const auto said = on_ranks(2, [&](int rank) {
          const bool waits = rank == 1 || of_rank_1;
          return agree(ranks[at(rank)], "a", "", waits ? kLong : kShort);
        });
        EXPECT_THAT(said[of_rank_1 ? 0 : 1],
                    AllOf(StartsWith("corrupt: "), HasSubstr("a message of rank ")));
      }
    }
  }
}

TEST(CallGroup, WaitsForRank0IfSomethingElseIsInItsPlace) {
  MemoryStore store;
  store.of(0, 2).set("shardwise/open", bytes("not a number"));
  const auto ranks = groups(store, 2);
  const auto said = on_ranks(2, [&](int rank) {
    while (rank == 0 && store.asked("shardwise/none") == 0) std::this_thread::yield();
    return agree(ranks[at(rank)], "a");
  });
  EXPECT_THAT(said, Each("+"));
}

TEST(CallGroup, DuplicatesAndThreadsFindTheirOwnCalls) {
  MemoryStore store;
  const auto ranks = groups(store, 3);
  const auto said = on_ranks(3, [&](int rank) {
    const CallGroup& group = ranks[at(rank)];
    const CallGroup first = group.duplicate(), second = group.duplicate();
    std::vector<CallGroup::Call> calls;
    for (int i = 0; i < 4; ++i) calls.push_back(group.call("save " + std::to_string(i), {}, kLong));
    std::vector<std::string> values(calls.size());
    std::vector<std::jthread> threads;
    // The last first: each finds its own announcement all the same.
    for (std::size_t i = calls.size(); i-- > 0;) {
      threads.emplace_back(
          [&, i] { values[i] = shown([&] { return step(calls[i], std::to_string(i)); }); });
    }
    std::string others = agree(second, "b", "2");
    others += agree(first, "a", "1");
    threads.clear();
    return others + values[0] + values[1] + values[2] + values[3];
  });
  EXPECT_THAT(said, Each("2+2+2"
                         "1+1+1"
                         "0+0+0"
                         "1+1+1"
                         "2+2+2"
                         "3+3+3"));
}

TEST(CallGroup, AFunctionOfTheStoreMayMakeACall) {
  MemoryStore store;
  // As a signal's handler does that runs while the store waits.
  std::vector<CallGroup> ranks;
  std::vector<std::string> inner(2);
  std::vector<std::atomic<bool>> is_due(2);
  for (int rank = 0; rank < 2; ++rank) {
    KeyValueStore of_rank = store.of(rank, 2);
    of_rank.get = [&, rank, get = of_rank.get](const std::string& key, milliseconds wait) {
      const std::size_t i = at(rank);
      if (is_due[i].exchange(false)) inner[i] = shown([&] { return agree(ranks[i], "inner"); });
      return get(key, wait);
    };
    ranks.emplace_back(std::move(of_rank));
  }
  for (int round = 0; round < 3; ++round) {
    const auto said = on_ranks(2, [&](int rank) {
      is_due[at(rank)] = true;
      return agree(ranks[at(rank)], "outer");
    });
    EXPECT_THAT(said, Each("+"));
    EXPECT_THAT(inner, Each("+"));
  }
}

/// A store whose function throws the next time that it is called for a key with a certain end.
class FailingStore {
 public:
  KeyValueStore of(int rank, int size) {
    KeyValueStore store = memory.of(rank, size);
    store.get = [this, rank, get = store.get](const std::string& key, milliseconds wait) {
      look(rank, "get", key);
      return get(key, wait);
    };
    store.set = [this, rank, set = store.set](const std::string& key,
                                              std::span<const std::byte> value) {
      look(rank, "set", key);
      set(key, value);
    };
    store.remove = [this, rank, remove = store.remove](const std::string& key) {
      look(rank, "remove", key);
      remove(key);
    };
    return store;
  }

  MemoryStore memory;
  int failing = 0;  // a rank
  std::string function, end;
  std::atomic<bool> is_due = false;

 private:
  void look(int rank, const std::string& called, const std::string& key) {
    if (rank == failing && called == function && key.ends_with(end) && is_due.exchange(false)) {
      throw std::logic_error("gone");
    }
  }
};

TEST(CallGroup, WhatTheStoreThrowsPassesThroughAndEndsTheCallOnAllRanks) {
  struct Case {
    int rank;
    const char *function, *end;
  };
  for (const Case& c :
       {Case{1, "get", "/call"}, Case{1, "set", "/1/value/1"}, Case{1, "get", "/1/all"},
        Case{1, "remove", "/1/value/1"}, Case{1, "set", "/1/heard/1"}, Case{1, "set", "/2/value/1"},
        Case{0, "set", "/call"}, Case{0, "get", "/1/value/1"}, Case{0, "set", "/1/all"},
        Case{0, "get", "/1/heard/1"}, Case{0, "remove", "/1/all"}, Case{0, "get", "/2/value/1"}}) {
    SCOPED_TRACE(testing::Message() << c.function << " " << c.end << " on rank " << c.rank);
    FailingStore store;
    std::vector<CallGroup> ranks;
    for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(store.of(rank, 2));
    EXPECT_THAT(on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "first"); }), Each("+"));
    store.failing = c.rank;
    store.function = c.function;
    store.end = c.end;
    store.is_due = true;
    const auto said = on_ranks(2, [&](int rank) {
      const auto call = ranks[at(rank)].call("a", {}, kLong);
      return step(call, "") + step(call, "");
    });
    EXPECT_EQ(said[at(c.rank)], "other: gone");
    EXPECT_EQ(said[at(1 - c.rank)], "group: a: rank " + std::to_string(c.rank) + ": gone");
    EXPECT_THAT(on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "b"); }), Each("+"));
  }
}

TEST(CallGroup, ARankThatLeavesBeforeRank0HasComeIsHeardOf) {
  FailingStore store;
  std::vector<CallGroup> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    KeyValueStore of_rank = store.of(rank, 2);
    of_rank.set = [&, set = of_rank.set](const std::string& key, std::span<const std::byte> value) {
      // Rank 1 meets the call that it has left, and no verdict.
      while (key.ends_with("/0/1/1/all") && store.memory.asked("/0/2/call") == 0 &&
             store.memory.asked("/0/1/1/all") < 2) {
        std::this_thread::yield();
      }
      set(key, value);
    };
    ranks.emplace_back(std::move(of_rank));
  }
  EXPECT_THAT(on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "first"); }), Each("+"));
  store.failing = 1;
  store.function = "get";
  store.end = "/call";
  store.is_due = true;
  EXPECT_EQ(shown([&] { return agree(ranks[1], "a"); }), "other: gone");
  const auto said = on_ranks(2, [&](int rank) {
    if (rank == 0) {
      EXPECT_EQ(shown([&] { return agree(ranks[0], "a"); }), "group: a: rank 1: gone");
    }
    return agree(ranks[at(rank)], "b");
  });
  EXPECT_THAT(said, Each("+"));
}

TEST(CallGroup, ACallThatEndsWithoutAStepDoesNotShiftLaterOnes) {
  MemoryStore store;
  const auto ranks = groups(store, 2);
  const auto both = [&] {
    return on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "b"); });
  };
  EXPECT_THAT(both(), Each("+"));
  {
    // Rank 1 meets the call of rank 0, which has not ended.
    const auto first = ranks[0].call("a", {}, kLong);
    ranks[1].call("a", {}, kLong).end();
    std::string said;
    std::jthread second([&] { said = shown([&] { return agree(ranks[1], "b"); }); });
    while (store.count("/0/1/1/value/1") == 0 && store.asked("/0/2/call") == 0) {
      std::this_thread::yield();
    }
    first.end();
    EXPECT_EQ(agree(ranks[0], "b"), "+");
    second.join();
    EXPECT_EQ(said, "+");
  }
  // On rank 0 alone.
  ranks[0].call("c", {}, kLong).end();
  EXPECT_THAT(both(), Each("+"));
  // While the others are at its first step.
  const auto said = on_ranks(2, [&](int rank) {
    const auto call = ranks[at(rank)].call("d", {}, kLong);
    if (rank == 1) return step(call, "");
    call.end();
    return std::string("left");
  });
  EXPECT_THAT(said, ElementsAre("left", "group: d: rank 0 has ended it without a step"));
  EXPECT_THAT(both(), Each("+"));
}

TEST(CallGroup, NeedsNoHandshakeInAFreshStore) {
  MemoryStore store;
  std::vector<CallGroup> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    KeyValueStore of_rank = store.of(rank, 2);
    of_rank.is_fresh = true;
    ranks.emplace_back(std::move(of_rank));
  }
  const auto said = on_ranks(2, [&](int rank) { return agree(ranks[at(rank)], "a"); });
  EXPECT_THAT(said, Each("+"));
  EXPECT_EQ(store.count("open"), 0u);
}

TEST(CallGroup, WaitsInPartsThatAreNoLongerThanASecond) {
  std::vector<std::int64_t> waits;
  MemoryStore store;
  KeyValueStore of_rank = store.of(1, 2);
  of_rank.get = [&](const std::string&, milliseconds wait) -> std::optional<Bytes> {
    waits.push_back(wait.count());
    if (waits.size() == 10) throw std::logic_error("enough");
    return {};
  };
  const CallGroup group(std::move(of_rank));
  EXPECT_EQ(shown([&] { return agree(group, "a"); }), "other: enough");
  EXPECT_THAT(waits, ElementsAre(10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000));
}

TEST(CallGroup, RefusesAStoreThatIsNotWhole) {
  MemoryStore store;
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { CallGroup(store.of(3, 3)); }),
              HasSubstr("make a process group: found rank 3, needed 0 to 2"));
}

}  // namespace
}  // namespace shardwise
