#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace hero {

/// Declares --device, whose value choose_device takes.
inline void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "where to compute; auto: cuda where there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
}

}  // namespace hero
