// Unicode normalization and lowercasing, compatible with Hugging Face tokenizers, whose normalization tables
// are from Unicode 9.0: characters added later are unchanged and not reordered.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hero {

class TextNormalizer {
 public:
  enum class Form { nfc, nfd, nfkc, nfkd, lowercase };

  /// Applies `forms` in order.
  explicit TextNormalizer(std::vector<Form> forms);
  ~TextNormalizer();

  bool changes_text() const { return !steps_.empty(); }
  /// Normalized text (valid UTF-8): `text` itself if unchanged, else a view of `buffer`.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  struct Step;
  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace hero
