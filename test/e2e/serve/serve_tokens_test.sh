#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The server gives the tokens that kinema run gives.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
client serve_tokens.py "$model"
finish
