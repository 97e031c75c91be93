#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "convert/memory_model.h"
#include "convert/weight_bytes.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/convert/model.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Every dtype, no elements, scalars, 16 dims, odd names.
Model mixed_model() {
  std::vector<HostTensor> tensors;
  std::uint64_t seed = 1;
  for (const DType dtype : all_dtypes()) {
    if (dtype == DType::c128) continue;  // which the format has not
    const std::string type(name(dtype));
    tensors.push_back(whole_tensor(type + "/matrix", dtype, {7, 5}, seed++));
    tensors.push_back(whole_tensor(type + "/scalar", dtype, {}, seed++));
    tensors.push_back(whole_tensor(type + "/empty", dtype, {3, 0}, seed++));
  }
  tensors.push_back(whole_tensor("dims", DType::u8, Shape(Dims::filled(16, 1)), seed++));
  for (const char* name : {"\u00e4", "\U0001F600", "a \"b\"", "a\\b", "\u2028", "layers.0.w"}) {
    tensors.push_back(whole_tensor(name, DType::f32, {3}, seed++));
  }
  return Model(std::move(tensors));
}

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

int renames = 0;  // of a child process

std::vector<std::string> names_in(const fs::path& folder) {
  return posix_file_system()->list(folder);
}

// Written down by hand from the format's description: greater alignment first, then by name;
// the header is filled up with blanks.
TEST(Export, TheBytesAreThoseOfTheFormat) {
  const TempDir dir;
  const auto tensor = [](const char* name, DType dtype, Shape shape, std::vector<int> values) {
    std::vector<std::byte> data;
    for (const int value : values) data.push_back(static_cast<std::byte>(value));
    return HostTensor{name,
                      {dtype, shape, Sharding::replicated(Mesh::line(1), shape.size())},
                      std::make_shared<const std::vector<std::byte>>(std::move(data))};
  };
  const Model model({tensor("flag", DType::boolean, {3}, {1, 0, 1}),
                     tensor("b", DType::f32, {1}, {0, 0, 128, 63}),
                     tensor("a", DType::f32, {}, {0, 0, 0, 64}),
                     tensor("n", DType::i64, {1, 1}, {7, 0, 0, 0, 0, 0, 0, 0})});
  export_model(model, dir / "m.safetensors", {.metadata = "{\"format\": \"pt\"}"});
  std::string header =
      R"({"__metadata__":{"format":"pt"},"n":{"dtype":"I64","shape":[1,1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]},)"
      R"("flag":{"dtype":"BOOL","shape":[3],"data_offsets":[16,19]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string data(
      "\7\0\0\0\0\0\0\0"
      "\0\0\0\x40"
      "\0\0\x80\x3f"
      "\1\0\1",
      19);
  EXPECT_EQ(bytes_of(dir / "m.safetensors"), weight_bytes(header, data));
  EXPECT_THAT(names_in(dir.path()), ElementsAre("m.safetensors"));
}

TEST(Export, AllKindsOfTensorsComeBack) {
  const TempDir dir;
  const Model model = mixed_model();
  const ExportStats one = export_model(model, dir / "m.safetensors");
  expect_same(model, ModelReader(dir / "m.safetensors"));
  EXPECT_EQ(one.file_bytes, fs::file_size(dir / "m.safetensors"));
  EXPECT_THAT(one.files, ElementsAre(dir / "m.safetensors"));

  export_model(model, dir / "folder");
  EXPECT_THAT(names_in(dir / "folder"), ElementsAre("model.safetensors"));
  EXPECT_EQ(bytes_of(dir / "folder/model.safetensors"), bytes_of(dir / "m.safetensors"));

  const ExportStats several = export_model(model, dir / "shards/", {.max_shard_bytes = 100});
  expect_same(model, ModelReader(dir / "shards"));
  ASSERT_GT(several.files.size(), 5u);
  EXPECT_EQ(several.logical_bytes, one.logical_bytes);
  EXPECT_EQ(several.files[0].filename(),
            "model-00001-of-000" + std::to_string(several.files.size()) + ".safetensors");
  EXPECT_EQ(names_in(dir / "shards").size(), several.files.size() + 1);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("folder", "m.safetensors", "shards"));
}

