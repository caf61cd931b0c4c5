# SPDX-License-Identifier: MIT
"""The text of docs/calibration.md, around the tables of calibration_report.py."""

PAGE = """# How far the cycle model is off

<!-- written by benchmarks/calibration.py, but for the known errors; change that, not this -->

Every time below that is not called measured is **modelled**. Measured times are AITER's: its tuning logs give, for a
kernel and a shape, the time on a GPU. The kernels are in its wheel, so the [cycle model](timing_model.md) runs the same
code objects at the same shapes:

```sh
{commands}
```

`FILE.csv` is not in the repository. It has the rows of ROCm/aiter's `aiter/configs/**/*tuned*.csv` whose kernel is a code object of
the wheel, with the object (`co`, `symbol`) and what the number of compute units says of the GPU (`hw`) beside the logs' columns.

The file holds {distinct} distinct rows that say enough. Within each family and chip {share} of them, the first by a
SHA-256 of symbol and shape but no problem that several kernels were measured at, may be fitted on ({fitting} rows, which `benchmarks/calibration_fit.json`
names); the others are held out ({held_out} rows{sampled}). So that
no family swamps the others, the sample has equally many rows of each family, chip and bound as far as there are, the kernels
of a class in turn, and with them all kernels of problems that several were measured at.
Held out does not mean blind: no number is fitted on these rows, but their errors were looked at from one model to the next. The row
that MI308X's clock is taken from may be fitted on.
**Only held-out rows are counted below.** Parameters replaced: {overridden}. `bench`, `profile` and `trace` print
these errors beside what they model, from `hipkittens/profiling/model_error.json`, which `--errors` writes.

With `--rows FILE.csv --json` alone every row of a file is run, whoever measured it: the columns `hw`, `arch`, `co`, `symbol`,
`us` and those of the shape (`M`, `N`, `K`, or `token` and its like) are enough, in any order. Rows that cannot be run are named
by their lines on standard error, and each of the others says whether it is held out.

{goals}

## Errors in time

Mean of |predicted / measured - 1|; *bias* is the median of predicted / measured - 1. As a mean of a sample the error of all
rows is known to ± {uncertainty} %.

{table}

{picture}The baselines see the same rows: a *roofline* of peak matrix rate and achievable HBM bandwidth; *Origami*, AMD's
analytical model for matrix products, from its published formulas and constants, at the peak clock; and *two parameters
per kernel*, rounds x (a + b K), fitted on the rows that the model was fitted on, where a kernel with fewer than three such
rows takes the pair of its family, and none where that has no such row either: those count in the other columns only. Since it
costs nothing to fit them, *of all fit rows* has {fitting} rows and not only those that the model was run on.

## Errors in cycles

Nobody recorded the clock at which a row was measured. So for each family, chip and bound one clock is *fitted*, on fit rows
only: the one with which modelled cycles and measured times agree best. Measured cycles are measured times at that clock. What
is left is the error between shapes and kernels of a class; what a class has in common, wrong clocks among it, is not in it.

{classes}

{cycles}

## Before and now

The same rows in the model before its last-level cache began full of dirty lines, memory was fitted on measured streams, and
gfx950's LDS took 69 clocks (`benchmarks/calibration_before.json`); *bias* is the mean of modelled / measured - 1. Of attention on
MI300X the kernel is another one as well: AITER's default rounding, which is faster than the one before.

{before}

## Kernels at the same problem

{ranks}

A correlation of two kernels is 1 or -1, and most problems have two: a mean over few of them says little. {repeats} kernels of
matrix products are twice in the file at the same shape; one in ten of these pairs differs by {spread} or more, so the last columns
have what a second measurement would not reverse. Kernels of mixtures of experts at the same problem mostly differ by less than
{apart}. Of attention backward AITER's table has two kernels for each problem, with sums of 16 and of 32 bits. These are all problems
of the file that have two kernels, and no row of them is fitted on.

### The kernel that the log chose

The logs keep the fastest kernel of each shape, out of all of its family, which were measured one after the other. The other times
are not kept, but a model that ranks well has the log's kernel first. At held-out problems all kernels of the family that differ
in the tile alone were run, with the log's split of K:

{choices}

*Ranked before* counts equal times by half: 0 % is right, 50 % is chance. *Longer* is in the model's own time: what the choice by
that model would lose if it were right about all but the order.

## Streams

What memory reaches: norms far larger than the MALL, which FlyDSL measures of its own kernels in continuous integration (August
2026, with softmax at 5.61 TB/s on an MI355X, which this package does not have), beside ours in the model with launch overhead. The
parameters `hbm_write_cost` and, on MI325X, `hbm_bandwidth` are fitted on RMS norm, so the rows of layer norm alone are held out.

{streams}

## Kernels of published tables

AITER publishes times of its attention kernels in a table; the forward and backward objects of its wheel run in the model at the
same shapes. Nothing of the model was fitted on them. HipKittens published times of calls of AITER's Python package, of unnamed
versions: they are set apart, and no error of the model is made of them. Where a problem has several figures the fastest counts,
and the bar of the plot reaches to the slowest. The tables come from events around many launches in a row, so `launch_overhead_microseconds` is added for each, and the MALL starts warm where the tensors fit. Of backward, the
kernels that the wheel does not have (row sums of dO x O, and dQ to bf16) count with their bytes at the achievable HBM
bandwidth. The last two columns say how much of the predicted time these two are.

{published}

## What is fitted

Beside the model's own numbers (`hipkittens._timing.parameters`, each with its source): the clocks above, and, for the column
that says so, measured = fixed_us + time_scale x modelled, for each chip and matrix format.

{fitted}

## Largest errors

{worst}

## Known errors

{begin}

{known}

{end}

## Left out

{left_out}
"""
