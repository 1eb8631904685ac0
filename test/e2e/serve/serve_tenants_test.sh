#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tenants never share a prefix.
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
make_tiny 2048
client serve_tenants.py "$tiny"
finish
