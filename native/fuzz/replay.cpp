// Runs a fuzz target over files and directories of inputs, once each, without a fuzzer: the inputs that found something stay
// found.
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Only a fuzzer mutates.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t*, std::size_t size, std::size_t) { return size; }

int main(int count, char** paths) {
  std::size_t inputs = 0;
  const auto replay = [&](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
    ++inputs;
  };
  for (int i = 1; i < count; ++i) {
    if (!std::filesystem::is_directory(paths[i])) {
      replay(paths[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(paths[i])) replay(entry.path());
  }
  std::cout << inputs << " inputs\n";
  return inputs > 0 ? 0 : 1;
}
