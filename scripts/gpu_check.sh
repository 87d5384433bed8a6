#!/usr/bin/env bash
# Measures training on this machine's accelerator in under six minutes: throughput from 1k to 64k environments beside
# the device's own limits, and a run of ant. `bench roofline` fails if the compiled dispatch calls or feeds the host, or
# if an argument of it crosses.
#
#   scripts/gpu_check.sh [OUT_DIR]     PYTHON=python; SIZES and STEPS make it smaller
set -euo pipefail
out=$(realpath -m "${1:-runs/gpu_check-$(date +%Y%m%d-%H%M%S)}")
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
sizes=${SIZES:-1024 4096 16384 65536}
steps=${STEPS:-20_000_000}
mkdir -p "$out"

zerocopy_seed() { "$python" -m zerocopy_seed.cli "$@"; }

zerocopy_seed doctor | tee "$out/doctor.txt"
for config in vtrace_cartpole vtrace_breakout_minatar vtrace_ant; do
  # shellcheck disable=SC2086
  zerocopy_seed bench roofline --config "configs/$config.toml" --num-envs $sizes --json | tail -n 1 | tee "$out/$config.json"
done
zerocopy_seed train configs/vtrace_ant.toml --run-dir "$out/ant-$(date +%s)" --total-env-steps "$steps"
