# SPDX-License-Identifier: Apache-2.0
# Sourced by the server's black-box tests, on top of e2e.sh: the clients' python, the tiny model, and a way to run one of the scripts here.
# shellcheck shell=bash disable=SC2034,SC2154
serve_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# before e2e.sh, which hides the user's cache folder from the program; KN_CLIENTS: another set than the usual one
client_python=$("${KN_SOURCE:?names the sources}/tools/test-venv" "${KN_CLIENTS-clients}") || { echo "FAIL: no environment for the clients: run tools/test-venv"; exit 1; }
# shellcheck source=test/e2e/e2e.sh
. "$serve_folder/../e2e.sh"
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$serve_folder no_proxy='*'
tiny=$work/tiny.gguf

make_tiny() { # [N_CTX]
  "$(dirname "$bin")/test/tiny_gguf" "$tiny" "${1-2048}" || { echo "FAIL: tiny_gguf did not write $tiny"; exit 1; }
}

# client SCRIPT MODEL [ARGUMENT...]: its checks must all pass
client() {
  local script=$1
  shift
  KN_BIN=$bin KN_WORK=$work "$client_python" "$serve_folder/$script" "$@" </dev/null || fail "$script: see above"
}
