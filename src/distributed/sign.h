#pragma once
// What a process says of itself to the others, again and again.
#include <cstdint>
#include <string>

namespace hero {

struct Sign {
  int64_t number = 0;  ///< of this process's signs; one that stands still is silent
  int64_t step = 0;
  std::string operation;  ///< waited for; empty: computing
  std::string last;       ///< operation, before it
  std::string who;        ///< host and pid
  bool ended = false;     ///< in order; nothing comes after it
};

/// Of this process, now.
Sign own_sign(int64_t number, bool ended);

std::string dump(const Sign& sign);
Sign parse_sign(const std::string& text);

/// "host HOST, pid PID" of this process.
std::string who_am_i();

/// "at step 41 in all_to_all over expert ranks, their operation 12", "at step 41, computing after all_to_all
/// ...".
std::string place(const Sign& sign);

/// "12 s", "1.5 s".
std::string seconds(double value);

}  // namespace hero
