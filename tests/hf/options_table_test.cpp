// Compares the column "export" of docs/options.md and the attribute kInConfigJson with the written
// config.json, and the column "resume" with the attributes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "config/fields.h"
#include "config/router_kinds.h"
#include "hf/model_config.h"

namespace hero {
namespace options_table_test {

// Option -> cell of column `index`. Columns: option, training, inference, export, resume, ranks.
constexpr size_t kExport = 3, kResume = 4;
std::map<std::string, std::string> table_column(size_t index) {
  std::map<std::string, std::string> column;
  std::ifstream file(std::filesystem::path(HERO_SOURCE_DIR) / "docs/options.md");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `")) continue;
    std::vector<std::string> cells;
    for (size_t begin = 1, end = 0; (end = line.find('|', begin)) != std::string::npos; begin = end + 1)
      cells.push_back(line.substr(begin + 1, end - begin - 2));
    if (cells.size() == 6) column[cells[0].substr(1, cells[0].size() - 2)] = cells[index];
  }
  return column;
}

FieldValue different_value(const Field& field) {
  const FieldValue value = read(field);
  if (const auto* on = std::get_if<bool>(&value)) return !*on;
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (field.choices.empty()) return *text + "a";
    const auto at = std::ranges::find(field.choices, *text) - field.choices.begin();
    return field.choices[(at + 1) % field.choices.size()];
  }
  if (const auto* number = std::get_if<double>(&value)) return *number == 0 ? 0.5 : *number / 2;
  if (const auto* count = std::get_if<int64_t>(&value)) return *count + 1;
  if (std::holds_alternative<std::vector<std::string>>(value)) return std::vector<std::string>{"a"};
  if (std::holds_alternative<std::vector<DataPhase>>(value)) return std::vector<DataPhase>{{.blend = {"a"}}};
  return field.key == "router.stage_sizes" ? std::vector<int64_t>{2, 4} : std::vector<int64_t>{1};
}

Config base(ModelType model_type, const std::string& kind) {
  Config c;
  c.model.model_type = model_type;
  c.model.num_hidden_layers = 6;
  c.model.rope_scaling = {
      .type = RopeType::kYarn, .factor = 2, .mscale = 0.5, .mscale_all_dim = 0.5, .attention_factor = 0.5};
  c.router.kind = kind;
  c.router.balance = BalanceScope::kPooled;
  return c;
}

TEST(OptionsTable, ExportColumn) {
  const auto column = table_column(kExport);
  Config listed;
  for (const Field& named : fields(listed)) {
    ASSERT_TRUE(column.contains(named.key)) << named.key << " has no row in docs/options.md";
    bool carried = false;
    for (const RouterKindInfo& kind : router_kinds()) {
      for (const auto type :
           {ModelType::kQwen3Moe, ModelType::kDeepseekV3, ModelType::kOlmoe, ModelType::kMixtral}) {
        const Config before = base(type, kind.name);
        Config after = before;
        const auto list = fields(after);
        const Field& field = *find_field(list, named.key);
        ASSERT_TRUE(assign(field, different_value(field))) << named.key;
        carried |= model_config_json(after, -1) != model_config_json(before, -1);
      }
    }
    EXPECT_EQ(column.at(named.key).starts_with("carried"), carried)
        << named.key << ": " << column.at(named.key);
    EXPECT_EQ(named.has(kInConfigJson), carried) << named.key;
  }
  EXPECT_EQ(column.size(), fields(listed).size());
}

TEST(OptionsTable, ResumeColumn) {
  const auto column = table_column(kResume);
  Config listed;
  for (const Field& field : fields(listed)) {
    ASSERT_TRUE(column.contains(field.key)) << field.key << " has no row in docs/options.md";
    const std::string& cell = column.at(field.key);
    EXPECT_TRUE(cell.starts_with(field.has(kMayChangeOnResume) ? "free" : "fixed"))
        << field.key << ": " << cell;
  }
}

}  // namespace options_table_test
}  // namespace hero
