// Unicode normalisation and lower case as Hugging Face's tokenizers write them. Its normalisation tables are
// those of Unicode 9.0: characters assigned since stay as they are and reorder with nothing, here too.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hero {

class TextNormalizer {
 public:
  enum class Form { nfc, nfd, nfkc, nfkd, lowercase };

  /// One after the other; none leaves text as it is.
  explicit TextNormalizer(std::vector<Form> forms);
  ~TextNormalizer();

  bool changes_text() const { return !steps_.empty(); }
  /// The normalised text (valid UTF-8): `text` itself where nothing changes, else what is now in `buffer`.
  std::string_view apply(std::string_view text, std::string& buffer) const;

 private:
  struct Step;
  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace hero
