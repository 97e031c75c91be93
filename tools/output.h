#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shardwise/checkpoint/info.h"
#include "shardwise/shard/box.h"

namespace shardwise::tools {

/// Rows of text under a heading, each column as wide as its widest cell; numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> heading) : rows_{std::move(heading)} {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  void print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// "1.50 MiB"
std::string human_bytes(std::size_t bytes);

nlohmann::ordered_json dims_json(const Dims& dims);
nlohmann::ordered_json box_json(const Box& box);

/// On stdout, with a line end. Bytes that are not UTF-8 are replaced.
void print_json(const nlohmann::ordered_json& value);

/// Shows on stderr how far long work has come: only on a terminal, and only after a second.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Empty where stderr is not a terminal. Valid as long as this object.
  ProgressFunction function();

 private:
  void show(const Progress& progress);

  std::string what_;
  std::chrono::steady_clock::time_point start_, shown_;
  bool visible_ = false;
};

}  // namespace shardwise::tools
