#include "shardwise/loader/detail/remote/remote_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "loader/images/image_files.h"
#include "shardwise/loader/detail/remote/remote_names.h"
#include "shardwise/loader/loader.h"
#include "shardwise/loader/open_source.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"
#include "shardwise/storage/object/bucket_path.h"
#include "storage/object/web_file.h"
#include "testing/errors.h"
#include "testing/memory_bucket.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr std::size_t kBlock = RemoteFile::kBlockBytes;

std::string random_text(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

std::string read(RemoteFile& file, std::size_t offset, std::size_t size) {
  std::string text(size, '?');
  file.read_at(offset, std::as_writable_bytes(std::span(text)).data(), size);
  return text;
}

class RemoteFileTest : public testing::Test {
 public:
  RemoteFileTest() { set_remote_cache({.folder = dir / "cache", .most_bytes = 64 << 20}); }

  const TempDir dir;
  const std::string text = random_text(10 * kBlock + 123, 1);
  ServedWebFile served{"/x.bin", text};
};

TEST_F(RemoteFileTest, ReadsAnyRangeAsTheServerHasIt) {
  RemoteFile file(served.url());
  ASSERT_EQ(file.size(), text.size());
  std::mt19937 random(2);
  for (int i = 0; i < 60; ++i) {
    const std::size_t offset = random() % text.size();
    const std::size_t size = random() % std::min<std::size_t>(text.size() - offset, 3 * kBlock);
    ASSERT_EQ(read(file, offset, size), text.substr(offset, size)) << offset << " " << size;
  }
  EXPECT_EQ(read(file, text.size(), 0), "");
  message_of(ErrorCode::corrupt, [&] { read(file, text.size() - 1, 2); });
}

TEST_F(RemoteFileTest, FetchesEachBlockOnceAndMoreAtATimeInOrder) {
  {
    RemoteFile file(served.url());
    for (std::size_t at = 0; at < text.size(); at += 1000) read(file, at, 1);
    const std::size_t requests = served.take_requests().size();
    EXPECT_LE(requests, 1 + 5);  // HEAD; 1, 2, 4, .. blocks
  }
  RemoteFile again(served.url());
  EXPECT_EQ(read(again, 5, 9 * kBlock), text.substr(5, 9 * kBlock));
  EXPECT_THAT(served.take_requests(), ElementsAre("HEAD /x.bin"));
}

TEST_F(RemoteFileTest, ReadsWithoutACache) {
  set_remote_cache({.folder = dir / "none", .most_bytes = 0});
  RemoteFile file(served.url());
  EXPECT_EQ(read(file, kBlock - 1, 3), text.substr(kBlock - 1, 3));
  EXPECT_FALSE(fs::exists(dir / "none"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { file.whole_copy(); }),
              HasSubstr("found a cache of 0 bytes, needed " + std::to_string(text.size())));
}

TEST_F(RemoteFileTest, NeverMixesTwoVersions) {
  RemoteFile file(served.url());
  EXPECT_EQ(read(file, 0, 100), text.substr(0, 100));
  const std::string other = random_text(text.size(), 3);
  served.set(other, "\"2\"");
  EXPECT_EQ(read(file, 0, 100), text.substr(0, 100));
  for (const bool heeds : {true, false}) {
    served.heeds_if_match = heeds;
    message_of(ErrorCode::corrupt, [&] { read(file, 5 * kBlock, 1); });
  }
  RemoteFile newer(served.url());
  EXPECT_NE(newer.tag(), file.tag());
  EXPECT_EQ(read(newer, 0, 100), other.substr(0, 100));
}

TEST_F(RemoteFileTest, RepeatsRequestsOfAServerThatFails) {
  int failures = 0;
  served.change = [&](const ServedRequest& request, ServedAnswer& answer) {
    if (request.method != "GET" || ++failures % 3 == 0) return;
    if (failures % 3 == 1) answer = {.status = 503};
    if (failures % 3 == 2) answer.cut = answer.body.size() / 2;
  };
  RemoteFile file(served.url());
  EXPECT_EQ(read(file, 0, text.size()), text);
  EXPECT_GE(failures, 3);
}

TEST_F(RemoteFileTest, FetchesAgainABlockThatIsDamagedInTheCache) {
  {
    RemoteFile file(served.url());
    read(file, 0, text.size());
  }
  int damaged = 0;
  for (const auto& entry : fs::recursive_directory_iterator(dir / "cache")) {
    if (!entry.is_regular_file() || entry.file_size() < 100) continue;
    std::string bytes = file_text(entry.path());
    bytes[50] = static_cast<char>(bytes[50] ^ 1);
    write_file(entry.path(), bytes);
    ++damaged;
  }
  EXPECT_EQ(damaged, 11);
  // The blocks in memory would hide the damage: another content takes their place.
  ServedWebFile others("/y.bin", random_text(40 * kBlock, 4));
  RemoteFile other(others.url());
  read(other, 0, 40 * kBlock);
  RemoteFile file(served.url());
  served.take_requests();
  EXPECT_EQ(read(file, 0, text.size()), text);
  EXPECT_GT(served.take_requests().size(), 0u);
}

TEST_F(RemoteFileTest, ASourceIsTheLocalOne) {
  std::string csv = "a,b\n";
  for (int i = 0; i < 200; ++i) csv += std::to_string(i) + ",row" + std::to_string(i) + "\n";
  write_file(dir / "t.csv", csv);
  served.path = "/t.csv";
  served.set(csv, "\"1\"");
  const auto local = open_source("csv:" + (dir / "t.csv").string());
  const auto remote = open_source(served.url());
  ASSERT_EQ(remote->size(), 200);
  EXPECT_NE(remote->fingerprint(), local->fingerprint());
  EXPECT_EQ(remote->fingerprint(), open_source("csv:" + served.url())->fingerprint());
  served.set(csv, "\"2\"");  // the same bytes, but nobody can know
  EXPECT_NE(remote->fingerprint(), open_source("csv:" + served.url())->fingerprint());
  for (std::int64_t record = 0; record < 200; ++record) {
    ASSERT_EQ(read_field(*remote, "a", record), read_field(*local, "a", record));
  }
}

TEST_F(RemoteFileTest, ManyFilesAreOneSourceInTheirOrder) {
  const auto bucket = std::make_shared<MemoryBucket>();
  use_object_client("memory", bucket, {.tries = 3, .wait = [](auto) {}});
  constexpr std::int64_t kFiles = 50;
  for (std::int64_t i = 0; i < kFiles; ++i) {
    std::string etag;
    const std::string csv = "a\n" + std::to_string(i) + "\n";
    bucket->put("t-" + std::to_string(100 + i) + ".csv", std::as_bytes(std::span(csv)), {}, etag);
  }
  std::atomic<int> heads = 0;
  std::latch sixteen(16);  // the first sixteen wait for each other
  bucket->observed = [&](std::string_view verb, const std::string&) {
    if (verb == "head" && heads++ < 16) sixteen.arrive_and_wait();
  };
  const auto source = open_source("csv:s3://memory/t-{100..149}.csv");
  ASSERT_EQ(source->size(), kFiles);
  for (std::int64_t i = 0; i < kFiles; ++i) {
    const auto bytes = std::as_bytes(std::span(&i, 1));  // the column is of i64
    ASSERT_EQ(read_field(*source, "a", i), Bytes(bytes.begin(), bytes.end()));
  }
  use_object_client("memory", nullptr);
}

TEST_F(RemoteFileTest, AStoreThatFailsIsNoBadRecord) {
  try {
    served.path = "/elsewhere";
    RemoteFile file(served.url().substr(0, served.url().find("/elsewhere")) + "/x.bin");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("found no such object"));
    EXPECT_FALSE(is_bad_record(error));
  }
  EXPECT_TRUE(is_bad_record(Error(ErrorCode::not_found, "a file")));
}

