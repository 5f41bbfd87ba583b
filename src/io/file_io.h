#pragma once
#include <string>
#include <string_view>

namespace hero {

/// Contents of the file. UserError if it is missing, a folder or unreadable.
std::string read_file(const std::string& path);

/// Writes a temporary file, syncs it to disk and renames it to `path`. RunError on failure.
void write_file(const std::string& path, std::string_view bytes);

/// Creates the parent folder of `path`. UserError on failure.
void make_parent_folder(const std::string& path);

}  // namespace hero
