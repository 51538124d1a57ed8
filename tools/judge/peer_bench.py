"""One peer process of speed.py: llama.cpp through PyPI's llama-cpp-python. Reads a line per round from standard
input, answers each with a JSON line {"prefill_s": ..., "decode_s": ...}.

Usage: peer_bench.py MODEL.gguf THREADS PROMPT_TOKENS DECODE_TOKENS FLASH(0|1)
"""
import ctypes
import json
import random
import sys
import time

import llama_cpp as ll

model_path, threads, n_prompt, n_decode, flash = sys.argv[1], *map(int, sys.argv[2:6])


@ll.llama_log_callback
def silent(level, text, data):
    pass


ll.llama_log_set(silent, ctypes.c_void_p(0))
ll.llama_backend_init()
model = ll.llama_model_load_from_file(model_path.encode(), ll.llama_model_default_params())
params = ll.llama_context_default_params()
params.n_ctx = n_prompt + n_decode + 8
params.n_batch = params.n_ubatch = max(512, min(n_prompt, 2048))
params.n_threads = params.n_threads_batch = threads
params.flash_attn_type = flash
ctx = ll.llama_init_from_model(model, params)
vocab = ll.llama_model_get_vocab(model)
n_vocab = ll.llama_vocab_n_tokens(vocab)
random.seed(1)
prompt = (ll.llama_token * n_prompt)(*[random.randrange(n_vocab) for _ in range(n_prompt)])
memory = ll.llama_get_memory(ctx)


def best():
    logits = ll.llama_get_logits_ith(ctx, -1)
    return max(range(0, n_vocab, max(1, n_vocab // 64)), key=lambda i: logits[i])


def one_round():
    ll.llama_memory_clear(memory, True)
    start = time.perf_counter()
    assert ll.llama_decode(ctx, ll.llama_batch_get_one(prompt, n_prompt)) == 0
    ll.llama_get_logits_ith(ctx, -1)
    prefill = time.perf_counter() - start
    token = (ll.llama_token * 1)(best())
    decode = 0.0
    for _ in range(n_decode):
        start = time.perf_counter()
        assert ll.llama_decode(ctx, ll.llama_batch_get_one(token, 1)) == 0
        ll.llama_get_logits_ith(ctx, -1)
        decode += time.perf_counter() - start
        token[0] = best()
    return {"prefill_s": prefill, "decode_s": decode}


one_round()
print("ready", flush=True)
for _ in sys.stdin:
    print(json.dumps(one_round()), flush=True)
