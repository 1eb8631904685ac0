# SPDX-License-Identifier: Apache-2.0
"""EleutherAI's lm-evaluation-harness (lm_eval, model local-completions) on tasks of our own: each log-likelihood that it takes from the
server's echo is held against kn_engine_score's, which score_lines prints. The server is the harness's tokenizer, too.
Arguments: MODEL QUESTIONS SCORE_LINES."""
import json
import math
import os
import subprocess
import sys

for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[name] = "1"
os.environ["TQDM_DISABLE"] = "1"
os.environ["HF_HOME"] = os.path.join(os.environ["KN_WORK"], "hf")

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window  # noqa: E402

from serve_bed import Server, run  # noqa: E402

QUESTIONS, SCORE_LINES = sys.argv[2:4]
N_CTX = 2048
WINDOW = 16  # tokens of a rolling window, so that texts need several
server = Server("-c", str(N_CTX))
MODEL = server.get("/v1/models").json["data"][0]["id"]
DATA = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": QUESTIONS}}, "test_split": "test", "metadata": {"version": 1}}
CHOICE = {"task": "kinema_choice", **DATA, "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
          "doc_to_target": "{{answer}}", "target_delimiter": "", "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]}
ROLLING = {"task": "kinema_rolling", **DATA, "output_type": "loglikelihood_rolling", "doc_to_text": "",
           "doc_to_target": "{{question}}{{choices[0]}}. {{question}}{{choices[1]}}. {{question}}{{choices[2]}}.",
           "metric_list": [{"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}]}

GENERATE = {"task": "kinema_generate", **DATA, "output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{choices[0]}}",
            "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 6, "do_sample": False},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]}


def encode(text):
    return server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]


def score(sequences):
    """(log-probabilities, likeliest tokens) of each sequence of ids, by kn_engine_score."""
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in sequences)
    done = subprocess.run([SCORE_LINES, sys.argv[1], str(N_CTX)], input=lines, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-400:]
    out = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(out) == len(sequences)
    return [(o["logprobs"], o["greedy"]) for o in out]


def evaluate(task, **model_args):
    args = {"base_url": server.url + "/v1/completions", "model": MODEL, "num_concurrent": 1, "max_retries": 1, **model_args}
    results = lm_eval.simple_evaluate(model="local-completions", model_args=args, tasks=[dict(task)], batch_size=args.pop("batch_size", 1),
                                      task_manager=TaskManager(include_defaults=False), log_samples=True, bootstrap_iters=0)
    return results["results"][task["task"]], results["samples"][task["task"]]


def near(got, want, n_tokens, what):
    assert math.isfinite(got) and abs(got - want) <= 1e-4 * max(1, n_tokens), (what, got, want)


def check_choices():
    results, samples = evaluate(CHOICE)
    pairs = [(arguments, response) for s in samples for arguments, response in zip(s["arguments"].values() if isinstance(s["arguments"], dict)
                                                                                   else s["arguments"], s["resps"])]
    assert len(pairs) == 3 * len(samples) >= 18, pairs
    split = []
    for arguments, _ in pairs:
        context, continuation = (arguments["arg_0"], arguments["arg_1"]) if isinstance(arguments, dict) else arguments[:2]
        whole = encode(context + continuation)
        split.append((whole, len(encode(context))))
    worst = 0.0
    for (ids, n_context), (logprobs, greedy), (_, response) in zip(split, score([ids for ids, _ in split]), pairs):
        got, is_greedy = response[0]
        want = sum(logprobs[n_context:])
        near(float(got), want, len(ids) - n_context, ids)
        worst = max(worst, abs(float(got) - want))
        assert str(is_greedy) == str(greedy[n_context:] == ids[n_context:]), (ids, greedy, is_greedy)
    print(f"  {len(pairs)} continuations, the largest difference is {worst:.2g}; accuracy {results['acc,none']}")


def check_batches_and_texts():
    """Several prompts in a request; several requests at once; prompts as text. All say the same, but for sums of floats."""
    def responses(**args):
        return [[float(r[0][0]) for r in s["resps"]] for s in evaluate(CHOICE, **args)[1]]
    want = responses()
    for args in ({"batch_size": 5}, {"batch_size": 4, "num_concurrent": 3}, {"tokenized_requests": False}):
        for w, g in zip(want, responses(**args)):
            assert len(w) == len(g) == 3
            for a, b in zip(w, g):
                near(b, a, 8, args)


def check_rolling():
    _, samples = evaluate(ROLLING, max_length=WINDOW + 1)
    bos = server.get("/tokenizer_info").json
    prefix = encode(bos["bos_token"] or bos["eos_token"])[0]
    windows, owners = [], []
    for i, s in enumerate(samples):
        text = s["target"]
        rolled = list(map(make_disjoint_window, get_rolling_token_windows(token_list=encode(text), prefix_token=prefix, max_seq_len=WINDOW - 1,
                                                                          context_len=1)))
        assert len(rolled) > 1, (text, rolled)
        windows += rolled
        owners += [i] * len(rolled)
    sums = [0.0] * len(samples)
    counts = [0] * len(samples)
    for owner, (context, continuation), (logprobs, _) in zip(owners, windows, score([c + n for c, n in windows])):
        sums[owner] += sum(logprobs[len(context):])
        counts[owner] += len(continuation)
    for s, want, n in zip(samples, sums, counts):
        got = s["resps"][0]
        got = float(got[0] if isinstance(got, (list, tuple)) else got)
        near(got, want, n, s["target"])


def check_generation():
    _, samples = evaluate(GENERATE, batch_size=3)
    for s in samples:
        arguments = s["arguments"]
        context = next(iter(arguments.values()))["arg_0"] if isinstance(arguments, dict) else arguments[0][0]
        want = server.complete(encode(context), 6, stop=["\n\n"])[0]
        assert s["resps"][0][0] == want, (context, s["resps"], want)
        assert want, context


def check_nothing_is_left():
    server.wait_idle()
    server.stop()


try:
    run(globals())
finally:
    server.kill()
