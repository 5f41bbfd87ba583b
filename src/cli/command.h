#pragma once
// The command line without CLI11's templates: only command.cpp includes its headers, which take many seconds
// to compile.
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hero {

/// A declared option or positional argument. Every setter returns the option itself.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required();
  /// Shows the variable's value at this moment as the default in --help.
  Option& show_default();
  /// Shows `text` as the default in --help.
  Option& show_default(const std::string& text);
  /// Accepts only values in [min, max].
  Option& range(std::integral auto min, std::integral auto max) { return integer_range(min, max); }
  Option& range(double min, double max);
  Option& non_negative();
  Option& one_of(const std::vector<std::string>& values);
  Option& existing_file();
  /// Converts each value before it is stored; what `convert` throws ends parsing.
  Option& convert(std::function<std::string(const std::string&)> convert);
  /// Accepts units such as kB, MB (powers of 1000) and KiB, MiB (powers of 1024).
  Option& byte_size();
  Option& delimiter(char separator);
  Option& count(int values);
  Option& type_name(const std::string& name);
  /// Takes the value from this environment variable where the command line has none.
  Option& environment(const std::string& variable);
  Option& needs(const Option& other);
  Option& excludes(const Option& other);

  /// Whether the command line or the environment sets it.
  bool given() const;

 private:
  Option& integer_range(int64_t min, int64_t max);

  CLI::Option* option_;
};

/// A command of the program, or the program itself.
class Command {
 public:
  /// The program. `name_and_versions`: what --version prints.
  Command(const std::string& description, std::function<std::string()> name_and_versions);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  /// A subcommand, which lives as long as this one.
  Command* add_subcommand(const std::string& name, const std::string& description);
  /// The added subcommand of this name.
  Command* subcommand(const std::string& name);
  void require_subcommand();

  /// Declares `--name` or, without dashes, a positional argument whose value is stored in `value`, which must
  /// outlive parsing. Defined for std::string, std::filesystem::path, int, int64_t, uint64_t,
  /// double and vectors of std::string and int64_t.
  template <typename T>
  Option add_option(const std::string& name, T& value, const std::string& help);
  /// The same with a function that receives the value.
  template <typename T>
  Option add_option(const std::string& name, const std::function<void(const T&)>& store,
                    const std::string& help);
  Option add_flag(const std::string& name, bool& value, const std::string& help);

  /// Text at the end of --help, which wraps it and all descriptions.
  void footer(const std::string& text);
  /// Keeps arguments that are not declared, such as --section.key=value, for remaining().
  void allow_extras();
  std::vector<std::string> remaining() const;
  /// Runs when the command line has been parsed.
  void callback(std::function<void()> run);

  /// Parses the arguments and runs the callbacks. Returns 0, or 2 after printing a usage error as one line.
  /// `--section.key value` reads as `--section.key=value`. Passes on what callbacks throw.
  int parse(int argc, char** argv);

 private:
  explicit Command(CLI::App* app);

  std::unique_ptr<CLI::App> program_;  ///< null for subcommands
  CLI::App* app_;
  std::vector<std::unique_ptr<Command>> subcommands_;
};

}  // namespace hero
