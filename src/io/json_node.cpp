#include "io/json_node.h"

#include <algorithm>

#include "io/error.h"
#include "io/one_line.h"

namespace hero {

namespace {

std::string joined(const std::string& path, const std::string& key) {
  return path.empty() ? one_line(key) : path + "." + one_line(key);
}

}  // namespace

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_.is_object()) reject("an object");
  const auto found = value_.find(key);
  const std::string path = joined(path_, key);
  if (found == value_.end()) throw UserError(file_ + ": " + path + ": not found, expected this key");
  return {*found, file_, path};
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_.is_array()) reject("an array");
  std::vector<JsonNode> nodes;
  for (std::size_t i = 0; i < value_.size(); ++i)
    nodes.emplace_back(value_[i], file_, path_ + "[" + std::to_string(i) + "]");
  return nodes;
}

std::vector<std::string> JsonNode::keys() const {
  if (!value_.is_object()) reject("an object");
  std::vector<std::string> all;
  for (const auto& [key, member] : value_.items()) all.push_back(key);
  return all;
}

void JsonNode::check_keys(std::initializer_list<const char*> keys) const {
  if (!value_.is_object()) reject("an object");
  for (const auto& [key, member] : value_.items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    std::string known;
    for (const char* const name : keys) known += (known.empty() ? "" : ", ") + std::string(name);
    throw UserError(file_ + ": " + joined(path_, key) + ": unknown key, expected " + known);
  }
}

std::string JsonNode::text() const {
  if (!value_.is_string()) reject("a string");
  return value_.get<std::string>();
}

bool JsonNode::flag() const {
  if (!value_.is_boolean()) reject("true or false");
  return value_.get<bool>();
}

int64_t JsonNode::integer(int64_t least, int64_t most) const {
  const auto expected = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  const bool too_large = value_.is_number_unsigned() && value_.get<uint64_t>() > uint64_t{INT64_MAX};
  if (!value_.is_number_integer() || too_large) reject(expected);
  const auto number = value_.get<int64_t>();
  if (number < least || number > most) reject(expected);
  return number;
}

void JsonNode::reject(const std::string& expected) const {
  throw UserError(file_ + ": " + (path_.empty() ? "" : path_ + ": ") + "found " + format_value(value_) +
                  ", expected " + expected);
}

}  // namespace hero
