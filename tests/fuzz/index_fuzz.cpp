// The index of sharded safetensors.
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "hf/safetensors.h"

namespace hero::fuzz {

bool read_index(std::string_view bytes) {
  return accepted(bytes, [](std::string_view file) {
    for (const auto& [tensor, shard] : parse_index(file, kFile)) {
      require(!shard.empty() && shard != ".." && shard.find('/') == std::string::npos,
              "a path outside the folder");
    }
  });
}

}  // namespace hero::fuzz
