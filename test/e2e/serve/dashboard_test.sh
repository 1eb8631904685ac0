#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The dashboard in Debian's chromium. Skipped where that is not installed.
chromium=$(command -v chromium || true)
if [ -z "$chromium" ]; then
  echo "skipped: chromium is not installed (tools/setup --tests)"
  exit 77
fi
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
export KN_CHROMIUM=$chromium
make_tiny 2048
client serve_dashboard.py "$tiny"
finish
