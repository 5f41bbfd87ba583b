// Colors are from the color-blind safe palette of Okabe and Ito.
#include "perf/schedule_drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <sstream>

namespace hero {
namespace {

constexpr double kLeft = 64, kRight = 16, kTop = 64, kRow = 30, kGap = 6, kAxis = 36, kDigit = 6.2;

struct PassStyle {
  const char* name;
  std::array<int, 3> color;
};

PassStyle style_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return {"forward", {86, 180, 233}};
    case Pass::backward:
      return {"backward", {230, 159, 0}};
    case Pass::input_gradient:
      return {"input gradient", {240, 228, 66}};
    case Pass::weight_gradient:
      return {"weight gradient", {0, 158, 115}};
  }
  return {};
}

std::string format(const char* form, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char* form, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, form);
  std::vsnprintf(text, sizeof text, form, arguments);
  va_end(arguments);
  return text;
}

// A rank's first chunk is lightest.
std::string color(Pass pass, int64_t local_chunk, int64_t chunks_of_rank) {
  const double share =
      chunks_of_rank > 1 ? static_cast<double>(local_chunk) / static_cast<double>(chunks_of_rank - 1) : 1;
  const auto c = style_of(pass).color;
  const auto mixed = [&](int v) { return static_cast<int>(std::lround(v + (255 - v) * 0.6 * (1 - share))); };
  return format("#%02x%02x%02x", mixed(c[0]), mixed(c[1]), mixed(c[2]));
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

// Tick spacing of 1, 2 or 5 times a power of ten, with at most `max_ticks` ticks in `length`.
double tick(double length, double max_ticks) {
  const double power = std::pow(10, std::floor(std::log10(length / max_ticks)));
  for (const double factor : {1, 2, 5, 10}) {
    if (power * factor * max_ticks >= length) return power * factor;
  }
  return 10 * power;
}

std::string shown_time(double seconds, double step) {
  return step < 1 ? format("%g ms", std::round(seconds * 1e6) / 1e3) : format("%g s", seconds);
}

// Wide enough for the numbers in the shortest passes, within bounds.
double drawn_width(const Simulation& simulation) {
  double shortest = simulation.seconds;
  for (const auto& spans : simulation.spans) {
    for (const Span& span : spans) {
      if (span.end > span.start) shortest = std::min(shortest, span.end - span.start);
    }
  }
  return std::clamp(22 * simulation.seconds / shortest, 700.0, 12000.0);
}

void draw_legend(std::ostringstream& out, const Schedule& schedule, int64_t chunks_of_rank) {
  double x = kLeft;
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::input_gradient, Pass::weight_gradient}) {
    const bool used = std::ranges::any_of(schedule, [&](const auto& actions) {
      return std::ranges::any_of(actions, [&](const Action& action) { return action.pass == pass; });
    });
    if (!used) continue;
    for (int64_t local_chunk = 0; local_chunk < chunks_of_rank; ++local_chunk, x += 14) {
      out << format("<rect x=\"%.1f\" y=\"32\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x,
                    color(pass, local_chunk, chunks_of_rank).c_str());
    }
    const std::string name = style_of(pass).name;
    out << format("<text x=\"%.1f\" y=\"43\">%s</text>\n", x + 5, name.c_str());
    x += 26 + 7.0 * static_cast<double>(name.size());
  }
  if (chunks_of_rank > 1) out << format("<text x=\"%.1f\" y=\"43\">darker: later chunk</text>\n", x);
}

void draw_rank(std::ostringstream& out, const Schedule& schedule, const Simulation& simulation, int64_t rank,
               int64_t chunks_of_rank, double scale) {
  const auto ranks = static_cast<int64_t>(schedule.size());
  const double y = kTop + static_cast<double>(rank) * (kRow + kGap), end = simulation.seconds;
  out << format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">rank %ld</text>\n", kLeft - 8, y + 20, rank);
  out << format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"#eeeeee\"/>\n", kLeft, y,
                end * scale, kRow);
  for (size_t i = 0; i < schedule[rank].size(); ++i) {
    const Action& action = schedule[rank][i];
    const Span span = simulation.spans[rank][i];
    const double x = kLeft + span.start * scale, width = (span.end - span.start) * scale;
    out << format("<g><title>chunk %ld, %s, micro-batch %ld: %s to %s</title>", action.chunk,
                  style_of(action.pass).name, action.micro_batch, shown_time(span.start, end).c_str(),
                  shown_time(span.end, end).c_str());
    out << format(
        "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" fill=\"%s\" stroke=\"#333333\" "
        "stroke-width=\"0.6\"/>",
        x, y, width, kRow, color(action.pass, action.chunk / ranks, chunks_of_rank).c_str());
    const std::string number = std::to_string(action.micro_batch);
    if (width > kDigit * static_cast<double>(number.size()) + 2)
      out << format("<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>", x + width / 2, y + 20,
                    number.c_str());
    out << "</g>\n";
  }
}

void draw_axis(std::ostringstream& out, const Simulation& simulation, int64_t ranks, double scale) {
  const double y = kTop + static_cast<double>(ranks) * (kRow + kGap), end = simulation.seconds;
  const double every = tick(end, end * scale / 80);
  for (int64_t i = 0; static_cast<double>(i) * every <= end * (1 + 1e-9); ++i) {
    const double seconds = static_cast<double>(i) * every, x = kLeft + seconds * scale;
    out << format("<line x1=\"%.2f\" y1=\"%.1f\" x2=\"%.2f\" y2=\"%.1f\" stroke=\"#333333\"/>\n", x, y, x,
                  y + 5);
    out << format("<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", x, y + 19,
                  shown_time(seconds, end).c_str());
  }
}

}  // namespace

std::string schedule_svg(const Schedule& schedule, const Simulation& simulation, int64_t chunks,
                         const std::string& title) {
  const auto ranks = static_cast<int64_t>(schedule.size());
  const double inner = drawn_width(simulation), scale = inner / simulation.seconds;
  const double width = kLeft + inner + kRight + 24,
               height = kTop + static_cast<double>(ranks) * (kRow + kGap) + kAxis;
  std::ostringstream out;
  out << format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" height=\"100%%\" "
      "fill=\"white\"/>\n",
      width, height, width, height);
  out << format("<text x=\"%.1f\" y=\"20\" font-size=\"14\">", kLeft) << escaped(title) << "</text>\n";
  draw_legend(out, schedule, chunks / ranks);
  for (int64_t rank = 0; rank < ranks; ++rank)
    draw_rank(out, schedule, simulation, rank, chunks / ranks, scale);
  draw_axis(out, simulation, ranks, scale);
  out << "</svg>\n";
  return out.str();
}

}  // namespace hero
