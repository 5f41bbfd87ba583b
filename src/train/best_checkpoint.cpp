#include "train/best_checkpoint.h"

#include <nlohmann/json.hpp>

#include "io/file_io.h"

namespace hero {

namespace fs = std::filesystem;

bool is_comparable_best(const Run& run, const fs::path& folder, const BestCheckpoint& best) {
  if (!run.config.checkpoint.keep_best || !fs::exists(checkpoint_folder(folder, best.step))) return false;
  const Config before = load_config({(run.checkpoint / "config.toml").string()}, {});
  // Other phases may bring other validation halves.
  const bool same_halves = !run.config.eval.data.empty() || before.data.phases == run.config.data.phases;
  return same_halves && run.changed_validation.empty() && before.eval.data == run.config.eval.data &&
         before.eval.batches == run.config.eval.batches;
}

void record_best(const fs::path& folder, const BestCheckpoint& best) {
  const fs::path file = folder / kBestFile;
  if (best.step < 0) {
    fs::remove(file);
    return;
  }
  const nlohmann::ordered_json content = {
      {"step", best.step},
      {"valid_loss", best.loss},
      {"checkpoint", fs::relative(checkpoint_folder(folder, best.step), folder).string()}};
  const std::string text = content.dump() + "\n";
  if (!fs::exists(file) || read_file(file.string()) != text) write_file(file.string(), text);
}

}  // namespace hero
