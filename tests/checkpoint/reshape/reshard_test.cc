#include "shardwise/reshape/reshard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/random_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

HandMadeTensor tall_w() {
  return {.name = "w",
          .shape = {250, 300},
          .pieces = {Box({0, 0}, {125, 300}), Box({125, 0}, {250, 300})},
          .data = counting_values(DType::f32, {250, 300}),
          .chunk = {50, 300},
          .codec = detail::StoredCodec::zstd};
}

HandMadeTensor bias() {
  return {.name = "layer/bias",
          .dtype = DType::bf16,
          .shape = {30},
          .pieces = {Box({0}, {30})},
          .data = scattered_values(DType::bf16, {30})};
}

HandMadeTensor scalar() {
  return {.name = "s",
          .dtype = DType::i64,
          .pieces = {Box()},
          .data = scattered_values(DType::i64, {})};
}

std::vector<std::byte> all_of(const CheckpointReader& reader, const std::string& name) {
  std::vector<std::byte> out(reader.tensor(name).logical_bytes);
  reader.read(name, Box::whole(reader.tensor(name).shape), out);
  return out;
}

class Reshard : public testing::Test {
 protected:
  Reshard() {
    std::vector<HostTensor> tensors;
    for (const auto& [made, spec] :
         {std::pair(tall_w(), "data,-"), std::pair(bias(), "data"), std::pair(scalar(), "")}) {
      tensors.push_back(
          {made.name,
           {made.dtype, made.shape, Sharding(Mesh::parse("data=2"), PartitionSpec::parse(spec))},
           std::make_shared<const std::vector<std::byte>>(made.data)});
    }
    source_ = CheckpointManager(dir_ / "from")
                  .save(7, sources_of(tensors),
                        {.user_json = "{\"sample\": 12345678901234567890123}", .writers = 2})
                  .directory;
  }

  /// The same, of a checkpoint that is no step of a run.
  void make_it_no_step() {
    save_checkpoint(dir_ / "model.sw", {host_source("w", {2, 3}, values_)});
    source_ = dir_ / "model.sw";
  }

  SaveStats reshard(const char* mesh, const char* rules, ReshardOptions options = {}) {
    return reshard_checkpoint(source_, dir_ / "to", Mesh::parse(mesh), SpecRules::parse(rules),
                              options);
  }

  TempDir dir_;
  fs::path source_;
  const std::vector<float> values_{1, 2, 3, 4, 5, 6};
};

TEST_F(Reshard, OfWhatIsNoStepIsStep0) {
  make_it_no_step();
  const SaveStats stats = reshard("data=2", "w=data,-");
  EXPECT_EQ(stats.directory, dir_ / "to" / "step-00000000");
  EXPECT_EQ(CheckpointReader(stats.directory).read<float>("w"), values_);
}

