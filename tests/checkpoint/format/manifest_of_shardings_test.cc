// Manifests with shardings and writers are read back, and those that break the format page's rules
// are refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

/// Tensors "cut" (f32 [8, 4] over a 2 x 2 mesh), "listed" (u8 [3] in two pieces) and "sizes".
Manifest sample_manifest() {
  Manifest manifest;
  manifest.id = "0123456789abcdef0123456789abcdef";
  manifest.step = 7;
  manifest.user_json = R"({"epoch":3})";
  manifest.writers = WriterMap::even(4, 2);
  const Mesh mesh = Mesh::parse("data=2,model=2");
  TensorEntry cut{.name = "cut", .shape = {8, 4}};
  cut.sharding = Sharding(mesh, PartitionSpec::parse("data,model"));
  TensorEntry listed{.name = "listed", .dtype = DType::u8, .shape = {3}};
  listed.listed = {{0, Box({1}, {3})}, {1, Box({0}, {1})}};
  TensorEntry sizes{.name = "sizes", .shape = {5}};
  sizes.sharding = Sharding(mesh, PartitionSpec::parse("data"), UnevenPolicy::parse("sizes:3+2"));
  manifest.tensors = {cut, listed, sizes};
  for (std::int64_t writer = 0; writer < 2; ++writer) {
    FileEntry file;
    file.writer = writer;
    file.name = shard_file_name(writer, 2);
    file.bytes = 9000;
    file.data_end = 8192;
    file.description_hash = {.high = 1, .low = static_cast<std::uint64_t>(writer)};
    manifest.files.push_back(file);
  }
  manifest.index_bytes = 4000;
  return manifest;
}

std::string refused_text(const std::string& text, ErrorCode code = ErrorCode::corrupt) {
  return message_of(code, [&] { parse_manifest(text, "dir/manifest.json"); });
}

TEST(ManifestOfShardings, IsReadAsItWasWritten) {
  Manifest manifest = sample_manifest();
  const std::string text = print_manifest(manifest);
  EXPECT_EQ(parse_manifest(text, "m"), manifest);
  EXPECT_EQ(print_manifest(parse_manifest(text, "m")), text);

  manifest.files.erase(manifest.files.begin());
  manifest.index_bytes = 0;
  manifest.writers = WriterMap({0, 3, 4});
  EXPECT_EQ(parse_manifest(print_manifest(manifest), "m"), manifest);
}

