#pragma once
#include <string>
#include <string_view>

namespace hero {

/// The whole file. UserError when it is missing, a folder or unreadable.
std::string read_file(const std::string& path);

/// Writes the file under a temporary name, flushes it to the disk and renames it. RunError when that fails.
void write_file(const std::string& path, std::string_view bytes);

/// Creates the folder that is to hold `path`. UserError when it cannot be made.
void make_parent_folder(const std::string& path);

}  // namespace hero
