// PREFIX.idx, with a .bin file whose size the first byte of the input gives, and samples of the dataset.
#include "data/indexed_dataset.h"
#include "data/packed_dataset.h"
#include "fuzz/checks.h"
#include "fuzz/targets.h"

namespace hero::fuzz {

bool read_indexed_dataset(std::string_view bytes) {
  std::string tokens(bytes.empty() ? 0 : static_cast<unsigned char>(bytes[0]), '\0');
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<char>(i * 37);
  const std::string index = input_file("fuzzed.idx", bytes.substr(std::min<size_t>(1, bytes.size())));
  const std::string prefix = index.substr(0, index.size() - 4);
  input_file("fuzzed.bin", tokens);
  return accepted(
      bytes,
      [&](std::string_view) {
        const auto data = std::make_shared<const IndexedDataset>(prefix);
        require(data->tokens() * token_bytes(data->type()) == std::ssize(tokens),
                "tokens that the .bin lacks");
        std::vector<int64_t> ids(data->tokens());
        data->read(0, data->tokens(), ids.data());
        int64_t total = 0;
        for (int64_t d = 0; d < data->documents(); ++d) {
          require(data->document_begin(d) == total && data->document_tokens(d) >= 0, "documents with gaps");
          total += data->document_tokens(d);
        }
        require(data->documents() == 0 || total == data->tokens(), "documents that do not cover the tokens");
        for (const auto packing : {Packing::kConcat, Packing::kBestFit}) {
          PackedDataset samples(data, 3, /*seed=*/1, /*eos=*/0, packing);
          std::vector<int64_t> sample(4), trained(4), starts(4);
          for (int64_t i = 0; i < 20; ++i) {
            samples.sample(i, {.tokens = sample.data(), .starts = starts.data(), .trained = trained.data()});
            for (const int64_t is_trained : trained)
              require(is_trained == 0 || is_trained == 1, "a bad mask");
            for (int64_t j = 0; j < 4; ++j)
              require(0 <= starts[j] && starts[j] <= j, "a start after its token");
          }
          require(samples.summary().split <= data->documents(), "more split documents than documents");
        }
      },
      prefix);
}

}  // namespace hero::fuzz
