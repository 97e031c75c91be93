#include "header_examples/loader_files.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "loader/idx_files.h"
#include "loader/images/image_files.h"

namespace shardwise {
namespace {

void write(const std::string& path, const Bytes& content) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()),
             static_cast<std::streamsize>(content.size()));
}

}  // namespace

void write_loader_files() {
  for (const char* label : {"cat", "dog"}) {
    std::filesystem::create_directories(std::string("photos/") + label);
    for (int i = 0; i < 8; ++i) {
      write("photos/" + std::string(label) + "/" + std::to_string(i) + ".png",
            make_png(90, 80, 3, pattern_pixels(90, 80, 3)));
    }
  }
  write("train.bin", Bytes(2 * (40 * 1024 + 1)));
  std::string lines;
  for (int i = 1; i <= 60; ++i) {
    lines += "{\"text\": \"" + std::string(static_cast<std::size_t>(i), 'a') + "\"}\n";
  }
  write("docs.jsonl", to_bytes(lines));
  write("houses.csv", to_bytes("price,rooms,age\n120,3,40\n480.5,6,2\n250,4,17\n"));
  write("images.gz", gzip(idx_header(0x08, {100, 4, 4}) + Bytes(1600)));
}

}  // namespace shardwise
