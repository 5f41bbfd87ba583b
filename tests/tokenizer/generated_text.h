// Deterministic generated texts: edge cases for tokenizers, and plain code as training text.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "data/counter_random.h"

namespace hero {

inline void append_utf8(std::string& text, uint32_t c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else if (c < 0x10000) {
    text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
             static_cast<char>(0x80 | (c & 63))};
  } else {
    text += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
             static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
  }
}

class RandomStream {
 public:
  explicit RandomStream(uint64_t key) : key_(key) {}
  uint64_t below(uint64_t n) { return counter_bits(key_, count_++) % n; }

 private:
  uint64_t key_, count_ = 0;
};

inline std::string edge_case_text(uint64_t number) {
  static const std::string kWhole[] = {
      "\xE2\x96\x81",
      "\xE2\x96\x85",
      "</s>",
      "<unk>",
      "<0x0A>",
      "\xEF\xBB\xBF",
      "\xEF\xBF\xBD",
      "\xE2\x80\xA8",
      "\xC2\xA0",
      "e\xCC\x81",
      "\xEF\xAC\x81",
      "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
      "\r\n",
      "don't",
      "def f(x):\n    return x\n",
      "http://a.b/c?d=e&f#g",
      std::string("\0", 1),
      "\x7F",
      " \xE2\x96\x81 ",
      "\xEF\xBF\xBF"};
  RandomStream rng(number);
  std::string text;
  for (uint64_t part = rng.below(12); part > 0; --part) {
    const uint64_t length = 1 + rng.below(rng.below(20) == 0 ? 300 : 8);
    const uint64_t kind = rng.below(12);
    if (kind == 0) text += std::string(length, ' ');
    if (kind == 1) text += std::string(length, '\n');
    if (kind == 2) text += std::string(length, '\t');
    if (kind == 3) text += std::to_string(rng.below(1000000000));
    if (kind == 4) text += kWhole[rng.below(std::size(kWhole))];
    for (uint64_t i = 0; kind > 4 && i < length; ++i) {
      if (kind == 5) text += static_cast<char>('a' + rng.below(26));
      if (kind == 6) append_utf8(text, 0x4E00 + rng.below(0x5200));
      if (kind == 7) append_utf8(text, 0x1F300 + rng.below(0x300));
      if (kind == 8) text += static_cast<char>(rng.below(0x80));
      if (kind == 9) append_utf8(text, 0x80 + rng.below(0xD000));
      if (kind == 10) append_utf8(text, 0xE000 + rng.below(0x102000));
      if (kind == 11) text += "(){}[].,;:=+-*/ \n\t_\"'"[rng.below(21)];
    }
  }
  return text;
}

inline std::string plain_code(uint64_t functions) {
  static const std::string kNames[] = {"router",  "expert", "token", "layer",
                                       "history", "weight", "scale", "index"};
  RandomStream rng(functions);
  std::string text;
  for (uint64_t i = 0; i < functions; ++i) {
    const auto name = [&] { return kNames[rng.below(8)] + "_" + kNames[rng.below(8)]; };
    text += "def " + name() + "(" + name() + ", " + name() + "):\n    if " + name() + " > " +
            std::to_string(rng.below(100)) + ":\n        return [" + name() + ", \"" + name() +
            "\"]\n\n\t\t" + name() + " += 1\n\n\n";
  }
  return text;
}

inline std::string json_line(const std::string& text) { return nlohmann::json{{"text", text}}.dump() + "\n"; }

}  // namespace hero
