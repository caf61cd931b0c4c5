#!/bin/bash
# SPDX-License-Identifier: MIT
# fuzz/elsewhere.sh: fuzzes on several cores of a machine that needs nothing but this folder, which `tools/fuzz.py --portable` made.
#
#     ./elsewhere.sh TARGET SECONDS PROCESSES OUT
#
# The processes share OUT/corpus/TARGET. One that found a crash, kept in OUT/crashes/TARGET, starts again until the time is over.
# `tools/fuzz.py TARGET --from OUT` takes in what was found, and counts OUT/logs/TARGET.
set -u
here=$(cd "$(dirname "$0")" && pwd)
target=$1 seconds=$2 processes=$3 out=$4
# shellcheck source=/dev/null
. "$here/options" # longest_TARGET, ASAN_OPTIONS and UBSAN_OPTIONS
longest=longest_$target
mkdir -p "$out"/{corpus,crashes,logs}/"$target"
cp -n "$here/corpus/$target"/* "$out/corpus/$target/"
TIMEFORMAT="processor seconds: %U %S"
end=$((SECONDS + seconds))
for ((i = 0; i < processes; ++i)); do
    (
        for ((n = 0; end - SECONDS > 5; ++n)); do
            # The loader and the C library it was built for, whatever this machine has.
            { time "$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib" "$here/$target" \
                -max_total_time=$((end - SECONDS)) -max_len="${!longest}" -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 \
                -reload=10 -artifact_prefix="$out/crashes/$target/" "$out/corpus/$target"; } >"$out/logs/$target/$i-$n.log" 2>&1
        done
    ) &
done
wait
awk '/number_of_executed_units/ { n += $2 } END { print n + 0, "executions" }' "$out/logs/$target"/*.log
echo "$(find "$out/crashes/$target" -type f | wc -l) crashes and slow inputs"
