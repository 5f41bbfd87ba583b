#pragma once
// What a fuzzer feeds: bytes as a file of a model folder may hold them.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hero::fuzz {

/// Each reads the bytes as its kind of file and returns whether they were accepted. A UserError of one line
/// is a refusal; anything else that is thrown, and every view outside the bytes, ends the process.
bool read_safetensors(std::string_view bytes);
bool read_index(std::string_view bytes);
bool read_config(std::string_view bytes);

struct Target {
  std::string_view name;  ///< also the folder of its corpus and the ending of its program
  bool (*read)(std::string_view bytes);
};
std::span<const Target> targets();

}  // namespace hero::fuzz
