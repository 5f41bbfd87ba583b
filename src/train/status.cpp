#include "train/status.h"

#include <cstdio>

namespace hero {

std::string status_note(const StepRecord& step, std::optional<double> validation_loss) {
  char text[64];
  std::snprintf(text, sizeof text, "loss %.4f", step.loss);
  std::string note = text;
  if (validation_loss) {
    std::snprintf(text, sizeof text, "  valid %.4f", *validation_loss);
    note += text;
  }
  return note;
}

std::string status_detail(const StepRecord& step) {
  const double percent = 100 * step.max_expert_share;
  char text[32];
  std::snprintf(text, sizeof text, percent < 10 ? "expert %.1f%%" : "expert %.0f%%", percent);
  return text;
}

}  // namespace hero
