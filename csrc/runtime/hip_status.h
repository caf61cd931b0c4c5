// runtime/hip_status.h: what was found of HIP in this machine, for `hipkittens info` and `hipkittens doctor`.
// SPDX-License-Identifier: MIT
#pragma once

extern "C" {
// A JSON object, good until the thread's next call:
//   path, found_by     the library, and which place of the search it came from; null and "" if there is none
//   message            why there is no device, else ""
//   driver_version, runtime_version   as HIP counts them (60342134 is 6.3.42134), null if it does not say
//   device_count, devices             of each: ordinal, name, arch, compute_units, xcds, lds_bytes, error
//   candidates         every libamdhip64 that was seen
//   mapped             those that are in this process
const char* hipkittens_runtime_hip_status(void);
}
