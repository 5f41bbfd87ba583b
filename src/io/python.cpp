#include "io/python.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "io/error.h"

namespace hero {

std::string python_program() {
  const char* chosen = std::getenv("HERO_PYTHON");
  return chosen && *chosen ? chosen : HERO_PYTHON_DEFAULT;
}

std::string python_search_path() {
  const char* path = std::getenv("PYTHONPATH");
  return std::string(HERO_PYTHON_PACKAGE_DIR) + (path && *path ? ":" + std::string(path) : "");
}

void exec_python(const std::string& module, const std::vector<std::string>& arguments) {
  const std::string python = python_program();
  setenv("PYTHONPATH", python_search_path().c_str(), 1);
  std::vector<std::string> words = {python, "-m", module};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  throw RunError(python + ": cannot start: " + std::strerror(errno) +
                 "; set HERO_PYTHON to the Python interpreter to use");
}

}  // namespace hero
