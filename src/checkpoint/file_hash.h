#pragma once
#include <filesystem>
#include <string>

namespace hero {

/// SHA-256 of a file's bytes, 64 lower-case hexadecimal digits, by libcrypto, which uses the processor's
/// instructions for it (checkpoints are large). UserError if the file cannot be read.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace hero
