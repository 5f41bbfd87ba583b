#include "study/variants.h"

#include <algorithm>
#include <set>

#include "config/fields.h"
#include "config/find.h"
#include "config/mtp_layers.h"
#include "config/router_kinds.h"
#include "io/error.h"
#include "model/router_kind.h"

namespace hero {
namespace {

namespace fs = std::filesystem;

std::vector<std::vector<int64_t>> all_visible(const Config& config) {
  const auto stages = stage_of_layers_with_modules(config.model, config.router);
  std::vector<std::vector<int64_t>> all;
  for (int64_t l = 1; l <= static_cast<int64_t>(stages.size()); ++l)
    all.push_back(router_kind(config.router).visible(l, stages, config.router));
  return all;
}

void check_comparable(const Variant& variant, const Variant& first) {
  const auto different =
      differences(first.config, variant.config, [](const Field& field) { return field.has(kEqualInStudy); });
  if (different.empty()) return;
  throw UserError("--variants: " + variant.name + " differs from " + first.name + " (" + different.front() +
                  "); expected the same value in all variants of a study");
}

}  // namespace

std::vector<Variant> read_variants(const fs::path& base, const std::vector<std::string>& names,
                                   const std::vector<std::string>& flags) {
  std::vector<Variant> variants;
  for (const auto& name : names) {
    const auto overlay = find_config("--variants", name, {base.parent_path(), config_folder()});
    Variant variant;
    variant.name = overlay.stem().string();
    variant.overlay = overlay;
    for (const auto& other : variants) {
      if (other.name == variant.name) {
        throw UserError("--variants: found " + variant.name + " twice, expected unique names");
      }
    }
    variant.config = load_config({base.string(), overlay.string()}, flags);
    check(variant.config);
    if (!variants.empty()) check_comparable(variant, variants.front());
    const auto same = std::ranges::find_if(
        variants, [&](const Variant& v) { return same_model(v.config, variant.config); });
    if (same != variants.end()) variant.same_as = same->same_as.empty() ? same->name : same->same_as;
    variants.push_back(std::move(variant));
  }
  return variants;
}

void prefer_existing_runs(std::vector<Variant>& variants, const fs::path& out) {
  std::set<std::string> existing;
  std::error_code missing;
  for (const auto& seed : fs::directory_iterator(out, missing)) {
    for (const auto& variant : variants) {
      if (fs::exists(seed.path() / variant.name / "config.toml")) existing.insert(variant.name);
    }
  }
  for (Variant& trained : variants) {
    if (!trained.same_as.empty() || existing.contains(trained.name)) continue;
    const auto other = std::ranges::find_if(
        variants, [&](const Variant& v) { return v.same_as == trained.name && existing.contains(v.name); });
    if (other == variants.end()) continue;
    for (Variant& variant : variants) {
      if (variant.same_as == trained.name) variant.same_as = other->name;
    }
    trained.same_as = other->name;
    other->same_as.clear();
  }
}

bool same_model(const Config& a, const Config& b) {
  if (a.router.kind != b.router.kind) return false;
  Config other = b;
  // With parallel.history_top stages also decide which layers a pipeline rank receives in part.
  if (all_visible(a) == all_visible(b) && history_top(a) == 0)
    copy_values(a, other, [](const Field& field) { return field.has(kSelectsHistory); });
  return differences(a, other, [&](const Field& field) { return reads_option(a.router, field); }).empty();
}

int64_t layers_cut(const Config& config) {
  if (config.router.window == 0) return 0;
  Config uncut = config;
  uncut.router.window = 0;
  const auto with = all_visible(config), without = all_visible(uncut);
  int64_t cut = 0;
  for (size_t i = 0; i < with.size(); ++i) cut += with[i].size() < without[i].size();
  return cut;
}

}  // namespace hero
