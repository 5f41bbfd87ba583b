#pragma once
// Validates pipeline schedules. make_schedule's are correct by construction, so only tests check them.
#include <cstdint>
#include <string>

#include "train/schedule.h"

namespace hero::test {

/// `chunks`: of the whole model. std::logic_error naming rank and action if an action is missing, duplicated,
/// on the wrong rank or deadlocked, or if a receiver needs the messages of one sender and kind (activations,
/// gradients) in a different order than they are sent.
void check_schedule(const Schedule& schedule, int64_t chunks, int64_t micro_batches);

/// One line per rank: "rank 0: 0F0 0F1 0B0 0B1".
std::string to_text(const Schedule& schedule);

}  // namespace hero::test
