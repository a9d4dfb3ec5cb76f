// SPDX-License-Identifier: Apache-2.0
// The folder that a run leaves behind.
//
//   const std::string folder = MakeRunFolder(DefaultRunFolder("gpt-tiny", std::time(nullptr)));
//   WriteFileAtomically(folder + "/report.html", html);
#pragma once

#include <ctime>
#include <string>
#include <string_view>

namespace tessera::examples {

// "runs/2026-11-30_01-52-07_gpt-tiny", in local time. Of the name, what is no letter, digit, dot or dash becomes a dash.
std::string DefaultRunFolder(std::string_view name, std::time_t now);

// Makes the folder and those above it, and tries whether files can be made in it. When there is one already that is not
// empty, "-2", "-3", ... is added. Returns its path. Throws Error in one line.
std::string MakeRunFolder(const std::string& wanted);

// Through a new file that takes the old one's place: a reader sees the old one or the new one, never half of one. Throws
// Error.
void WriteFileAtomically(const std::string& path, std::string_view text);

}  // namespace tessera::examples
