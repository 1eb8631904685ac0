#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Many clients that leave, read slowly and send garbage: everything ends, nothing leaks. With --long: 64 clients for two minutes on the real
# model. Under a sanitizer fewer clients, and no look at the memory, which the sanitizer keeps.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"

clients=16 seconds=15 options=()
if grep -qE '__(asan|tsan)_init' "$bin"; then
  clients=6 seconds=10 options=(--no-rss)
  export KN_PATIENCE=3
fi
if [ "${1-}" = --long ]; then
  export KN_PATIENCE=5 # 64 requests share two cores
  client serve_stress.py "$model" "${KN_STRESS_CLIENTS:-64}" "${KN_STRESS_SECONDS:-120}" "${options[@]}" -- --pool-size 64M -c 1024 --max-running 16
else
  make_tiny 2048
  # with a store, so that fetches and publishes go on beside; the pool is small, so that requests lose their blocks
  client serve_stress.py "$tiny" "${KN_STRESS_CLIENTS:-$clients}" "${KN_STRESS_SECONDS:-$seconds}" "${options[@]}" -- --pool-size 3M --max-running 8 \
    --store "lmdb:$work/stress" --chunk-tokens 64 --preset exact
fi
finish