TEST(Export, AFileHasNoMoreThanItMay) {
  const TempDir dir;
  const Model model({whole_tensor("a", DType::u8, {60}), whole_tensor("b", DType::u8, {40}),
                     whole_tensor("c", DType::u8, {1}), whole_tensor("d", DType::u8, {1000}),
                     whole_tensor("e", DType::u8, {0}), whole_tensor("f", DType::u8, {100})});
  export_model(model, dir / "m", {.max_shard_bytes = 100});
  const std::string text = bytes_of(dir / "m/model.safetensors.index.json");
  const char* const expected = R"({
  "metadata": {
    "total_size": 1201
  },
  "weight_map": {
    "a": "model-00001-of-00004.safetensors",
    "b": "model-00001-of-00004.safetensors",
    "c": "model-00002-of-00004.safetensors",
    "d": "model-00003-of-00004.safetensors",
    "e": "model-00003-of-00004.safetensors",
    "f": "model-00004-of-00004.safetensors"
  }
}
)";
  EXPECT_EQ(text, expected);
}

TEST(Export, LargeTensorsAreWrittenSlabBySlab) {
  const TempDir dir;
  const Model model({whole_tensor("large", DType::f32, {3, 900'000}),  // 10.8 MB in a buffer of 4
                     whole_tensor("small", DType::f32, {5})});
  std::size_t calls = 0, done = 0;
  export_model(model, dir / "m.safetensors",
               {.memory_budget_bytes = 8 << 20, .progress = [&](const Progress& progress) {
                  ++calls;
                  EXPECT_GT(progress.done_bytes, done);
                  done = progress.done_bytes;
                  EXPECT_EQ(progress.total_bytes, 10'800'020u);
                }});
  EXPECT_EQ(done, 10'800'020u);
  EXPECT_EQ(calls, 4u);
  expect_same(model, ModelReader(dir / "m.safetensors"));
}

TEST(Export, ACheckpointComesBackWithItsUserData) {
  const TempDir dir;
  const Model model = mixed_model();
  const auto save = [&](std::int64_t step, const BoxReader& source, const std::string& user) {
    return reshard_checkpoint(source, {dir / "root", step}, Mesh::parse("x=3"),
                              SpecRules::parse("*/matrix=x,-"), {.save = {.user_json = user}})
        .directory;
  };
  const fs::path first = save(1, model, "{\"lr\": 0.10}");
  export_model(first, dir / "m.safetensors", {.metadata = R"({"format":"pt"})"});
  const ModelReader weights(dir / "m.safetensors");
  EXPECT_EQ(weights.metadata(), R"({"format":"pt","user":"{\"lr\": 0.10}"})");
  EXPECT_EQ(weights.user_json(), "{\"lr\": 0.10}");
  expect_same(model, weights);
  const fs::path second = save(2, weights, weights.user_json());
  EXPECT_TRUE(verify_checkpoint(second).ok());
  EXPECT_EQ(CheckpointReader(second).user_json(), "{\"lr\": 0.10}");
  expect_same(CheckpointReader(first), CheckpointReader(second));
  // Without user data nothing is added.
  export_model(save(3, model, "{}"), dir / "plain.safetensors");
  EXPECT_EQ(ModelReader(dir / "plain.safetensors").metadata(), "{}");
}

TEST(Export, AnExistingTargetGivesWayOnlyWhenAsked) {
  const TempDir dir;
  const Model before({whole_tensor("a", DType::u8, {3})}),
      after({whole_tensor("b", DType::u8, {4})});
  for (const char* name : {"m.safetensors", "m"}) {
    export_model(before, dir / name);
    EXPECT_THAT(
        message_of(ErrorCode::already_exists, [&] { export_model(after, dir / name); }),
        AllOf(HasSubstr(name), HasSubstr("it exists: Existing::replace replaces it, Existing::skip "
                                         "writes nothing")));
    EXPECT_THAT(export_model(after, dir / name, {.existing = Existing::skip}).files,
                testing::IsEmpty());
    expect_same(before, ModelReader(dir / name));
    export_model(after, dir / name, {.existing = Existing::replace});
    expect_same(after, ModelReader(dir / name));
  }
  EXPECT_THAT(names_in(dir.path()), ElementsAre("m", "m.safetensors"));
  const auto skip = [&](const fs::path& target) {
    return message_of(ErrorCode::already_exists,
                      [&] { export_model(after, target, {.existing = Existing::skip}); });
  };
  const TempDir others;
  fs::create_directory(others / "m");
  fs::create_symlink("nowhere", others / "l.safetensors");
  write_file(others / "t.safetensors", "text");
  for (const char* name : {"m", "l.safetensors", "t.safetensors"}) {
    EXPECT_THAT(skip(others / name), HasSubstr("Existing::skip needs a whole export there"));
  }

  const auto replace = [&](const char* name) {
    return message_of(ErrorCode::already_exists,
                      [&] { export_model(after, dir / name, {.existing = Existing::replace}); });
  };
  write_file(dir / "m/config.json", "{}");
  EXPECT_THAT(replace("m"), HasSubstr("holds \"config.json\", too"));
  write_file(dir / "plain", "text");
  EXPECT_THAT(replace("plain"), HasSubstr("is no folder"));
  fs::create_directory(dir / "d.safetensors");
  EXPECT_THAT(replace("d.safetensors"), HasSubstr("is no file"));
  EXPECT_EQ(names_in(dir.path()).size(), 4u);
}

TEST(Export, BadArgumentsLeaveNothing) {
  const TempDir dir;
  const Model model({whole_tensor("a", DType::u8, {30}), whole_tensor("b", DType::u8, {40})});
  const auto refused = [&](ErrorCode code, const char* target, const ExportOptions& options) {
    return message_of(code, [&] { export_model(model, dir / target, options); });
  };
  EXPECT_THAT(refused(ErrorCode::invalid_argument, "m.safetensors", {.max_shard_bytes = 30}),
              HasSubstr("2 files are needed"));
  EXPECT_THAT(refused(ErrorCode::invalid_argument, "m", {.metadata = "{\"a\": 1}"}),
              HasSubstr("needed is a JSON object of strings"));
  EXPECT_THAT(refused(ErrorCode::invalid_argument, "m", {.memory_budget_bytes = 1}),
              HasSubstr("needed are at least 8388608"));
  EXPECT_THAT(refused(ErrorCode::not_found, "no/m", {}), HasSubstr("no"));
  const Model reserved({whole_tensor("__metadata__", DType::u8, {1})});
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { export_model(reserved, dir / "m"); }),
              HasSubstr("__metadata__"));
  const Model twice({whole_tensor("w", DType::u8, {1}), whole_tensor("w", DType::u8, {1})});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { export_model(twice, dir / "m"); }),
              HasSubstr("tensor \"w\" is there twice"));
  EXPECT_THAT(names_in(dir.path()), ElementsAre());
}

