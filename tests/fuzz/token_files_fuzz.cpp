// OUT.json, the metadata of token files.
#include "data/token_files.h"
#include "fuzz/checks.h"
#include "fuzz/targets.h"

namespace hero::fuzz {

bool read_token_files(std::string_view bytes) {
  const std::string path = input_file("card.json", bytes);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const std::string out = path.substr(0, path.size() - 5);
  bool found = false;
  return accepted(
             bytes,
             [&](std::string_view) {
               const auto files = hero::read_token_files(out);
               if (!files) return;
               found = true;
               require(std::filesystem::path(files->tokenizer).parent_path() == folder,
                       "a tokenizer outside the folder");
             },
             path) &&
         found;
}

}  // namespace hero::fuzz
