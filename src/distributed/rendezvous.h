#pragma once
// Rendezvous of the processes of a run through a TCPStore.
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <string>

#include "distributed/launch.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace hero {

/// Key-value stores of one start of a run. Keys of earlier starts are not visible, even if the launcher's
/// store outlives them.
struct Stores {
  c10::intrusive_ptr<c10d::Store> groups;    ///< for process group backends, which wait in it
  c10::intrusive_ptr<c10d::Store> messages;  ///< separate connection; no blocking waits
  c10::intrusive_ptr<c10d::Store> launch;    ///< with the keys of all starts, if the launcher hosts it
};

/// Connects to MASTER_ADDR:MASTER_PORT, where rank 0 hosts the store unless the launcher does, and waits for
/// all ranks. RunError after `timeout` seconds, naming the missing ranks.
Stores rendezvous(const Launch& launch, double timeout);

/// Access to a store for files that do not include its header. These do not wait and throw what the store
/// throws.
void set(c10d::Store& store, const std::string& key, const std::string& value);
/// Keeps the value of a key that is set.
void set_if_missing(c10d::Store& store, const std::string& key, const std::string& value);
/// The value of `key`, if set.
std::optional<std::string> try_get(c10d::Store& store, const std::string& key);

}  // namespace hero
