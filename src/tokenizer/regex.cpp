#include "tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>

#include "io/error.h"
#include "io/one_line.h"
#include "tokenizer/oniguruma.h"

namespace hero {

namespace {

constexpr std::size_t kJitStack = 1 << 20;       // bytes; beyond this, the interpreter uses the heap
constexpr uint32_t kHeapLimit = 4u << 20;        // KiB
constexpr uint64_t kFreeSteps = 1000;            // backtracking steps of a match that the budget does not pay
constexpr uint64_t kBudget = uint64_t{1} << 26;  // steps for a text, and
constexpr uint64_t kBudgetPerByte = 64;          // more per byte

std::string message_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

// Per-thread match state. Only the position of the whole match is needed.
class Matcher {
 public:
  Matcher()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 << 10, kJitStack, nullptr)) {
    if (!data_ || !context_ || !stack_) throw std::bad_alloc();
    pcre2_jit_stack_assign(context_, nullptr, stack_);
    pcre2_set_heap_limit(context_, kHeapLimit);
  }
  ~Matcher() {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // First match at or after `from`, or nullopt. A match that takes many steps is repeated with larger limits,
  // which `budget` pays: a text takes linear time in total. Returns the error of PCRE2 if it is spent.
  int find(const pcre2_code* code, std::string_view text, std::size_t from, uint64_t& budget,
           std::optional<std::pair<std::size_t, std::size_t>>& match) {
    const auto run = [&](uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         PCRE2_NO_UTF_CHECK | options, data_, context_);
    };
    int found = PCRE2_ERROR_MATCHLIMIT;
    for (uint64_t limit = kFreeSteps; found == PCRE2_ERROR_MATCHLIMIT; limit *= 16) {
      if (limit > kFreeSteps) {
        if (limit > budget) return found;
        budget -= limit;
      }
      pcre2_set_match_limit(context_, static_cast<uint32_t>(std::min<uint64_t>(limit, UINT32_MAX)));
      found = run(0);
      if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
    }
    match.reset();
    if (found < 0) return found == PCRE2_ERROR_NOMATCH ? 0 : found;
    const auto* const at = pcre2_get_ovector_pointer(data_);
    match.emplace(at[0], at[1]);
    return 0;
  }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

std::size_t character_length(std::string_view text, std::size_t at) {
  std::size_t end = at + 1;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return end - at;
}

}  // namespace

void Regex::Deleter::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

Regex::Regex(std::string_view pattern, const std::string& name) : pattern_(pattern), name_(name) {
  const std::string translated = pcre2_pattern(pattern, name);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP, &error, &at, context.get()));
  if (!code_) {
    throw UserError(name + ": found \"" + one_line(pattern_, 200) + "\", expected a regular expression (" +
                    message_of(error) + " in \"" + one_line(translated.substr(0, at), 200) + "\")");
  }
  // Without JIT support, PCRE2 interprets the pattern with the same result.
  pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
}

void Regex::find(std::string_view text, std::vector<std::pair<std::size_t, std::size_t>>& matches) const {
  thread_local Matcher matcher;
  uint64_t budget = kBudget + kBudgetPerByte * text.size();
  std::optional<std::pair<std::size_t, std::size_t>> match;
  std::optional<std::size_t> last_end;
  for (std::size_t at = 0; at <= text.size();) {
    if (const int error = matcher.find(code_.get(), text, at, budget, match)) {
      throw UserError(name_ + ": found \"" + one_line(pattern_, 200) +
                      "\", expected a regular expression with less backtracking (" + message_of(error) +
                      " in a text of " + std::to_string(text.size()) + " bytes)");
    }
    if (!match) return;
    if (match->first == match->second && last_end == match->second) {
      at += at < text.size() ? character_length(text, at) : 1;
      continue;
    }
    matches.push_back(*match);
    at = match->second;
    last_end = at;
  }
}

}  // namespace hero
