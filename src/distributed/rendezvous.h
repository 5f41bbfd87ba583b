#pragma once
// How the processes of a run find one another.
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/launch.h"

namespace hero {

/// What all processes of one start of a run can read and write: keys of earlier starts do not show, even
/// where the launcher's store outlives them.
struct Stores {
  c10::intrusive_ptr<c10d::Store> groups;  ///< for backends, which wait in it
  c10::intrusive_ptr<c10d::Store> words;   ///< a connection of its own; nobody may wait in it
};

/// Connects to MASTER_ADDR:MASTER_PORT (rank 0 serves there unless the launcher does) and waits for all
/// ranks. RunError after `timeout` seconds, naming who did not come.
Stores meet(const Launch& launch, double timeout);

/// The value of `key`, if it is there. Throws what the store throws.
std::optional<std::string> find(c10d::Store& words, const std::string& key);

}  // namespace hero
