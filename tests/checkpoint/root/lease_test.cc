#include "shardwise/checkpoint/detail/root/marks/lease.h"

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "testing/few_descriptors.h"
#include "testing/temp_dir.h"

extern char** environ;

namespace shardwise::detail {
namespace {

TEST(Lease, PrintsAndParses) {
  const LeaseOwner owner{.pid = 12,
                         .pid_namespace = 4026531836,
                         .start = 3456789,
                         .time_namespace = 4026531834,
                         .image = 77,
                         .boot = "b-1",
                         .machine = "m-1",
                         .host = "h\"o"};
  const std::string text = print_lease(owner);
  EXPECT_EQ(text,
            R"({"pid":12,"pid_namespace":4026531836,"start":3456789,"time_namespace":4026531834,)"
            R"("image":77,"boot":"b-1","machine":"m-1","host":"h\"o"})"
            "\n");
  const auto parsed = parse_lease(text);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->pid, 12);
  EXPECT_EQ(parsed->pid_namespace, 4026531836u);
  EXPECT_EQ(parsed->start, 3456789u);
  EXPECT_EQ(parsed->time_namespace, 4026531834u);
  EXPECT_EQ(parsed->image, 77u);
  EXPECT_EQ(parsed->boot, "b-1");
  EXPECT_EQ(parsed->machine, "m-1");
  EXPECT_EQ(parsed->host, "h\"o");
}

TEST(Lease, OtherTextIsNone) {
  for (const char* text : {"", "{", "[]", "{}", R"({"pid":1,"start":1,"boot":"x"})",
                           R"({"pid":"1","start":1,"boot":"x","host":"y"})", "null"}) {
    EXPECT_FALSE(parse_lease(text)) << text;
  }
}

TEST(Lease, ThisProcessIsAlive) {
  const LeaseOwner me = this_process();
  EXPECT_EQ(me.pid, ::getpid());
  EXPECT_TRUE(may_be_alive(me));
}

TEST(Lease, DeadIsAnotherStartBootOrNumberOnThisMachine) {
  LeaseOwner other = this_process();
  other.start += 1;
  EXPECT_FALSE(may_be_alive(other)) << "the number went to another process";
  other = this_process();
  other.boot = "earlier";
  EXPECT_FALSE(may_be_alive(other));
  other.host = "elsewhere";
  EXPECT_TRUE(may_be_alive(other)) << "nothing is known of another machine";
  other = this_process();
  other.pid = 0x7fffffff;
  EXPECT_FALSE(may_be_alive(other));
}

// Two machines may be called "localhost", and both have the first pid namespace.
TEST(Lease, NothingIsKnownOfAnotherMachineOfTheSameName) {
  LeaseOwner other = this_process();
  other.boot = "its own";
  other.machine = "another";
  EXPECT_TRUE(may_be_alive(other));
}

// Two containers on one machine may share boot id and host name, and each has a process 7.
TEST(Lease, NothingIsKnownOfAnotherPidNamespace) {
  LeaseOwner other = this_process();
  other.pid = 0x7fffffff;
  other.pid_namespace += 1;
  EXPECT_TRUE(may_be_alive(other));
  const auto old = parse_lease(R"({"pid":1,"start":1,"boot":"x","host":"y"})");
  ASSERT_TRUE(old);
  EXPECT_EQ(old->pid_namespace, 0u);
  EXPECT_EQ(old->time_namespace, 0u);
  EXPECT_EQ(old->image, 0u);
  EXPECT_EQ(old->machine, "");
}

// There the same instant has another number, so a start says nothing; that there is no process of
// that number does.
TEST(Lease, StartsOfAnotherTimeNamespaceAreNotCompared) {
  LeaseOwner other = this_process();
  other.time_namespace += 1;
  other.start += 1'000'000;
  EXPECT_TRUE(may_be_alive(other));
  other.pid = 0x7fffffff;
  EXPECT_FALSE(may_be_alive(other));
}

// exec() keeps number and start.
TEST(Lease, WhatThisProcessRanBeforeIsDead) {
  LeaseOwner other = this_process();
  ASSERT_NE(other.image, 0u) << "the kernel has told it";
  other.image += 1;
  EXPECT_FALSE(may_be_alive(other));
  other.image = 0;
  EXPECT_TRUE(may_be_alive(other)) << "an earlier version wrote it";
}

// The files of the system that say so cannot be opened; the owner has no machine id, as in many
// containers.
TEST(Lease, WhoCannotBeLookedAtMayBeAlive) {
  LeaseOwner me = this_process();
  me.machine.clear();
  const TempDir dir;
  write_file(dir / "lease", print_lease(me));
  const std::shared_ptr<FileSystem> files = posix_file_system();
  for (std::size_t free = 0; free < 4; ++free) {
    SCOPED_TRACE(free);
    const FewDescriptors few(free);
    EXPECT_TRUE(may_be_alive(me));
    try {
      EXPECT_TRUE(has_live_owner(*files, dir / "lease"));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      EXPECT_EQ(free, 0u) << e.what();
    }
  }
}

TEST(Lease, OwnersOnDeadHostsAreDeadUnlessTheyAreSeenAlive) {
  LeaseOwner other = this_process();
  const std::vector<std::string> dead{"elsewhere", other.host};
  EXPECT_TRUE(may_be_alive(other, dead));
  other.pid_namespace += 1;
  EXPECT_FALSE(may_be_alive(other, dead));
  other.host = "elsewhere";
  EXPECT_FALSE(may_be_alive(other, dead));
  other.host = "another";
  EXPECT_TRUE(may_be_alive(other, dead));
}

// A child that has ended is dead, even before its parent asks for its status.
TEST(Lease, AnEndedChildIsDead) {
  pid_t child = 0;
  std::array<char, 5> name{"true"};
  std::array<char*, 2> arguments{name.data(), nullptr};
  ASSERT_EQ(posix_spawnp(&child, "true", nullptr, nullptr, arguments.data(), environ), 0);
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  LeaseOwner owner = this_process();
  owner.pid = child;
  EXPECT_FALSE(may_be_alive(owner));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace shardwise::detail