// Where this build has a dtype that safetensors has not.
TEST(Export, DTypesThatSafetensorsHasNotAreAllNamed) {
  const TempDir dir;
  std::vector<HostTensor> tensors{whole_tensor("good", DType::f32, {2})};
  for (const DType dtype : all_dtypes()) {
    if (name(dtype) != "c128") continue;
    for (const char* name : {"x", "y"}) {
      tensors.push_back({name,
                         {dtype, {2}, Sharding::replicated(Mesh::line(1), 1)},
                         std::make_shared<const std::vector<std::byte>>(32)});
    }
  }
  const Model model(tensors);
  if (tensors.size() == 1) return;
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { export_model(model, dir / "m"); }),
              HasSubstr("no dtype c128 of \"x\", \"y\""));
  EXPECT_THAT(names_in(dir.path()), ElementsAre());
}

TEST(Export, WhateverFailsLeavesWhatWasThere) {
  const TempDir dir;
  const Model before({whole_tensor("a", DType::u8, {3})});
  const Model after({whole_tensor("b", DType::u8, {50}), whole_tensor("c", DType::u8, {50})});
  export_model(before, dir / "m");
  int trial = 0;
  const char* const formats[] = {"safetensors", "npz", "hdf5"};
  for (const char* failing : {"create", "make directory", "sync directory", "list"}) {
    for (int nth = 0; nth < 4; ++nth) {
      const char* const format = formats[trial++ % 3];
      int seen = 0;
      const auto fail = [&](std::string_view operation, const fs::path&) {
        if (operation == failing && seen++ == nth) throw Error(ErrorCode::io, "No space left");
      };
      const auto files = std::make_shared<HookedFileSystem>(fail);
      try {
        export_model(after, dir / "new",
                     {.format = format, .max_shard_bytes = 60, .file_system = files});
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
      }
      expect_same(before, ModelReader(dir / "m"));
      if (fs::exists(dir / "new")) expect_same(after, ModelReader(dir / "new"));
      fs::remove_all(dir / "new");
      EXPECT_THAT(names_in(dir.path()), ElementsAre("m")) << failing << " " << nth;
    }
  }
}

