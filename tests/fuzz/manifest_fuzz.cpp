// manifest.json of a checkpoint.
#include "checkpoint/manifest.h"
#include "fuzz/checks.h"
#include "fuzz/targets.h"
#include "io/json.h"
#include "io/sha256.h"

namespace hero::fuzz {

namespace manifest_fuzz {

// The text with the hash that a writer of these entries would have stored, without which nothing is accepted.
std::string with_hash(std::string_view text) {
  const auto parsed = parse_json_or_null(text);
  if (!parsed.is_object() || !parsed.contains("files")) return std::string(text);
  const auto& files = parsed["files"];
  return nlohmann::json{{"files", files}, {"sha256", sha256(files.dump())}}.dump(2) + "\n";
}

bool intact(const std::filesystem::path& folder) {
  const auto corruption = find_corruption(folder);
  if (corruption) check_message(*corruption, folder.string());
  return !corruption;
}

}  // namespace manifest_fuzz

bool read_manifest(std::string_view bytes) {
  using namespace manifest_fuzz;
  const std::string data = "tensors";
  const std::filesystem::path folder =
      std::filesystem::path(input_file("model.safetensors", data)).parent_path();
  const std::string good = make_manifest({{"model.safetensors", {data.size(), sha256(data)}}});
  input_file(kManifestName, bytes);
  if (intact(folder))
    require(bytes == good || bytes == make_manifest({}), "an altered manifest that is accepted");
  input_file(kManifestName, with_hash(bytes));
  return intact(folder);
}

}  // namespace hero::fuzz
