// SPDX-FileCopyrightText: The accel authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes a folder of event files for read_tensorboard.py, which checks that the tensorboard package
// reads the same values. What is written here and what is expected there are the same few formulas.
#include <accel/track/tensorboard.hpp>

#include <cmath>
#include <cstdio>
#include <limits>

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  for (const int part : {0, 1}) {  // a run, and the run that resumes it
    accel::TensorBoard tracker(arguments[1]);
    if (part == 0)
      tracker.store_init_configuration({{"lr", 0.1}, {"layers", {64, 64}}, {"name", "größer"}});
    for (int step = 100 * part; step < 100 * (part + 1); ++step)
      tracker.log(
          {{"loss", 2.0 / (step + 1)}, {"eval", {{"acc", std::sqrt(step)}}}, {"seen", 64 * step}},
          step);
    tracker.log({{"note", part == 0 ? "first" : "ends & <b>"},
                 {"odd", std::numeric_limits<double>::quiet_NaN()}},
                100 * part);
    tracker.log({{"far", 1}}, 5000000000 + part);
  }
}
