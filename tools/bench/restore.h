#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/data.h"
#include "bench/raw_io.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::tools {

struct RestoreBenchOptions {
  std::optional<std::string> mesh, spec;  ///< absent: as saved
  int repeat = 5, threads = 0;
  bool cold = false;          ///< drops the files from the page cache before each measurement
  bool fresh_memory = false;  ///< memory of earlier rounds has gone back to the system
};

/// Measurements of the rounds, each taken after its raw reads.
struct MeasuredRestores {
  std::vector<double> raw_seconds;
  std::vector<double> restore_seconds, open_seconds;  ///< opening is part of restoring
  std::optional<std::size_t> peak_host_bytes;         ///< beyond the arrays
  std::optional<bool> verified;                       ///< absent: nothing to compare with
  std::string difference;                             ///< why not verified
  ReadStats stats;                                    ///< of one restore
};

/// Restores a checkpoint again and again, and reads its files to compare. Thread-compatible.
class RestoreBench {
 public:
  /// Throws invalid_argument if mesh or spec do not fit a tensor, resource_exhausted if there is
  /// too little memory, and as CheckpointReader does.
  RestoreBench(const std::filesystem::path& directory, RestoreBenchOptions options);

  /// Compares the first restore with what bench save wrote; no more rounds if it differs. Throws as
  /// CheckpointReader::restore does.
  MeasuredRestores run();

  std::size_t logical_bytes() const { return logical_bytes_; }
  std::size_t file_bytes() const { return file_bytes_; }  ///< of what raw reads read
  std::span<const TensorRequest> requests() const { return requests_; }
  int threads() const { return devices_->executor().threads(); }

 private:
  struct Restored {
    std::vector<ShardedArray> arrays;
    ReadStats stats;
    double seconds, open_seconds;
  };

  void find_files();
  std::string title(int round, const char* what) const;
  void drop_files() const;
  void give_memory_back();
  double read(int round) const;
  Restored restore(int round);
  std::size_t in_use_bytes() const;
  std::string difference(const std::vector<ShardedArray>& arrays) const;

  const std::filesystem::path directory_;
  const RestoreBenchOptions options_;
  std::vector<TensorRequest> requests_;
  std::optional<DataKind> kind_;
  std::vector<std::filesystem::path> files_, shard_files_;
  std::size_t logical_bytes_ = 0, file_bytes_ = 0, device_bytes_ = 0;
  std::optional<TouchedPages> raw_;
  std::int64_t num_devices_ = 1;
  std::optional<Devices> devices_;
};

}  // namespace shardwise::tools
