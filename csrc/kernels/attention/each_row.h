// kernels/attention/each_row.h: the rows of variants.def whose kind the includer has defined as a macro; others are skipped.
// SPDX-License-Identifier: MIT
// Included once per list, hence without a guard.
#ifndef ATTENTION_FORWARD
#define ATTENTION_FORWARD(...)
#endif
#ifndef ATTENTION_BACKWARD
#define ATTENTION_BACKWARD(...)
#endif
#ifndef ATTENTION_DELTA
#define ATTENTION_DELTA(...)
#endif
#ifndef ATTENTION_CONVERT
#define ATTENTION_CONVERT(...)
#endif
#ifndef ATTENTION_COMBINE
#define ATTENTION_COMBINE(...)
#endif
#include "variants.def"
#undef ATTENTION_FORWARD
#undef ATTENTION_BACKWARD
#undef ATTENTION_DELTA
#undef ATTENTION_CONVERT
#undef ATTENTION_COMBINE
