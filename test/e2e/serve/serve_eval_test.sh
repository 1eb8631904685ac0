#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# EleutherAI's lm-evaluation-harness against the server: log-likelihoods are those of kn_engine_score.
KN_CLIENTS=lm-eval
# shellcheck source=test/e2e/serve/serve_env.sh
. "$(dirname "${BASH_SOURCE[0]}")/serve_env.sh"
client serve_eval.py "$model" "$serve_folder/eval_questions.jsonl" "$(dirname "$bin")/test/score_lines"
finish
