#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# SIGTERM lets end what is under way.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
make_tiny 16384
client serve_drain.py "$tiny"
finish
