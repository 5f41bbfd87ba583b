#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/word_cache.h"

namespace hero {

/// Interface of the tokenizer formats; see Tokenizer for the members. Tokenizer validates ids before calls.
class TokenizerBackend {
 public:
  virtual ~TokenizerBackend() = default;
  virtual void encode(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const = 0;
  virtual void encode_conversation(std::string_view text, std::vector<int32_t>& ids, WordCache& cache) const {
    encode(text, ids, cache);
  }
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual std::string piece(int32_t id) const = 0;
  virtual std::string bytes(int32_t id) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual int32_t eos_id() const = 0;
  virtual int32_t bos_id() const = 0;
  virtual bool lossless() const = 0;
};

}  // namespace hero
