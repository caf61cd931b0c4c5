# SPDX-License-Identifier: MIT
"""The text of docs/calibration.md, around the tables of calibration_report.py."""

PAGE = """# Accuracy of the cycle model

<!-- written by benchmarks/calibration.py, but for the known errors; change that, not this -->

Every time below that is not called measured is **modelled**. Measured times are from AITER: its tuning logs contain, for a
kernel and a shape, the time on a GPU. The kernels are in AITER's wheel, so the [cycle model](timing_model.md) runs the same
code objects at the same shapes:

```sh
{commands}
```

`FILE.csv` is not in the repository. It contains the rows of ROCm/aiter's `aiter/configs/**/*tuned*.csv` whose kernel is a code object
of the wheel. In addition to the columns of the logs it has the code object (`co`, `symbol`) and the GPU (`hw`), inferred from the
number of compute units.

The file contains {distinct} distinct usable rows. Within each family and chip, {share} of them may be used for fitting: the first ones
ordered by a SHA-256 of symbol and shape, excluding problems for which several kernels were measured ({fitting} rows, listed in
`benchmarks/calibration_fit.json`). The others are held out ({held_out} rows{sampled}). To keep any family from dominating,
the sample has the same number of rows of each family, chip and bound where there are enough, cycling through the kernels of a class,
and also all kernels of problems for which several were measured.
Held out does not mean blind: no number is fitted on these rows, but their errors were looked at from one model to the next. The row
from which MI308X's clock is taken is among those that may be used for fitting.
**Only held-out rows are counted below.** Parameters replaced: {overridden}. `bench`, `profile` and `trace` print
these errors next to modelled times, from `hipkittens/profiling/model_error.json`, which `--errors` writes.

With only `--rows FILE.csv --json`, every row of a file is run, whoever measured it. The columns `hw`, `arch`, `co`, `symbol`,
`us` and those of the shape (`M`, `N`, `K`, or `token` and related ones) are sufficient, in any order. Rows that cannot be run are
reported with their line numbers on standard error, and each of the others states whether it is held out.

{goals}

## Errors in time

Mean of |predicted / measured - 1|; *bias* is the median of predicted / measured - 1. Since it is the mean of a sample, the error over
all rows has an uncertainty of ± {uncertainty} %.

{table}

{picture}The baselines are evaluated on the same rows: a *roofline* of peak matrix rate and achievable HBM bandwidth; *Origami*, AMD's
analytical model for matrix products, from its published formulas and constants, at the peak clock; and *two parameters
per kernel*, rounds x (a + b K), fitted on the rows that the model was fitted on. A kernel with fewer than three such rows uses
the pair of its family; if the family has no such row either, it has no prediction and counts in the other columns only. Since these
pairs cost nothing to fit, *of all fit rows* uses {fitting} rows and not only those that the model was run on.

## Errors in cycles

The clock at which a row was measured was not recorded. For each family, chip and bound, one clock is therefore *fitted*, on fit rows
only: the one for which modelled cycles and measured times agree best. Measured cycles are measured times multiplied by that clock. The
remaining error is that between shapes and kernels of a class; errors common to the class, including a wrong clock, are not part of it.

{classes}

{cycles}

## Before and now

The same rows in an earlier model (`benchmarks/calibration_before.json`), in which the last-level cache did not start full of dirty
lines, memory was not fitted on measured streams, and gfx950's LDS did not take 69 clocks; *bias* is the mean of modelled / measured - 1.
For attention on MI300X the kernel has changed as well: now it is the one with AITER's default rounding, which is faster than the previous one.

{before}

## Kernels at the same problem

{ranks}

A correlation of two kernels is 1 or -1, and most problems have two, so a mean over few of them means little. {repeats} kernels of
matrix products appear twice in the file at the same shape. One in ten of these pairs differs by {spread} or more, so the last columns
contain the order of kernels that a second measurement would not reverse. Kernels of mixtures of experts for the same problem mostly differ
by less than {apart}. For attention backward, AITER's table has two kernels for each problem, with 16-bit and 32-bit accumulation. These are
all problems of the file that have two kernels, and none of their rows is used for fitting.

### The kernel that the log chose

The logs keep the fastest kernel for each shape out of all kernels of its family, which were measured one after another. The other times
are not kept, but a model that ranks well ranks the log's kernel first. For held-out problems, all kernels of the family that differ
only in the tile were run, with the log's split of K:

{choices}

*Ranked before* counts equal times by half: 0 % is correct, 50 % is chance. *Longer* is in the model's own time: what choosing by
that model would lose if it were right about everything except the order.

## Streams

Achieved memory bandwidth: norms much larger than the MALL, which FlyDSL measures for its own kernels in continuous integration (August
2026, with softmax at 5.61 TB/s on an MI355X, which this package does not have), compared with ours in the model, with launch overhead. The
parameters `hbm_write_cost` and, on MI325X, `hbm_bandwidth` are fitted on RMS norm, so only the rows of layer norm are held out.

{streams}

## Kernels of published tables

AITER publishes times of its attention kernels in a table; the forward and backward objects of its wheel run in the model at the
same shapes. Nothing in the model was fitted on them. HipKittens published times of calls to AITER's Python package, of unnamed
versions: they are listed separately and do not enter any error of the model. If a problem has several figures, the fastest counts, and
the bar of the plot extends to the slowest. The tables come from events around many consecutive launches, so
`launch_overhead_microseconds` is added for each launch, and the MALL starts warm if the tensors fit. For backward, the
kernels that are not in the wheel (row sums of dO x O, and dQ to bf16) are estimated as their bytes at the achievable HBM
bandwidth. The last two columns show the fraction of the predicted time that these two make up.

{published}

## What is fitted

In addition to the model's own numbers (`hipkittens._timing.parameters`, each with its source), the clocks above are fitted and, for
the column *fitted*, measured = fixed_us + time_scale x modelled, for each chip and matrix format.

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
