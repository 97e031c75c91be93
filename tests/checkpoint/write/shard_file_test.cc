#include "shardwise/checkpoint/detail/write/shard_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/only_layout.h"
#include "testing/raw_hdf5.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

struct Written {
  SavePlan plan;
  WrittenShardFile file;
};

Written write(const TempDir& dir, const std::string& name, std::span<const HostTensor> tensors,
              Codec codec, int threads, std::size_t budget_bytes = std::size_t{64} << 20) {
  const Executor executor(threads);
  Written written{plan_save(sources_of(tensors), codec, executor), {}};
  const ChunkLayout layout = only_layout(written.plan);
  StagingPool pool(staging_sizes(budget_bytes, threads, layout.most_bytes()));
  const auto files = posix_file_system();
  written.file = write_shard_file(written.plan, 0, layout, nullptr,
                                  *files->create(dir / name, Caching::direct), pool, {});
  return written;
}

// Odd extents, edge chunks, whole dims, scalars, empty tensors, all types, compressed or not.
std::vector<HostTensor> odd_tensors() {
  std::vector<HostTensor> tensors;
  for (const DType dtype : all_dtypes()) {
    const std::string type(name(dtype));
    tensors.push_back(host_tensor(type + "/big", dtype, {601, 443}, "data=4,model=2", "data,-"));
    tensors.push_back(host_tensor(type + "/ramp", dtype, {3, 233, 301}, "data=4,model=2",
                                  "-,-,model", Values::ramp));
    tensors.push_back(host_tensor(type + "/small", dtype, {7, 5}, "data=4,model=2", "data,model"));
    tensors.push_back(host_tensor(type + "/scalar", dtype, {}, "data=4,model=2", ""));
    tensors.push_back(host_tensor(type + "/none", dtype, {4, 0}, "data=4,model=2", "data,-"));
  }
  return tensors;
}

TEST(ShardFile, PlainHdf5ReadsEveryPieceOfEveryType) {
  for (const Codec codec : {Codec::none, Codec::zstd, Codec::automatic}) {
    SCOPED_TRACE(name(codec));
    const TempDir dir;
    std::vector<HostTensor> tensors = odd_tensors();
    std::sort(tensors.begin(), tensors.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    const Written written = write(dir, "s.h5", tensors, codec, 2);
    const Hdf5Lock lock;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const TensorEntry& entry = written.plan.tensors[t];
      ASSERT_EQ(entry.name, tensors[t].name);
      for (const PieceEntry& piece : entry.pieces) {
        SCOPED_TRACE(entry.name + to_string(piece.box));
        const RawDataset raw = read_raw(dir / "s.h5", piece.dataset.path());
        EXPECT_EQ(raw.shape, piece.box.shape());
        EXPECT_TRUE(raw.data == tensors[t].part(piece.box));
        EXPECT_GT(H5Tequal(raw.type.get(), hdf5_type(entry.dtype).get()), 0);
      }
    }
  }
}

// The same arrays written by plain H5Dwrite: same types, extents and values.
TEST(ShardFile, EqualsWhatPlainHdf5Writes) {
  const TempDir dir;
  std::mt19937_64 random(3);
  std::vector<HostTensor> tensors;
  for (std::size_t i = 0; i < 300; ++i) {
    const auto all = all_dtypes();
    const DType dtype = all[random() % all.size()];
    Shape shape;
    const std::size_t rank = random() % 5;
    std::int64_t room = random() % 8 == 0 ? 400'000 : 20'000;
    for (std::size_t d = 0; d < rank; ++d) {
      shape.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room)));
      room = std::max<std::int64_t>(room / shape[d], 1);
    }
    PartitionSpec spec = PartitionSpec::replicated(rank);
    std::string text = spec.to_string();
    if (rank > 0 && random() % 2 == 0) text.replace(0, 1, random() % 2 == 0 ? "a" : "a+b");
    tensors.push_back(host_tensor("t" + std::to_string(1000 + i), dtype, shape, "a=3,b=2", text,
                                  random() % 2 == 0 ? Values::ramp : Values::noise, i));
  }
  const Written written = write(dir, "s.h5", tensors, Codec::automatic, 2);
  const Hdf5Lock lock;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    for (const PieceEntry& piece : written.plan.tensors[t].pieces) {
      SCOPED_TRACE(tensors[t].name + " " + to_string(tensors[t].spec.shape) + to_string(piece.box));
      write_raw(dir / "reference.h5", tensors[t].spec.dtype, piece.box.shape(),
                tensors[t].part(piece.box));
      const RawDataset ours = read_raw(dir / "s.h5", piece.dataset.path());
      const RawDataset reference = read_raw(dir / "reference.h5", "/data");
      EXPECT_EQ(ours.shape, reference.shape);
      EXPECT_GT(H5Tequal(ours.type.get(), reference.type.get()), 0);
      EXPECT_TRUE(ours.data == reference.data);
    }
  }
}

