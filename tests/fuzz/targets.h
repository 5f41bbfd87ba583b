#pragma once
// Fuzz targets: parsers of the files in a model folder.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace hero::fuzz {

/// Each parses the bytes as its kind of file and returns whether they are valid. A one-line UserError rejects
/// them; any other exception or a view outside the bytes aborts the process.
bool read_safetensors(std::string_view bytes);
bool read_index(std::string_view bytes);
bool read_config(std::string_view bytes);

struct Target {
  std::string_view name;  ///< also the folder of its corpus and the prefix of its source file
  bool (*read)(std::string_view bytes);
};
std::span<const Target> targets();

}  // namespace hero::fuzz
