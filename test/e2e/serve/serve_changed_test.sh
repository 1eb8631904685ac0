#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The model's file is overwritten, cut or replaced under a running server.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
make_tiny 4096
client serve_changed.py "$tiny"
finish
