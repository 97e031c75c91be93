// The bucket in memory that other tests use answers as a server does.

#include "testing/memory_bucket.h"

#include <gtest/gtest.h>

#include "storage/object/client_conformance.h"

namespace shardwise {
namespace {

class InMemory : public ::testing::Test {
 protected:
  InMemory() { bucket_.page_size = 1'000; }

  MemoryBucket bucket_;
  ClientConformance conformance_{bucket_, "conformance/"};
};

TEST_F(InMemory, PutsAndGetsWholeObjects) { conformance_.check_whole_objects(); }
TEST_F(InMemory, GetsRanges) { conformance_.check_ranges(); }
TEST_F(InMemory, KeepsConditions) { conformance_.check_conditions(); }
TEST_F(InMemory, LetsOneWriterWin) { conformance_.check_races(); }
TEST_F(InMemory, Lists) { conformance_.check_listings(); }
TEST_F(InMemory, ListsPages) {
  bucket_.page_size = 3;
  conformance_.check_pages(10);
}
TEST_F(InMemory, TakesStrangeKeys) { conformance_.check_keys(); }
TEST_F(InMemory, TakesMultipartUploads) { conformance_.check_uploads(); }

}  // namespace
}  // namespace shardwise
