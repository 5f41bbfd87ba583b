#pragma once
// What all fuzz targets share.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "io/error.h"
#include "tokenizer/tokenizer.h"

namespace hero::fuzz {

/// The name of the input in messages.
inline const std::string kFile = "fuzzed";

/// Reports a finding and aborts unless `holds`.
void require(bool holds, const std::string& what);

/// Aborts unless the message is one short line that begins with `file`.
void check_message(std::string_view message, std::string_view file);

/// Whether `parse` accepts a heap copy of the bytes, with which AddressSanitizer detects reads out of bounds.
template <class Parse>
bool accepted(std::string_view bytes, Parse parse, const std::string& file = kFile) {
  const auto copy = std::make_unique<char[]>(bytes.size());
  std::ranges::copy(bytes, copy.get());
  try {
    parse(std::string_view(copy.get(), bytes.size()));
    return true;
  } catch (const UserError& error) {
    check_message(error.what(), file);
    return false;
  }
}

/// The path of file `name` with these bytes, in a folder of this process that is removed at exit.
std::string input_file(const std::string& name, std::string_view bytes);

/// Aborts unless the tokenizer encodes and decodes `text` (valid UTF-8) as tokenizer.h says.
void check_tokenizer(const Tokenizer& tokenizer, std::string_view text);

}  // namespace hero::fuzz
