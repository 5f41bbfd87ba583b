#include "cli/command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <sstream>

namespace hero {

namespace {

// CLI11 reports a missing subcommand before it looks at unknown arguments.
void print_usage_error(const CLI::App& program, const CLI::ParseError& error) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  const bool unknown = dynamic_cast<const CLI::RequiredError*>(&error) &&
                       !command->get_subcommands({}).empty() && !command->remaining().empty();
  const std::string what = unknown ? command->remaining().front() + ": unknown subcommand" : error.what();
  std::string path;
  for (const CLI::App* c = command; c != &program; c = c->get_parent()) path = " " + c->get_name() + path;
  std::fprintf(stderr, "hero: %s; see hero%s --help\n", what.c_str(), path.c_str());
}

// CLI11 does not know the keys of a configuration.
std::vector<std::string> with_joined_keys(int argc, char** argv) {
  std::vector<std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool is_key = word.starts_with("--") && word.find('.') != std::string::npos &&
                        word.find_first_of("= ") == std::string::npos;
    const bool has_value = is_key && i + 1 < argc && !std::string_view(argv[i + 1]).starts_with("--");
    arguments.push_back(has_value ? word + "=" + argv[++i] : word);
  }
  return {arguments.rbegin(), arguments.rend()};  // CLI11 expects them in reverse
}

// As CLI::Range, with the wording of all other errors.
template <typename T>
CLI::Validator in_range(T min, T max) {
  std::ostringstream limits;
  limits << min << " to " << max;
  return CLI::Validator(
      [=, expected = limits.str()](std::string& text) {
        T value{};
        const bool valid = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
        return valid ? std::string() : "found " + text + ", expected " + expected;
      },
      limits.str());
}

constexpr size_t kHelpWidth = 100;

// Wraps the lines of a text that is shown from `column` on. What continues a line has the line's indentation.
std::string wrapped(std::string text, size_t column = 0) {
  const size_t limit = kHelpWidth - column;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    if (end - begin <= limit) continue;
    const size_t indent = text.find_first_not_of(' ', begin) - begin;
    const size_t space = text.rfind(' ', begin + limit);
    if (space == std::string::npos || space < begin + indent) continue;  // one long word
    text.replace(space, 1, "\n" + std::string(indent, ' '));
    end = space;
  }
  return text;
}

// CLI11 does not wrap.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_description(const CLI::App* command) const override {
    return wrapped(CLI::Formatter::make_description(command));
  }
  std::string make_footer(const CLI::App* command) const override {
    return wrapped(CLI::Formatter::make_footer(command));
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(CLI::Formatter::make_option_desc(option), column_width_);
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::ostringstream out;
    CLI::detail::format_help(out, command->get_display_name(true),
                             wrapped(command->get_description(), column_width_), column_width_);
    return out.str();
  }
};

std::string check_unsigned(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  const bool valid = parsed.ec == std::errc() && parsed.ptr == end;
  return valid ? std::string() : "found " + text + ", expected 0 to " + std::to_string(UINT64_MAX);
}

}  // namespace

Option& Option::required() {
  option_->required();
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::show_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}

Option& Option::integer_range(int64_t min, int64_t max) {
  option_->check(in_range(min, max));
  return *this;
}

Option& Option::range(double min, double max) {
  option_->check(in_range(min, max));
  return *this;
}

Option& Option::non_negative() {
  option_->check(CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool valid = CLI::detail::lexical_cast(text, value) && value >= 0;
        return valid ? std::string() : "found " + text + ", expected a number of at least 0";
      },
      ">= 0"));
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(std::vector(values)));
  return *this;
}

Option& Option::existing_file() {
  option_->check(CLI::ExistingFile);
  return *this;
}

Option& Option::convert(std::function<std::string(const std::string&)> convert) {
  option_->transform(CLI::Validator(
      [convert = std::move(convert)](std::string& value) {
        value = convert(value);
        return std::string();
      },
      ""));
  return *this;
}

Option& Option::byte_size() {
  option_->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  return *this;
}

Option& Option::delimiter(char separator) {
  option_->delimiter(separator);
  return *this;
}

Option& Option::count(int values) {
  option_->expected(values);
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::environment(const std::string& variable) {
  option_->envname(variable);
  return *this;
}

Option& Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}

Option& Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

bool Option::given() const { return option_->count() > 0; }

Command::Command(const std::string& description, std::function<std::string()> name_and_versions)
    : program_(std::make_unique<CLI::App>(description)), app_(program_.get()) {
  app_->formatter(std::make_shared<HelpFormatter>());  // of all subcommands too
  app_->set_version_flag("--version", std::move(name_and_versions),
                         "print the versions of hero, torch and libhero.so");
}

Command::Command(CLI::App* app) : app_(app) {}

Command::~Command() = default;

Command* Command::add_subcommand(const std::string& name, const std::string& description) {
  subcommands_.emplace_back(new Command(app_->add_subcommand(name, description)));
  return subcommands_.back().get();
}

Command* Command::subcommand(const std::string& name) {
  const auto has_name = [&](const auto& command) { return command->app_->get_name() == name; };
  return std::ranges::find_if(subcommands_, has_name)->get();
}

void Command::require_subcommand() { app_->require_subcommand(1); }

template <typename T>
Option Command::add_option(const std::string& name, T& value, const std::string& help) {
  auto* const option = app_->add_option(name, value, help);
  // CLI11 would convert -1 to 2^64 - 1, and larger numbers to that too.
  if constexpr (std::is_same_v<T, uint64_t>) option->check(CLI::Validator(check_unsigned, ""));
  return Option(option);
}

template <typename T>
Option Command::add_option(const std::string& name, const std::function<void(const T&)>& store,
                           const std::string& help) {
  return Option(app_->add_option_function<T>(name, store, help));
}

template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, int64_t&, const std::string&);
template Option Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::filesystem::path&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<int64_t>&, const std::string&);
template Option Command::add_option(const std::string&, const std::function<void(const bool&)>&,
                                    const std::string&);
template Option Command::add_option(const std::string&, const std::function<void(const std::string&)>&,
                                    const std::string&);
template Option Command::add_option(const std::string&, const std::function<void(const int64_t&)>&,
                                    const std::string&);
template Option Command::add_option(const std::string&, const std::function<void(const double&)>&,
                                    const std::string&);
template Option Command::add_option(const std::string&,
                                    const std::function<void(const std::vector<int64_t>&)>&,
                                    const std::string&);
template Option Command::add_option(const std::string&,
                                    const std::function<void(const std::vector<std::string>&)>&,
                                    const std::string&);

Option Command::add_flag(const std::string& name, bool& value, const std::string& help) {
  return Option(app_->add_flag(name, value, help));
}

void Command::footer(const std::string& text) { app_->footer(text); }

void Command::allow_extras() { app_->allow_extras(); }

std::vector<std::string> Command::remaining() const { return app_->remaining(); }

void Command::callback(std::function<void()> run) { app_->callback(std::move(run)); }

int Command::parse(int argc, char** argv) {
  try {
    app_->parse(with_joined_keys(argc, argv));
    return 0;
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app_->exit(e);
    print_usage_error(*app_, e);
    return 2;
  }
}

}  // namespace hero