TEST(ShardFile, IsTheSameByteByByteForAnyThreadsAndBudget) {
  const TempDir dir;
  const std::vector<HostTensor> tensors = odd_tensors();
  write(dir, "one.h5", tensors, Codec::automatic, 1, kLeastBudgetBytes);
  write(dir, "four.h5", tensors, Codec::automatic, 4);
  write(dir, "budget.h5", tensors, Codec::automatic, 4, kLeastBudgetBytes);
  const std::vector<std::byte> one = file_bytes(dir / "one.h5");
  EXPECT_TRUE(one == file_bytes(dir / "four.h5"));
  EXPECT_TRUE(one == file_bytes(dir / "budget.h5"));
}

// Every byte is hashed or known to be zero: nothing in the file is unaccounted for.
TEST(ShardFile, EntryAndTableDescribeEveryByte) {
  const TempDir dir;
  const Written written = write(dir, "s.h5", odd_tensors(), Codec::automatic, 2);
  const FileEntry& entry = written.file.entry;
  const std::vector<std::byte> bytes = file_bytes(dir / "s.h5");
  ASSERT_EQ(bytes.size(), entry.bytes);
  EXPECT_EQ(entry.data_begin % 4096, 0u);
  EXPECT_EQ(entry.data_end % 4096, 0u);
  Hasher128 structure;
  structure.update(bytes.data(), entry.data_begin);
  structure.update(bytes.data() + entry.data_end, entry.bytes - entry.data_end);
  EXPECT_EQ(structure.digest(), entry.structure_hash);

  const std::size_t table_bytes = written.file.table.records.size() * sizeof(ChunkRecord);
  EXPECT_EQ(hash64(bytes.data() + entry.table_address, table_bytes), entry.table_hash);
  EXPECT_EQ(std::memcmp(bytes.data() + entry.table_address, written.file.table.records.data(),
                        table_bytes),
            0);
  std::vector<bool> known(bytes.size());
  const auto mark = [&](std::uint64_t begin, std::uint64_t size) {
    for (std::uint64_t i = begin; i < begin + size; ++i) {
      EXPECT_FALSE(known[i]) << i;
      known[i] = true;
    }
  };
  mark(0, entry.data_begin);
  mark(entry.data_end, entry.bytes - entry.data_end);
  mark(entry.table_address, table_bytes);
  mark(entry.data_end - kDescriptionBytes, kDescriptionBytes);
  EXPECT_EQ(hash128(bytes.data() + entry.data_end - kDescriptionBytes, kDescriptionBytes),
            entry.description_hash);
  EXPECT_EQ(hash64(bytes.data() + entry.pieces_address, entry.pieces_words * sizeof(std::uint64_t)),
            entry.pieces_hash);
  std::set<std::uint32_t> masks;
  std::size_t stored = 0;
  for (const ChunkRecord& record : written.file.table.records) {
    EXPECT_EQ(record.address % 64, 0u);
    EXPECT_EQ(hash64(bytes.data() + record.address, record.stored_bytes), record.hash);
    mark(record.address, record.stored_bytes);
    masks.insert(record.filter_mask);
    stored += record.stored_bytes;
  }
  EXPECT_EQ(stored, written.file.entry.stored_bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    ASSERT_TRUE(known[i] || bytes[i] == std::byte{0}) << i;
  }
  const Hdf5Lock lock;
  const RawDataset table = read_raw(dir / "s.h5", "/chunk_table");
  EXPECT_EQ(table.data.size(), table_bytes);
  EXPECT_EQ(std::memcmp(table.data.data(), written.file.table.records.data(), table_bytes), 0);
}

// Chunks that do not shrink are stored as they are, in one file with chunks that do.
TEST(ShardFile, StoresChunksThatDoNotShrinkAsTheyAre) {
  const TempDir dir;
  HostTensor tensor = host_tensor("t", DType::u8, {4 << 20}, "", "-");
  auto data = std::make_shared<std::vector<std::byte>>(*tensor.data);
  std::mt19937_64 random(5);
  for (std::size_t i = 0; i < data->size() / 2; ++i) (*data)[i] = static_cast<std::byte>(random());
  for (std::size_t i = data->size() / 2; i < data->size(); ++i) (*data)[i] = std::byte{1};
  tensor.data = data;
  const Written written = write(dir, "s.h5", std::span(&tensor, 1), Codec::zstd, 2);
  ASSERT_EQ(written.file.table.records.size(), 4u);
  EXPECT_EQ(written.file.table.records[0].filter_mask, 3u);
  EXPECT_EQ(written.file.table.records[0].stored_bytes, std::uint64_t{1} << 20);
  EXPECT_EQ(written.file.table.records[3].filter_mask, 0u);
  EXPECT_LT(written.file.table.records[3].stored_bytes, 1000u);
  const Hdf5Lock lock;
  EXPECT_TRUE(read_raw(dir / "s.h5", "/tensors/0/0").data == *data);
}

