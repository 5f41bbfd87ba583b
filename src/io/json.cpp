#include "io/json.h"

#include <utility>
#include <vector>

#include "io/error.h"

namespace hero {
namespace {

constexpr size_t kMaxDepth = 100;

std::string truncated(const std::string& text) {
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

// Builds the value, and checks depth, keys and numbers meanwhile. (The library's callback parser takes time
// quadratic in the entries of an object.)
template <class Json>
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonSource& source) : source_(source) {}

  Json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(typename Json::number_integer_t value) override { return add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) override { return add(value); }
  bool number_float(typename Json::number_float_t value, const typename Json::string_t&) override {
    return add(value);
  }
  bool string(typename Json::string_t& value) override { return add(std::move(value)); }
  bool binary(typename Json::binary_t&) override { return false; }  // only in binary formats
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(typename Json::string_t& name) override {
    const auto [member, added] = open_.back()->emplace(name, Json());
    if (!added) {
      throw UserError(place() + ": entry " + format_value(name) +
                      " is a duplicate key, expected unique keys");
    }
    member_ = &*member;
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const typename Json::exception& error) override {
    if (dynamic_cast<const typename Json::out_of_range*>(&error)) {
      const std::string what = error.what();  // "... number overflow parsing '1e400'"
      throw UserError(place() + ": found number " + truncated(what.substr(what.rfind(' ') + 1)) +
                      ", expected a value in the range of a double");
    }
    const size_t at = source_.offset + (byte > 0 ? byte - 1 : 0);
    throw UserError(place() + (source_.line > 0 ? ", byte " : ": byte ") + std::to_string(at) +
                    ": found invalid JSON, expected one JSON value");
  }

 private:
  std::string place() const {
    return std::string(source_.file) + (source_.line > 0 ? ": line " + std::to_string(source_.line) : "");
  }
  Json& store(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& parent = *open_.back();
    if (parent.is_object()) return *member_ = std::move(value);
    return parent.emplace_back(std::move(value));
  }
  bool add(Json value) {
    store(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() >= kMaxDepth) {
      const std::string most = std::to_string(kMaxDepth) + " levels";
      throw UserError(place() + ": found values nested deeper than " + most + ", expected at most " + most);
    }
    open_.push_back(&store(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonSource& source_;
  Json root_;
  std::vector<Json*> open_;  // objects and arrays that contain the next value, outermost first
  Json* member_ = nullptr;   // of the innermost object: where the next value goes
};

template <class Json>
Json parse(std::string_view text, const JsonSource& source) {
  Builder<Json> builder(source);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const JsonSource& source) {
  return parse<nlohmann::json>(text, source);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const JsonSource& source) {
  return parse<nlohmann::ordered_json>(text, source);
}

nlohmann::json parse_json_or_null(std::string_view text) {
  try {
    return parse_json(text, {});
  } catch (const UserError&) {
    return nullptr;
  }
}

std::string format_value(const nlohmann::json& value) {
  return truncated(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace hero
