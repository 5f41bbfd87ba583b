#pragma once
// Conversations as text, by the Jinja templates of model folders. They are rendered in a child process,
// python -m hero_moe.chat_renderer, as transformers renders them.
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "io/error.h"
#include "io/line_process.h"
#include "tokenizer/tokenizer.h"

namespace hero {

/// A template that is not Jinja, or that rejects the messages.
class ChatTemplateError : public UserError {
 public:
  using UserError::UserError;
};

/// What a template is made from.
struct ChatTemplateSource {
  std::string where;                 ///< for messages: a file, or the name of a built-in template
  std::optional<std::string> jinja;  ///< std::nullopt: the built-in template `where`
  std::map<std::string, std::string> special_tokens;  ///< variables of templates: bos_token, eos_token, ...
};

/// The template of --chat-template (a file or a built-in name) or, if `option` is empty, of the folder or
/// tokenizer file `tokenizer_path`: chat_template.jinja or else chat_template of tokenizer_config.json, the
/// one named "default" of a list. `where` is "" if there is none. UserError for an unreadable file.
ChatTemplateSource find_chat_template(const std::string& option, const Tokenizer& tokenizer,
                                      const std::filesystem::path& tokenizer_path);

class ChatTemplate {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  struct Limits {
    size_t text_bytes = 1 << 20;                  ///< of a rendered text
    std::chrono::milliseconds rendering{10'000};  ///< time to render it
    std::chrono::milliseconds starting{60'000};   ///< time to start the child
  };

  /// Starts the child. ChatTemplateError for invalid Jinja and unknown built-in names; RunError if Python or
  /// jinja2 is missing.
  ChatTemplate(ChatTemplateSource source, Limits limits);

  /// The text of messages, objects with role and content; with `add_generation_prompt`, up to the beginning
  /// of the assistant's next message. ChatTemplateError if the template rejects them, or if the text is too
  /// long; RunError, after ending the child, if it exceeds a limit; std::nullopt after `deadline`.
  /// Thread-safe: one text at a time. Restarts the child if it has ended.
  std::optional<std::string> render(const nlohmann::json& messages, bool add_generation_prompt,
                                    Deadline deadline = Deadline::max());

  const std::string& where() const { return source_.where; }
  /// The template's Jinja source.
  const std::string& jinja() const { return *source_.jinja; }

 private:
  void start();
  nlohmann::json exchange(const nlohmann::json& request, Deadline limit);

  ChatTemplateSource source_;
  const Limits limits_;
  std::timed_mutex mutex_;
  std::unique_ptr<LineProcess> child_;  // null after a failure
};

}  // namespace hero
