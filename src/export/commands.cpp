#include "export/commands.h"

#include <CLI/CLI.hpp>

#include "config/error.h"
#include "data/file_io.h"
#include "data/tokenizer.h"
#include "export/export.h"
#include "folder/load.h"
#include "folder/model_config.h"
#include "folder/resolve.h"

namespace hero {
namespace {

struct Options {
  std::string dir, folder;
  ExportOptions chosen;
};

void run_export(Options options) {
  const auto source = resolve_model_dir(options.dir);
  const auto model = load_model(source, "fp32");
  export_model(*model, options.folder, options.chosen);
  std::printf("%s: %s %s, opens with AutoModelForCausalLM.from_pretrained%s\n", options.folder.c_str(),
              model->config().router.kind == "hero" ? "HERO" : "baseline",
              model->config().model.model_type.c_str(),
              modelling_code(model->config()).empty() ? "" : "(..., trust_remote_code=True)");
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
