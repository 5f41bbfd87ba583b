// Runs the fuzz targets without libFuzzer: on every corpus file, on large generated files, and on mutations
// with a fixed seed. Aborts on a finding; fails if no or every corpus file is accepted.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/targets.h"

namespace hero::fuzz {
namespace {

namespace fs = std::filesystem;

struct Target {
  std::string_view name;  // also the folder of its corpus
  bool (*read)(std::string_view bytes);
  int mutations = 1000;
};

// Fewer mutations where a target writes files or opens connections.
constexpr Target kTargets[] = {{"completion_request", read_completion_request},
                               {"config", read_config},
                               {"documents", read_documents, 200},
                               {"http", read_http, 200},
                               {"index", read_index},
                               {"indexed_dataset", read_indexed_dataset, 200},
                               {"manifest", read_manifest, 200},
                               {"metrics", read_metrics, 50},
                               {"regex", read_regex},
                               {"safetensors", read_safetensors},
                               {"sentencepiece", read_sentencepiece},
                               {"text", read_text},
                               {"token_files", read_token_files, 200},
                               {"token_lists", read_token_lists, 200},
                               {"tokenizer_config", read_tokenizer_config},
                               {"tokenizer_json", read_tokenizer_json},
                               {"toml", read_toml, 200},
                               {"training_state", read_training_state}};

std::string bytes_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string repeated(const std::string& text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

std::string with_length_prefix(const std::string& header) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header;
}

// Too large for the repository: JSON and TOML nested 100,000 levels deep, long numbers and names.
std::vector<std::string> large_files() {
  std::vector<std::string> out;
  for (const std::string& text :
       {repeated("[", 100'000), repeated("{\"a\":", 100'000), "{\"a\":" + repeated("[", 100'000),
        "{\"vocab_size\":" + repeated("9", 100'000) + "}", "{\"" + repeated("a", 100'000) + "\":1}",
        "{\"a\":" + repeated("[", 100'000) + repeated("]", 100'000) + "}", repeated("a.", 100'000) + "a=1",
        "a=" + repeated("{a=", 100'000), "[" + repeated("a.", 100'000) + "a]"}) {
    out.push_back(text);
    out.push_back(with_length_prefix(text));
  }
  return out;
}

// Overwrites, erases, repeats or inserts a few bytes, or splices in a part of another file.
std::string mutated(std::string bytes, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  const auto below = [&](size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (size_t rounds = 1 + below(4); rounds > 0; --rounds) {
    const size_t at = below(bytes.size()), length = below(std::min<size_t>(bytes.size() - at, 24)) + 1;
    switch (below(5)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, length);
        break;
      case 2:
        bytes.insert(at, bytes.substr(at, length));
        break;
      case 3: {
        const std::string& other = seeds[below(seeds.size())];
        bytes.insert(at, other.substr(below(other.size()), length));
        break;
      }
      default:
        bytes.insert(at, std::vector<std::string>{"0", "-", "9999999999", "e400", "null", "[", "\xff", "\"",
                                                  ",", std::string(1, '\0')}[below(10)]);
    }
  }
  return bytes;
}

int run(const fs::path& corpus) {
  for (const Target& target : kTargets) {
    std::vector<std::string> seeds;
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(corpus / target.name)) files.push_back(entry.path());
    std::ranges::sort(files);
    int accepted = 0, accepted_mutations = 0;
    for (const auto& file : files) {
      seeds.push_back(bytes_of(file));
      accepted += target.read(seeds.back());
    }
    for (const auto& file : large_files()) target.read(file);
    std::mt19937_64 random(1);
    for (int i = 0; i < target.mutations && !seeds.empty(); ++i)
      accepted_mutations += target.read(mutated(seeds[i % seeds.size()], seeds, random));
    std::printf("%s: %zu files, %d accepted; %d mutations, %d accepted\n", target.name.data(), files.size(),
                accepted, target.mutations, accepted_mutations);
    if (accepted == 0 || accepted == static_cast<int>(files.size())) {
      std::fprintf(stderr, "%s: expected both valid and invalid files\n", (corpus / target.name).c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace hero::fuzz

int main(int argc, char** argv) {
  if (argc == 2) return hero::fuzz::run(argv[1]);
  std::fprintf(stderr, "usage: %s CORPUS\n", argv[0]);
  return 2;
}
