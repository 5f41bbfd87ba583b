#pragma once
// Rendezvous of the processes of a run through a TCPStore.
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/launch.h"

namespace hero {

/// Key-value stores of one start of a run. Keys of earlier starts are not visible, even if the launcher's
/// store outlives them.
struct Stores {
  c10::intrusive_ptr<c10d::Store> groups;    ///< for process group backends, which wait in it
  c10::intrusive_ptr<c10d::Store> messages;  ///< separate connection; no blocking waits
};

/// Connects to MASTER_ADDR:MASTER_PORT, where rank 0 hosts the store unless the launcher does, and waits for
/// all ranks. RunError after `timeout` seconds, naming the missing ranks.
Stores rendezvous(const Launch& launch, double timeout);

/// The value of `key`, if set. Does not wait. Throws what the store throws.
std::optional<std::string> try_get(c10d::Store& store, const std::string& key);

}  // namespace hero
