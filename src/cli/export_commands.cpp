#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "config/warnings.h"
#include "hf/export.h"
#include "hf/load.h"
#include "hf/model_config.h"
#include "hf/resolve.h"
#include "io/error.h"
#include "io/file_io.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_export.h"

namespace hero {
namespace {

struct Options {
  std::string dir, folder;
  ExportOptions chosen;
};

namespace fs = std::filesystem;

// The source's tokenizer files; made anew where a lone tokenizer.model stands there.
std::map<std::string, std::string> tokenizer_texts(const fs::path& source, int64_t longest) {
  std::map<std::string, std::string> texts;
  for (const char* name :
       {"tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"}) {
    if (fs::exists(source / name)) texts[name] = read_file((source / name).string());
  }
  if (!texts.empty() && !texts.count("tokenizer_config.json"))
    texts.merge(tokenizer_files(Tokenizer(source.string()), longest));
  return texts;
}

// eos_token_id of the source's config.json, the first where it has several; -1 without one.
int64_t end_token(const fs::path& source) {
  if (!fs::exists(source / "config.json")) return -1;
  const auto config = nlohmann::json::parse(read_file((source / "config.json").string()), nullptr, false);
  auto id = config.is_object() ? config.value("eos_token_id", nlohmann::json()) : nlohmann::json();
  if (id.is_array() && !id.empty()) id = nlohmann::json(id[0]);
  return id.is_number_integer() ? id.get<int64_t>() : -1;
}

void run_export(Options options) {
  const auto source = resolve_model_dir(options.dir);
  const auto model = load_model(source, "fp32");
  options.chosen.texts = tokenizer_texts(source, model->config().model.max_position_embeddings);
  options.chosen.eos = end_token(source);
  export_model(*model, options.folder, options.chosen);
  const Config& config = model->config();
  warn(options_outside_config_json(config, options.chosen.dtype));
  const bool hero = config.router.kind == "hero", own_code = !modelling_code(config).empty();
  std::printf("%s: %s %s, opens with AutoModelForCausalLM.from_pretrained%s\n", options.folder.c_str(),
              hero ? "HERO" : "baseline", config.model.model_type.c_str(),
              own_code ? "(..., trust_remote_code=True)" : "");
  if (own_code && !hero)
    std::printf(
        "note: without trust_remote_code=True transformers scores by sigmoid, this model by softmax\n");
}

}  // namespace

void add_export_command(CLI::App& hero) {
  auto options = std::make_shared<Options>();
  auto* command = hero.add_subcommand("export", "Write a model as a Hugging Face folder");
  command->add_option("dir", options->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      ->required();
  command->add_option("folder", options->folder, "new folder")->required();
  command->add_option("--dtype", options->chosen.dtype, "of the weights")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command
      ->add_option("--max-shard-size", options->chosen.max_shard_bytes,
                   "largest file of weights, in bytes or as 500MB, 4GB")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->default_str("4GiB");
  command->callback([options] { run_export(*options); });
}

}  // namespace hero
