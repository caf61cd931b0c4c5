// runtime/hip_status.h: the HIP installation found on this machine, for `hipkittens info` and `hipkittens doctor`.
// SPDX-License-Identifier: MIT
#pragma once

extern "C" {
// A JSON object, valid until the thread's next call:
//   path, found_by     the library, and the search location it came from; null and "" if there is none
//   message            why there is no device, else ""
//   driver_version, runtime_version   HIP's version number (60342134 is 6.3.42134), null if not reported
//   device_count, devices             of each: ordinal, name, arch, compute_units, xcds, lds_bytes, error
//   candidates         every libamdhip64 that was found
//   mapped             those that are mapped into this process
const char* hipkittens_runtime_hip_status(void);
}