TEST_F(Reshard, WritesTheSameTensorsCutOverAnotherMesh) {
  const SaveStats stats = reshard("data=2,model=3", "w=model,data; layer/*=data+model");
  EXPECT_EQ(stats.directory, dir_ / "to" / "step-00000007");
  EXPECT_EQ(stats.logical_bytes, 300'000u + 60u + 8u);
  EXPECT_TRUE(verify_checkpoint(stats.directory).ok());

  const CheckpointReader reader(stats.directory);
  EXPECT_EQ(reader.step(), 7);
  EXPECT_EQ(reader.user_json(), "{\"sample\": 12345678901234567890123}");
  ASSERT_EQ(reader.tensors().size(), 3u);
  EXPECT_EQ(reader.tensor("w").sharding->mesh().to_string(), "data=2,model=3");
  EXPECT_EQ(reader.tensor("w").sharding->spec().to_string(), "model,data");
  EXPECT_EQ(reader.tensor("w").pieces, 6);
  EXPECT_EQ(reader.tensor("layer/bias").pieces, 1) << "too small to be cut";
  EXPECT_EQ(all_of(reader, "w"), tall_w().data);
  EXPECT_EQ(all_of(reader, "layer/bias"), bias().data);
  EXPECT_EQ(all_of(reader, "s"), scalar().data);
}

TEST_F(Reshard, KeepsTheSpecsThatNoRuleChanges) {
  const CheckpointReader reader(reshard("data=5,model=1", "w=-,data").directory);
  EXPECT_EQ(reader.tensor("w").sharding->spec().to_string(), "-,data");
  EXPECT_EQ(reader.tensor("w").pieces, 5);
  EXPECT_EQ(reader.tensor("layer/bias").sharding->spec().to_string(), "data");
  EXPECT_EQ(reader.tensor("layer/bias").pieces, 1);
  EXPECT_EQ(reader.tensor("s").pieces, 1);
}

// "never silently exchanged", and nobody has said another policy.
TEST_F(Reshard, KeepsThePolicy) {
  const HostTensor tensor = host_tensor("w", DType::f32, {10, 4000}, "2", "-,-");
  const auto source = [&](const std::string& policy, const char* name = "w") {
    TensorSource made = sources_of({&tensor, 1}).front();
    made.name = name;
    made.sharding =
        Sharding(Mesh::parse("4,2"), PartitionSpec::parse("0,1"), UnevenPolicy::parse(policy));
    return made;
  };
  CheckpointManager manager(dir_ / "made");
  const SaveStats balanced = manager.save(1, {source("balanced"), source("ceil", "v")});
  EXPECT_EQ(CheckpointReader(balanced.directory).tensor("w").sharding->policy().to_string(),
            "balanced");
  EXPECT_EQ(CheckpointReader(balanced.directory).tensor("v").sharding->policy().to_string(),
            "ceil");
  const SaveStats turned =
      reshard_checkpoint(balanced.directory, dir_ / "to", Mesh::parse("3,2"), SpecRules());
  const CheckpointReader reader(turned.directory);
  EXPECT_EQ(reader.tensor("w").sharding->policy().to_string(), "balanced");
  EXPECT_EQ(reader.tensor("w").pieces, 6);
  EXPECT_EQ(all_of(reader, "w"), *tensor.data);
  EXPECT_TRUE(verify_checkpoint(turned.directory).ok());
  const SaveStats ruled = reshard_checkpoint(balanced.directory, dir_ / "ruled", Mesh::parse("3,2"),
                                             SpecRules::parse("w=0,1"));
  EXPECT_EQ(CheckpointReader(ruled.directory).tensor("w").sharding->policy().to_string(), "ceil");

  const SaveStats sizes = manager.save(2, {source("sizes:7+1+1+1,2000+2000")});
  const auto to = [&](const char* mesh) {
    return reshard_checkpoint(sizes.directory, dir_ / "sizes", Mesh::parse(mesh), SpecRules());
  };
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { to("3,2"); }),
              HasSubstr("tensor \"w\": "));
  EXPECT_EQ(CheckpointReader(to("4,2").directory).tensor("w").sharding->policy().to_string(),
            "sizes:7+1+1+1,2000+2000");
}

TEST_F(Reshard, KeepsObjectsIfNamesStay) {
  const HostTensor w = host_tensor("w", DType::f32, {30, 4}, "1", "-,-");
  const HostTensor bias = host_tensor("layer/bias", DType::bf16, {30}, "1", "-");
  source_ = CheckpointManager(dir_ / "with objects")
                .save(8, sources_of(std::vector{w, bias}), {.objects_json = "{\"about\": \"w\"}"})
                .directory;
  ReshardOptions options;
  options.edits.casts = {{"w", DType::f64}};
  const CheckpointReader cast(reshard("data=3", "*=-", options).directory);
  EXPECT_EQ(cast.objects_json(), "{\"about\": \"w\"}");
  EXPECT_EQ(cast.tensor("w").dtype, DType::f64);
  options.save.existing = Existing::replace;
  options.edits = {.renames = {{"layer/*", "*"}}};
  const CheckpointReader renamed(reshard("data=3", "bias=data; *=-", options).directory);
  EXPECT_EQ(renamed.objects_json(), "");
  EXPECT_EQ(renamed.tensor("bias").sharding->spec().to_string(), "data") << "rules see new names";
  EXPECT_EQ(all_of(renamed, "bias"), *bias.data);
}

TEST_F(Reshard, RefusesRulesThatMatchNothing) {
  EXPECT_EQ(
      message_of(ErrorCode::invalid_argument,
                 [&] { reshard("data=2", "weight=-,data; layer/*=-; *=-; w=-,-"); }),
      "reshard " + source_.string() + " to mesh data=2: rule \"weight\" matches none of 3 tensors");
  EXPECT_FALSE(fs::exists(dir_ / "to"));
}

TEST_F(Reshard, ListsAllTensorsThatDoNotFitBeforeItReads) {
  const std::string message = message_of(
      ErrorCode::invalid_argument, [&] { reshard("model=2", "w=model; s=-; *=model+model"); });
  EXPECT_THAT(message, AllOf(HasSubstr("2 of 3 tensors do not fit"), HasSubstr("mesh model=2"),
                             HasSubstr("tensor \"w\": needed is a spec of 2 dims, found are 1 "
                                       "(rule \"w=model\")"),
                             HasSubstr("tensor \"layer/bias\": ")));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { reshard("model=2", ""); }),
              HasSubstr("tensors \"layer/bias\", \"w\": no axis \"data\" in mesh model=2 "
                        "(stored spec \"data\", as no rule matches)"));
  EXPECT_FALSE(fs::exists(dir_ / "to"));
}

