#pragma once
#include <filesystem>
#include <memory>
#include <string>

#include "cli/command.h"
#include "inference/chat_template.h"
#include "inference/server/prompt_encoder.h"
#include "io/error.h"
#include "tokenizer/tokenizer.h"

namespace hero {

/// Adds --chat-template, with a value for open_chat_template.
inline void add_chat_template_option(Command& command, std::string& chat_template) {
  command.add_option(
      "--chat-template", chat_template,
      "Jinja file, or a built-in template: chatml, llama3, deepseek or plain; default: the model "
      "folder's");
}

/// The template of --chat-template, or else of --tokenizer or the model folder. ChatTemplateError and
/// RunError as ChatTemplate; UserError if there is none.
inline std::unique_ptr<ChatTemplate> open_chat_template(const std::string& option,
                                                        const std::string& tokenizer_option,
                                                        const std::filesystem::path& folder,
                                                        const Tokenizer& tokenizer,
                                                        const ModelConfig& model) {
  const std::filesystem::path path =
      tokenizer_option.empty() ? folder : std::filesystem::path(tokenizer_option);
  auto source = find_chat_template(option, tokenizer, path);
  if (source.where.empty()) {
    throw UserError(
        "chat template: found none in " + path.string() +
        ", expected chat_template.jinja, chat_template in tokenizer_config.json, or --chat-template");
  }
  const PromptEncoder encoder(tokenizer, model.vocab_size, model.max_position_embeddings);
  ChatTemplate::Limits limits;
  limits.text_bytes = static_cast<size_t>(encoder.max_text_bytes());
  return std::make_unique<ChatTemplate>(std::move(source), limits);
}

}  // namespace hero
