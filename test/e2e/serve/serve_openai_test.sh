#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The server as OpenAI's own Python client sees it.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
client serve_openai.py "$model"
finish
