// Feeds a fuzz target every line of its seeds (seeds.py): the corpus as a test, for compilers
// without libFuzzer.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// "\xNN" is a byte; all else stands for itself.
std::vector<std::uint8_t> input_of(const std::string& line) {
  std::vector<std::uint8_t> input;
  for (std::size_t at = 0; at < line.size(); ++at) {
    if (line[at] != '\\') {
      input.push_back(static_cast<std::uint8_t>(line[at]));
      continue;
    }
    input.push_back(static_cast<std::uint8_t>(std::stoi(line.substr(at + 2, 2), nullptr, 16)));
    at += 3;
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s SEEDS\n", argv[0]);
    return 2;
  }
  std::size_t count = 0;
  std::ifstream seeds(argv[1]);
  for (std::string line; std::getline(seeds, line); ++count) {
    const std::vector<std::uint8_t> input = input_of(line);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs\n", count);
  return count > 0 ? 0 : 1;
}