class RemoteNames : public testing::Test {
 public:
  RemoteNames() {
    use_object_client("memory", bucket, {.tries = 3, .wait = [](auto) {}});
    std::string etag;
    for (const char* const key : {"d/a-0.tar", "d/a-1.tar", "d/b.tar", "d/.hidden", "d/_meta",
                                  "d/deep/c.tar", "d/", "e/x"}) {
      bucket->put(key, std::as_bytes(std::span("x")), {}, etag);
    }
  }
  ~RemoteNames() override { use_object_client("memory", nullptr); }

  static std::vector<std::string> names(const std::string& url) {
    std::vector<std::string> found;
    for (const fs::path& path : remote_files(url)) found.push_back(path.string());
    return found;
  }

  const std::shared_ptr<MemoryBucket> bucket = std::make_shared<MemoryBucket>();
};

TEST_F(RemoteNames, AreThoseOfAListingOrOfNumbers) {
  EXPECT_THAT(names("s3://memory/d/a-*.tar"),
              ElementsAre("s3://memory/d/a-0.tar", "s3://memory/d/a-1.tar"));
  EXPECT_THAT(names("s3://memory/d/"),
              ElementsAre("s3://memory/d/a-0.tar", "s3://memory/d/a-1.tar", "s3://memory/d/b.tar",
                          "s3://memory/d/deep/c.tar"));
  EXPECT_THAT(names("s3://memory/d/none.tar"), ElementsAre("s3://memory/d/none.tar"));
  EXPECT_THAT(names("https://h/{08..10}.tar"),
              ElementsAre("https://h/08.tar", "https://h/09.tar", "https://h/10.tar"));
  EXPECT_THAT(names("https://h/{0..1}/{0..1}"),
              ElementsAre("https://h/0/0", "https://h/0/1", "https://h/1/0", "https://h/1/1"));
  EXPECT_THAT(names("https://h/{0..99999}"), SizeIs(100'000));
}

TEST_F(RemoteNames, ThatStandForNothingOrTooMuchAreRefused) {
  EXPECT_THAT(message_of(ErrorCode::not_found, [] { names("s3://memory/d/z*"); }),
              HasSubstr("found no object there, needed one or more"));
  for (const char* const url : {"https://h/{a..b}", "https://h/{2..1}", "https://h/{0..1000000}",
                                "https://h/{}", "https://h/{1}"}) {
    message_of(ErrorCode::invalid_argument, [&] { names(url); });
  }
  message_of(ErrorCode::invalid_argument, [] { names("https://h/{0..9999}/{0..9999}"); });
  std::string etag;
  bucket->put("d/x/../y", std::as_bytes(std::span("x")), {}, etag);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [] { names("s3://memory/d/"); }),
              HasSubstr("found the key \"d/x/../y\""));
}

}  // namespace
}  // namespace shardwise::detail