// Files that are written there would be no part of the checkpoint, and damage to verify.
TEST_F(Reshard, RefusesATargetInsideACheckpoint) {
  const fs::path step = reshard("data=2", "").directory;
  fs::create_directory_symlink(step, dir_ / "link");
  const fs::path attempt =
      dir_ / "to" / detail::attempt_name(detail::attempt_stem(7, std::string(32, 'a')));
  fs::create_directories(attempt);
  for (const fs::path& root : {step, step / "a" / "b", dir_ / "link", attempt / "c"}) {
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument,
                   [&] { reshard_checkpoint(source_, root, Mesh::parse("data=2"), SpecRules()); }),
        AllOf(HasSubstr("reshard into " + root.string()), HasSubstr("is a checkpoint")));
  }
  EXPECT_TRUE(verify_checkpoint(step).ok());
  // A name alone makes no checkpoint.
  reshard_checkpoint(source_, dir_ / "step-00000001", Mesh::parse("data=2"), SpecRules());
}

TEST_F(Reshard, RefusesAStepThatIsThereUnlessItReplacesIt) {
  reshard("data=2", "");
  message_of(ErrorCode::already_exists, [&] { reshard("data=3", ""); });
  ReshardOptions options;
  options.save.existing = Existing::replace;
  const SaveStats stats = reshard("data=3", "", options);
  EXPECT_EQ(stats.directory.filename(), "step-00000007.g2");
  EXPECT_EQ(CheckpointReader(stats.directory).tensor("w").sharding->mesh().to_string(), "data=3");
}

TEST_F(Reshard, LeavesNothingWhereTheSourceIsDamaged) {
  HandMadeCheckpoint made({tall_w()}, 1, 7);
  made.files[0].bytes[made.files[0].records[3].address + 9] ^= std::byte{1};
  source_ = made.write(dir_ / "damaged");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { reshard("data=3", "w=-,data"); }),
              HasSubstr("tensor \"w\" chunk 3 [125:175, 0:300]"));
  EXPECT_TRUE(CheckpointManager(dir_ / "to").steps().empty());
  EXPECT_TRUE(fs::is_empty(dir_ / "to"));
  message_of(ErrorCode::not_found, [&] {
    reshard_checkpoint(dir_ / "nowhere", dir_ / "to", Mesh::line(1), SpecRules());
  });
}

TEST_F(Reshard, ReportsTheProgressOfTheWhole) {
  Progress last;
  ReshardOptions options;
  options.save.progress = [&](const Progress& p) { last = p; };
  reshard("data=3", "", options);
  EXPECT_EQ(last.done_bytes, last.total_bytes);
  EXPECT_EQ(last.total_bytes, 300'068u);
}

// From A to B and back: the same bits, whatever the meshes, with a cache that holds next to nothing
// and with one that holds all.
TEST(ReshardRandom, ThereAndBackIsTheIdentity) {
  RandomCheckpoints random(21);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<HandMadeTensor> tensors;
    for (std::int64_t t = random.draw(1, 3); t > 0; --t) {
      tensors.push_back(random.tensor("t" + std::to_string(t)));
    }
    const TempDir dir;
    const fs::path a = HandMadeCheckpoint(tensors, 2).write(dir / "a");
    const auto rules = [&](const Mesh& mesh) {
      std::string text;
      for (const HandMadeTensor& tensor : tensors) {
        const std::size_t rank = tensor.shape.size();
        text += tensor.name + "=" + random.spec(mesh, rank).to_string() + "\n";
      }
      return SpecRules::parse(text);
    };
    ReshardOptions options;
    options.threads = 2;
    options.save.memory_budget_bytes = std::size_t{8} << (random.draw(0, 1) == 0 ? 20 : 23);
    const Mesh there = random.mesh(), back = random.mesh();
    const fs::path b = reshard_checkpoint(a, dir / "b", there, rules(there), options).directory;
    const fs::path c = reshard_checkpoint(b, dir / "c", back, rules(back), options).directory;
    for (const fs::path& path : {b, c}) {
      EXPECT_TRUE(verify_checkpoint(path, {.threads = 2}).ok());
      const CheckpointReader reader(path);
      for (const HandMadeTensor& tensor : tensors) {
        EXPECT_EQ(all_of(reader, tensor.name), tensor.data) << tensor.name;
      }
    }
  }
}

}  // namespace
}  // namespace shardwise
