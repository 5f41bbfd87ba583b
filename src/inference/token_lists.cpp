#include "inference/token_lists.h"

#include "io/error.h"
#include "io/file_io.h"
#include "io/json.h"

namespace hero {
namespace {

using nlohmann::json;

std::vector<int64_t> read_list(const json& list, const std::string& where, const ModelConfig& model) {
  if (!list.is_array() || list.empty()) {
    throw UserError(where + ": found " + (list.is_array() ? "an empty list" : list.type_name()) +
                    ", expected a list of token ids");
  }
  if (static_cast<int64_t>(list.size()) > model.max_position_embeddings) {
    throw UserError(where + ": found " + std::to_string(list.size()) +
                    " ids, expected at most the model's max_position_embeddings = " +
                    std::to_string(model.max_position_embeddings));
  }
  std::vector<int64_t> ids;
  for (const auto& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= model.vocab_size) {
      throw UserError(where + ": found " + format_value(id) + ", expected ids from 0 to " +
                      std::to_string(model.vocab_size - 1));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace

std::vector<std::vector<int64_t>> read_token_lists(const std::string& path, const ModelConfig& model) {
  const json lists = parse_json(read_file(path), {path});
  if (!lists.is_array() || lists.empty()) {
    throw UserError(path + ": found no list of lists of token ids, expected one such as [[1, 2, 3], [4, 5]]");
  }
  std::vector<std::vector<int64_t>> out;
  for (size_t n = 0; n < lists.size(); ++n)
    out.push_back(read_list(lists[n], path + ": list " + std::to_string(n), model));
  return out;
}

}  // namespace hero
