#pragma once
#include <filesystem>
#include <string>

namespace hero {

/// Versions of this program and its libraries. Equal versions compute identical results.
std::string program_version();

/// The same from the path of libhero.so (empty: unknown), in a process that has not loaded it.
std::string library_versions(const std::filesystem::path& libhero);

}  // namespace hero