// 2,000 tensors of one number share pages and buffers.
TEST(ShardFile, TinyTensorsLieCloseTogether) {
  const TempDir dir;
  std::vector<HostTensor> tensors;
  for (int i = 0; i < 2000; ++i) {
    tensors.push_back(host_tensor("t" + std::to_string(10000 + i), DType::i64, {2}, "", "-",
                                  Values::ramp, static_cast<std::uint64_t>(i)));
  }
  const Written written = write(dir, "s.h5", tensors, Codec::automatic, 2);
  EXPECT_LE(written.file.entry.table_address - written.file.entry.data_begin, 2000u * 64 + 4096);
  const Hdf5Lock lock;
  EXPECT_TRUE(read_raw(dir / "s.h5", "/tensors/1999/0").data == *tensors[1999].data);
}

// Enough chunks that HDF5 keeps their places in pages.
TEST(ShardFile, PlainHdf5FindsEachOfManyChunks) {
  constexpr std::int64_t kChunks = 1500;
  constexpr std::int64_t kStep = std::int64_t{1} << 20;
  const TempDir dir;
  const TensorSource source = callback_tensor(
      "t", {DType::u8, {kChunks * kStep}, Sharding::replicated(Mesh::line(1), 1)},
      [](const Box& box, std::span<std::byte> out) {
        std::memset(out.data(), static_cast<int>(box.begin(0) / kStep % 251), out.size());
      });
  const Executor executor(2);
  const SavePlan plan = plan_save({source}, Codec::zstd, executor);
  ASSERT_EQ(plan.chunks, kChunks);
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(std::size_t{64} << 20, 2, layout.most_bytes()));
  const auto files = posix_file_system();
  write_shard_file(plan, 0, layout, nullptr, *files->create(dir / "s.h5", Caching::direct), pool,
                   {});
  EXPECT_LT(std::filesystem::file_size(dir / "s.h5"), std::size_t{8} << 20);

  const Hdf5Lock lock;
  EXPECT_EQ(read_raw(dir / "s.h5", "/chunk_table").shape, Shape{kChunks});
  const H5File file(H5Fopen((dir / "s.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), "open");
  const H5Dataset dataset(H5Dopen2(file.get(), "/tensors/0/0", H5P_DEFAULT), "open");
  const H5Space space(H5Dget_space(dataset.get()), "space");
  const hsize_t begin = 5, stride = kStep, count = kChunks;
  check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &begin, &stride, &count, nullptr),
             "select");
  const H5Space memory = hdf5_space({kChunks});
  std::vector<std::uint8_t> found(kChunks);
  check_hdf5(
      H5Dread(dataset.get(), H5T_STD_U8LE, memory.get(), space.get(), H5P_DEFAULT, found.data()),
      "read");
  for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], i % 251) << i;
}

TEST(ShardFile, DoesNotOpenBeforeItIsFinished) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("t", DType::f32, {3 << 20}, "", "-");
  const Executor executor(2);
  const HostTensor one[] = {tensor};
  const SavePlan plan = plan_save(sources_of(one), Codec::none, executor);
  const ChunkLayout layout = only_layout(plan);
  StagingPool pool(staging_sizes(kLeastBudgetBytes, 2, layout.most_bytes()));
  const auto files = posix_file_system();
  int calls = 0;
  const auto look = [&](const Progress& progress) {
    ++calls;
    EXPECT_EQ(progress.total_bytes, std::size_t{12} << 20);
    const Hdf5Lock lock;
    EXPECT_THROW(read_raw(dir / "s.h5", "/tensors/0/0"), Error);
  };
  write_shard_file(plan, 0, layout, nullptr, *files->create(dir / "s.h5", Caching::direct), pool,
                   look);
  EXPECT_GE(calls, 1);
  const Hdf5Lock lock;
  EXPECT_TRUE(read_raw(dir / "s.h5", "/tensors/0/0").data == *tensor.data);
}

}  // namespace
}  // namespace shardwise::detail