TEST(ManifestOfShardings, DoesNotGrowWithItsPieces) {
  Manifest manifest = sample_manifest();
  const auto bytes_with = [&](std::int64_t devices) {
    TensorEntry& tensor = manifest.tensors[0];
    tensor.shape = {16'384, 4};
    tensor.sharding =
        Sharding(Mesh::parse("fsdp=" + std::to_string(devices)), PartitionSpec::parse("fsdp,-"));
    return print_manifest(manifest).size();
  };
  EXPECT_EQ(bytes_with(16'384), bytes_with(8) + 4);
}

TEST(ManifestOfShardings, WhatBreaksARuleIsRefused) {
  const std::string text = print_manifest(sample_manifest());
  const struct {
    const char *from, *to, *message;
  } cases[] = {
      {R"("count":2)", R"("count":0)", "writers: \"count\" is 0, needed is 1"},
      {R"("count":2)", R"("count":100000)", "needed is at most 99999"},
      {R"("devices":4)", R"("devices":0)", "writers: \"devices\" is 0"},
      {R"("devices":4)", R"("devices":1099511627777)",
       "\"devices\" is 1099511627777, needed is at most"},
      {R"("devices":4)", R"("starts":[0,4])",
       "\"starts\" has 2 integers, needed are 3 that begin with 0 and do not end with it"},
      {R"("devices":4)", R"("starts":[0,3,2])", "not a list of ascending integers"},
      {R"("devices":4)", R"("starts":[1,3,4])",
       "\"starts\" has 3 integers, needed are 3 that begin with 0 and do not end with it"},
      {R"("devices":4)", R"("starts":[0,0,0])",
       "\"starts\" has 3 integers, needed are 3 that begin with 0 and do not end with it"},
      {R"("devices":4)", R"("starts":[0,2,"4"])", "not a list of ascending integers"},
      {R"("data=2,model=2"])", R"(2])", "\"meshes\" holds a JSON number"},
      {R"("data=2,model=2"])", R"("data=0,model=2"])", "\"meshes\" holds \"data=0,model=2\""},
      {R"("data=2,model=2"])", R"("data=2,model=2@?"])", "it has no devices"},
      {R"("data=2,model=2"])", R"("data=2,model=2@0,1,2,4"])",
       "nobody writes what device 4 holds: the writers have devices 0 to 3"},
      {R"("mesh":0)", R"("mesh":1)", "tensor \"cut\": \"mesh\" is 1, there are 1"},
      {R"("mesh":0)", R"("mesh":"data=2")", "tensor \"cut\": \"mesh\""},
      {R"("spec":"data,model")", R"("spec":"data,pipe")", "tensor \"cut\""},
      {R"("spec":"data,model")", R"("spec":"data")", "its spec \"data\" has 1 dims"},
      {R"("policy":"sizes:3+2")", R"("policy":"sizes:3+3")", "tensor \"sizes\""},
      {R"("policy":"sizes:3+2")", R"("policy":"round")", "tensor \"sizes\""},
      {R"("writer":1,"box":[[0,1]])", R"("writer":2,"box":[[0,1]])",
       "tensor \"listed\": piece [0:1] has writer 2, needed is 0 to 1"},
      {R"("writer":0,"box":[[1,3]]},
{"writer":1,)",
       R"("writer":1,"box":[[1,3]]},{"writer":0,)", "piece [0:1] has writer 0, needed is 1 to 1"},
      {R"("writer":0,"box":[[1,3]])", R"("writer":0,"box":[[1,4]])",
       "tensor \"listed\": box [1:4] leaves the tensor's shape [3]"},
      {R"("writer":0,"box":[[1,3]])", R"("writer":0,"box":[[2,3]])", "tensor \"listed\""},
      {R"("writer":0,"box":[[1,3]])", R"("writer":0,"box":[[0,3]])", "tensor \"listed\""},
      {R"("writer":0,"box":[[1,3]])", R"("writer":0,"box":[])", "\"box\" has 0 dims"},
      {R"([9000,8192,"00000000000000010000000000000001"])", R"(7)", "file 1 is not [bytes,"},
      {R"([9000,8192,"00000000000000010000000000000001"])", R"([9000,8192,"0"])", "file 1 is not"},
      {R"([9000,8192,"00000000000000010000000000000001"])",
       R"([8000,8192,"00000000000000010000000000000001"])", "file 1 is not"},
      {R"([9000,8192,"00000000000000010000000000000001"])",
       R"([9000,100,"00000000000000010000000000000001"])", "file 1 is not"},
      {R"(,
[9000,8192,"00000000000000010000000000000001"])",
       "", "\"files\" has 1 entries, needed is one for each of 2 writers"},
      {R"("name":"cut")", R"("name":"mut")", "needed are sorted, distinct names"},
      {R"("shape":[8,4])", R"("shape":[4611686018427387904,4])", "tensor \"cut\""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.from) + " -> " + c.to);
    const std::string message = refused_text(manifest_with(text, c.from, c.to));
    EXPECT_THAT(message, HasSubstr(c.message));
    EXPECT_THAT(message, HasSubstr("read manifest dir/manifest.json: "));
  }
  EXPECT_THAT(
      refused_text(manifest_with(text, R"("version":2)", R"("version":3)"), ErrorCode::unsupported),
      HasSubstr("format version 3, needed is 2"));
}

TEST(ManifestOfShardings, MeshesThatNoListCanHoldAreRefused) {
  const std::string text = manifest_with(print_manifest(sample_manifest()), R"("data=2,model=2"])",
                                         R"("data=2,model=16777216"])");
  EXPECT_THAT(
      refused_text(text),
      HasSubstr("\"data=2,model=16777216\": it has 33554432 devices, needed is at most 16777216"));
}

}  // namespace
}  // namespace shardwise::detail
