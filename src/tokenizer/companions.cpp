#include "tokenizer/companions.h"

#include <string_view>

#include "io/file_io.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

// What the names of the companions begin with.
std::string companion_prefix(const fs::path& path) {
  if (fs::is_directory(path)) return (path / "").string();
  const std::string text = path.string();
  for (const std::string_view name : {"tokenizer.json", "tokenizer.model"}) {
    if (text.ends_with(name)) return text.substr(0, text.size() - name.size());
  }
  return (path.parent_path() / path.stem()).string() + ".";
}

}  // namespace

std::map<std::string, std::string> read_companions(const fs::path& path) {
  std::map<std::string, std::string> companions;
  const std::string prefix = companion_prefix(path);
  for (const char* const name : kCompanions) {
    if (fs::is_regular_file(prefix + name)) companions[name] = read_file(prefix + name);
  }
  return companions;
}

}  // namespace hero
