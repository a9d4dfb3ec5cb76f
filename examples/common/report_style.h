// SPDX-License-Identifier: Apache-2.0
// The style sheet of the report, and the script that reads charts out under the pointer. The page is complete without the
// script; both are part of it, for it must need no network.
#pragma once

namespace tessera::examples {

extern const char kReportStyle[];
extern const char kReportScript[];

}  // namespace tessera::examples