TEST(Export, WhereFilesCannotBeExchangedTheOldOneIsMovedAside) {
  const TempDir dir;
  const Model before({whole_tensor("a", DType::u8, {3})}),
      after({whole_tensor("b", DType::u8, {4})});
  int refused = 0;
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path&) {
        if (operation != "exchange") return;
        ++refused;
        throw Error(ErrorCode::unsupported, "exchange: no such call");
      });
  for (const char* name : {"m.safetensors", "m"}) {
    export_model(before, dir / name);
    export_model(after, dir / name, {.existing = Existing::replace, .file_system = files});
    expect_same(after, ModelReader(dir / name));
  }
  EXPECT_EQ(refused, 2);
  EXPECT_THAT(names_in(dir.path()), ElementsAre("m", "m.safetensors"));
}

TEST(Export, ACancelledOneLeavesNothing) {
  const TempDir dir;
  const Model model({whole_tensor("a", DType::u8, {3})});
  const auto cancel = [](const Progress&) { throw Error(ErrorCode::cancelled, "stopped"); };
  for (const char* name : {"m.safetensors", "m.npz", "m.h5", "m"}) {
    message_of(ErrorCode::cancelled,
               [&] { export_model(model, dir / name, {.progress = cancel}); });
  }
  EXPECT_THAT(names_in(dir.path()), ElementsAre());
}

// A killed export leaves its hidden directory and the lease of a process that is no more.
TEST(Export, WhatAKilledOneLeftIsRemovedByTheNext) {
  for (const bool to_file : {true, false}) {
    const TempDir dir;
    const fs::path target = dir / (to_file ? "m.safetensors" : "m");
    const pid_t child = ::fork();
    if (child == 0) {
      const auto files =
          std::make_shared<HookedFileSystem>([](std::string_view operation, const fs::path&) {
            if (operation == "rename" && std::exchange(renames, renames + 1) == 1) ::_exit(0);
          });
      export_model(mixed_model(), target, {.threads = 1, .file_system = files});
      ::_exit(1);
    }
    int status = 1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0) << "it died when the target was to get its name";
    EXPECT_EQ(names_in(dir.path()).size(), 2u) << "the directory and its lease";
    export_model(mixed_model(), target);
    EXPECT_THAT(names_in(dir.path()), ElementsAre(target.filename().string()));
  }
}

TEST(Export, NothingIsWrittenIntoACheckpoint) {
  const TempDir dir;
  const Model model({whole_tensor("a", DType::u8, {3})});
  const fs::path step =
      reshard_checkpoint(model, {dir.path(), 1}, Mesh::parse("x=1"), SpecRules()).directory;
  for (const char* name : {"m.safetensors", "m"}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { export_model(step, step / name); }),
                HasSubstr("inside a checkpoint"));
  }
}

}  // namespace
}  // namespace shardwise
