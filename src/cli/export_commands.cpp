#include "checkpoint/checkpoint.h"
#include "cli/choice_option.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "config/router_kinds.h"
#include "config/warnings.h"
#include "hf/export.h"
#include "hf/load.h"
#include "hf/model_config.h"
#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_export.h"

namespace hero {
namespace {

struct Options {
  std::string dir, folder;
  ExportOptions export_options;
};

namespace fs = std::filesystem;

// Tokenizer files of the source; Hugging Face files are generated if tokenizer_config.json is missing.
std::map<std::string, std::string> tokenizer_files_of(const fs::path& source, int64_t longest) {
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

// eos_token_id of the source's config.json: an id, or a list of them.
std::vector<int64_t> end_tokens_of(const fs::path& source) {
  const std::string file = (source / "config.json").string();
  if (!fs::exists(file)) return {};
  const auto config = parse_json(read_file(file), {file});
  auto ids = config.is_object() ? config.value("eos_token_id", nlohmann::json()) : nlohmann::json();
  if (!ids.is_array()) ids = nlohmann::json::array({ids});
  std::vector<int64_t> found;
  for (const auto& id : ids) {
    if (id.is_number_integer()) found.push_back(id.get<int64_t>());
  }
  return found;
}

void run_export(Options options) {
  const auto source = open_model_folder(options.dir);
  const auto model = load_model(source, Dtype::kFp32, at::kCPU, MtpModules::kLoad);
  options.export_options.files = tokenizer_files_of(source, model->config().model.max_position_embeddings);
  options.export_options.eos = end_tokens_of(source);
  const fs::path generation = source / "generation_config.json";
  if (fs::exists(generation))
    options.export_options.files["generation_config.json"] = read_file(generation.string());
  export_model(*model, options.folder, options.export_options);
  const Config& config = model->config();
  warn(options_missing_from_config_json(config, options.export_options.dtype));
  const RouterKindInfo& kind = router_kind_info(config.router);
  const bool remote_code = !modeling_code(config).empty();
  std::printf("%s: %s %s, load with AutoModelForCausalLM.from_pretrained%s\n", options.folder.c_str(),
              kind.title.c_str(), name_of(config.model.model_type).c_str(),
              remote_code ? "(..., trust_remote_code=True)" : "");
  if (remote_code && kind.in_transformers)
    std::printf(
        "note: without trust_remote_code=True, transformers uses sigmoid scores; this model uses softmax\n");
}

}  // namespace

void add_export_command(Command& hero) {
  auto options = std::make_shared<Options>();
  auto* command = hero.subcommand("export");
  command->add_option("dir", options->dir, "run folder (its latest checkpoint), checkpoint or model folder")
      .required();
  command->add_option("folder", options->folder, "output folder, new or empty").required();
  auto& dtype = options->export_options.dtype;
  add_choice_option<Dtype>(*command, "--dtype", dtype, "type of the weights")
      .one_of({name_of(Dtype::kFp32), name_of(Dtype::kBf16)})
      .show_default(name_of(dtype));
  command
      ->add_option("--max-shard-size", options->export_options.max_shard_bytes,
                   "maximum size of a weights file, in bytes or as 500MB, 4GB")
      .byte_size()
      .show_default("4GiB");
  command->callback([options] { run_export(*options); });
}

}  // namespace hero
