// The file of hero logits --tokens.
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "inference/token_lists.h"

namespace hero::fuzz {

bool read_token_lists(std::string_view bytes) {
  const std::string path = input_file("tokens.json", bytes);
  ModelConfig model;
  model.vocab_size = 100;
  model.max_position_embeddings = 8;
  return accepted(
      bytes,
      [&](std::string_view) {
        for (const auto& list : hero::read_token_lists(path, model)) {
          require(!list.empty() && list.size() <= 8, "a list that is empty or too long");
          require(std::ranges::all_of(list, [](int64_t id) { return id >= 0 && id < 100; }),
                  "an id out of range");
        }
      },
      path);
}

}  // namespace hero::fuzz
