#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A failing store never changes or stops an answer.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
make_tiny 2048
client serve_store.py "$tiny"
finish
