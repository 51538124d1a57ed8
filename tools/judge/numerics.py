#!/usr/bin/env python3
"""End-to-end numerics: our logits and llama.cpp's against a float32 reference, teacher-forced on mixed text.

    PYTHON tools/judge/numerics.py MODEL.gguf --psrun build/release/psrun --plan FILE [--decode] [--name smollm2 --write]

needs PyPI's numpy, gguf and llama-cpp-python. The reference is the same file dequantised by `gguf` to F32, run by
llama.cpp with f32 KV and without flash attention; it is kept in --cache (default: $PS_MODELS, else
~/.cache/pinstripe) beside the model. The tokens are those of tests/golden/numerics/text/*, in windows of 512 that
start from an empty context (and with bos, where the model wants it). Logits are compared a window at a time, so
memory stays near four windows of logits.

Prints one JSON object. For llama.cpp (the file as it is, f16 KV) and for us, a window a step and (--decode) a token a step:
  disagree       positions, of those where the reference's best two logits are 0.05 or more apart, whose best differs
  kl_mean        mean Kullback-Leibler divergence of the distribution from the reference's, in nats
and `pass`: our disagree rate at most llama.cpp's + 2 in 10,000, our kl_mean at most 1.1 times its + 1e-5. Exit 1 if not.

--write stores tests/golden/numerics/NAME.json (these numbers) and NAME-top.json: 4 windows of 128 tokens with the gap of
the reference's best two logits, its 8 best tokens and their log-probabilities at each position, which
tests/plain/test_numerics.c holds our runtime against without any of this. --top-only writes just that file.
"""
import argparse
import ctypes
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(ROOT, "tests", "golden", "numerics")
WINDOW = 512
SMALL, N_SMALL, TOP = 128, 4, 8
GAP = 0.05


def dequantise(path, cache):
    """The F32 twin of a GGUF file; made once."""
    import gguf

    out = os.path.join(cache, os.path.basename(path).removesuffix(".gguf") + ".f32.gguf")
    if os.path.exists(out):
        return out
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out + ".part", reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue
        value = 0 if field.name == "general.file_type" else field.contents()
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=sub)
    for t in reader.tensors:
        data = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        writer.add_tensor(t.name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(out + ".part", out)
    return out


class Llama:
    """One llama.cpp context that evaluates windows."""

    def __init__(self, path, threads, f32):
        import llama_cpp.llama_cpp as L

        self.L = L
        m = L.llama_model_default_params()
        # Weights as they are in the file: in a build by GCC 12 the AMX path was seen to load a tile configuration of
        # which only the first byte had been stored, and to crash there.
        m.use_extra_bufts = False
        self.model = L.llama_model_load_from_file(path.encode(), m)
        assert self.model, path
        self.vocab = L.llama_model_get_vocab(self.model)
        self.n_vocab = L.llama_vocab_n_tokens(self.vocab)
        p = L.llama_context_default_params()
        p.n_ctx = p.n_batch = p.n_ubatch = WINDOW
        p.n_threads = p.n_threads_batch = threads
        if f32:
            p.type_k = p.type_v = 0  # GGML_TYPE_F32
            p.flash_attn_type = 0
        self.ctx = L.llama_init_from_model(self.model, p)
        assert self.ctx
        self.batch = L.llama_batch_init(WINDOW, 0, 1)

    def tokens(self, text):
        buf = (ctypes.c_int32 * (len(text) + 8))()
        n = self.L.llama_tokenize(self.vocab, text, len(text), buf, len(buf), False, False)
        assert n >= 0
        return list(buf[:n])

    def bos(self):
        return [self.L.llama_vocab_bos(self.vocab)] if self.L.llama_vocab_get_add_bos(self.vocab) else []

    def logits(self, ids):
        L, b = self.L, self.batch
        L.llama_memory_clear(L.llama_get_memory(self.ctx), True)
        b.n_tokens = len(ids)
        for i, t in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = t, i, 1, 1
            b.seq_id[i][0] = 0
        assert L.llama_decode(self.ctx, b) == 0
        flat = np.ctypeslib.as_array(L.llama_get_logits(self.ctx), shape=(len(ids), self.n_vocab))
        return flat.copy()


def windows(judge, size):
    """[name, ids] of every full window of every text."""
    out = []
    for path in sorted(glob.glob(os.path.join(GOLDEN, "text", "*.txt"))):
        ids = judge.tokens(open(path, "rb").read())
        step = size - len(judge.bos())
        for at in range(0, len(ids) - step + 1, step):
            out.append((os.path.basename(path), judge.bos() + ids[at:at + step]))
    return out


def in_turn(todo):
    """The first window of every text, then the second of every text that has one, and so on."""
    seen, order = {}, []
    for k, (text, _) in enumerate(todo):
        seen[text] = seen.get(text, 0) + 1
        order.append((seen[text], k))
    return [todo[k] for _, k in sorted(order)]


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


class Score:
    """How far one side is from the reference."""

    def __init__(self):
        self.disagree, self.kl_sum, self.n, self.worst = 0, 0.0, 0, 0.0

    def report(self, n_clear):
        return {"disagree": self.disagree, "disagree_per_10000": round(self.disagree * 1e4 / n_clear, 3),
                "kl_mean": self.kl_sum / self.n, "kl_max": self.worst}


def compare(ref, sides):
    """Adds a window to the score of each (score, logits); returns how many positions are clear."""
    n_clear, rows = 0, max(1, (1 << 18) // ref.shape[1])  # few enough to stay in the caches as float64
    for lo in range(0, len(ref), rows):
        r = ref[lo:lo + rows]
        top = np.partition(r, -2, axis=1)[:, -2:]
        clear = top[:, 1] - top[:, 0] >= GAP
        n_clear += int(clear.sum())
        best, log_p = r.argmax(axis=1), log_softmax(r)
        p = np.exp(log_p)
        for score, got in sides:
            g = got[lo:lo + rows]
            kl = (p * (log_p - log_softmax(g))).sum(axis=1)
            score.disagree += int(np.sum(clear & (best != g.argmax(axis=1))))
            score.kl_sum += float(kl.sum())
            score.worst = max(score.worst, float(kl.max()))
            score.n += len(r)
    return n_clear


class Psrun:
    """Our logits, window by window, from a running psrun."""

    def __init__(self, args, chunk, ids, n_vocab):
        self.n_vocab = n_vocab
        self.file = tempfile.NamedTemporaryFile(suffix=".i32")
        np.array(ids, dtype=np.int32).tofile(self.file.name)
        command = [args.psrun, "--quiet", "--teacher-force", self.file.name, "--window", str(WINDOW), "--logits-out", "-", "--plan", args.plan]
        command += ["--chunk", str(chunk)] if chunk else []
        self.proc = subprocess.Popen(command + [args.model], stdout=subprocess.PIPE)

    def logits(self, n):
        want = n * self.n_vocab * 4
        data = self.proc.stdout.read(want)
        if len(data) != want:
            sys.exit(f"numerics: psrun ended early (exit {self.proc.wait()})")
        return np.frombuffer(data, dtype=np.float32).reshape(n, self.n_vocab)

    def end(self):
        assert self.proc.stdout.read(1) == b"", "psrun wrote more logits than asked for"
        if self.proc.wait() != 0:
            sys.exit(f"numerics: psrun failed with {self.proc.returncode}")


def coarse_kl(ref_lp, best, got):
    """Divergence over the reference's best tokens and everything else as one: what tests/plain/test_numerics.c computes."""
    p = np.exp(np.append(ref_lp[best], np.log1p(-min(np.exp(ref_lp[best]).sum(), 1 - 1e-12))))
    lp = log_softmax(got[None])[0][best]
    q = np.append(np.exp(lp), 1 - min(np.exp(lp).sum(), 1 - 1e-12))
    return float((p * np.log(p / q)).sum())


def write_top(name, ref, peer, model_sha):
    """The small regression: windows of SMALL tokens from different texts."""
    all_small = windows(ref, SMALL)
    texts = sorted({t for t, _ in all_small})
    chosen = [next(w for w in all_small if w[0] == text) for text in texts[:N_SMALL]]
    rows, disagree, kl, n_clear = [], 0, 0.0, 0
    for _, ids in chosen:
        r, g = ref.logits(ids), peer.logits(ids)
        lp = log_softmax(r)
        for i, token in enumerate(ids):
            best = np.argsort(-r[i], kind="stable")[:TOP]
            gap = float(r[i][best[0]] - r[i][best[1]])
            n_clear += gap >= GAP
            disagree += bool(gap >= GAP and g[i].argmax() != best[0])
            kl += coarse_kl(lp[i], best, g[i])
            rows.append([int(token), round(gap, 4), [int(b) for b in best], [round(float(lp[i][b]), 5) for b in best]])
    head = {"made_by": "tools/judge/numerics.py", "sha256": model_sha, "window": SMALL, "texts": [t for t, _ in chosen],
            "gap": GAP, "clear_positions": n_clear, "llama_cpp": {"disagree": disagree, "coarse_kl_mean": kl / len(rows)},
            "row": "token, gap of the reference's best two logits, its best tokens, their log-probabilities"}
    with open(os.path.join(GOLDEN, f"{name}-top.json"), "w") as f:
        f.write(json.dumps(head, indent=1)[:-2] + ',\n "rows": [\n' + ",\n".join(json.dumps(x, separators=(",", ":")) for x in rows) + "\n ]\n}\n")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("model")
    p.add_argument("--psrun", help="our program; without it only llama.cpp is compared")
    p.add_argument("--plan")
    p.add_argument("--decode", action="store_true", help="judge also steps of a single token, as when generating")
    p.add_argument("--threads", type=int, default=2, help="of llama.cpp")
    p.add_argument("--cache", default=os.environ.get("PS_MODELS", os.path.expanduser("~/.cache/pinstripe")))
    p.add_argument("--windows", type=int, default=20, help="how many; the texts take turns (20: 10,240 positions)")
    p.add_argument("--name")
    p.add_argument("--write", action="store_true")
    p.add_argument("--top-only", action="store_true")
    args = p.parse_args()
    import llama_cpp
    import llama_cpp.llama_cpp as L

    quiet = L.llama_log_callback(lambda *a: None)  # kept: the library calls it until the end
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    sha = hashlib.sha256(open(args.model, "rb").read()).hexdigest()
    ref = Llama(dequantise(args.model, args.cache), args.threads, True)
    peer = Llama(args.model, args.threads, False)
    if args.top_only:
        write_top(args.name, ref, peer, sha)
        return 0
    todo = in_turn(windows(ref, WINDOW))[:args.windows]
    stream = [t for _, ids in todo for t in ids]
    ours = {label: Psrun(args, chunk, stream, ref.n_vocab)
            for label, chunk in {"ours": 0, **({"ours_decode": 1} if args.decode else {})}.items() if args.psrun}
    scores = {label: Score() for label in ["llama_cpp", *ours]}
    n_clear, per_text = 0, {}
    for k, (text, ids) in enumerate(todo):
        got = {"llama_cpp": peer.logits(ids)} | {label: x.logits(len(ids)) for label, x in ours.items()}
        n_clear += compare(ref.logits(ids), [(scores[label], got[label]) for label in scores])
        per_text[text] = per_text.get(text, 0) + len(ids)
        so_far = ", ".join(f"{label} {x.disagree} differ, divergence {x.kl_sum / x.n:.6f}" for label, x in scores.items())
        print(f"{k + 1}/{len(todo)} windows: {so_far} ({n_clear} clear)", file=sys.stderr)
    for x in ours.values():
        x.end()
    theirs = scores["llama_cpp"]
    result = {"model": os.path.basename(args.model), "sha256": sha, "llama_cpp_python": llama_cpp.__version__,
              "window": WINDOW, "positions": theirs.n, "positions_of_text": per_text, "clear_positions": n_clear}
    result |= {label: x.report(n_clear) for label, x in scores.items()}
    result["pass"] = all(x.disagree <= theirs.disagree + 2e-4 * n_clear and x.kl_sum <= 1.1 * theirs.kl_sum + 1e-5 * x.n
                         for x in scores.values())
    text = json.dumps(result, indent=1)
    print(text)
    if args.write:
        with open(os.path.join(GOLDEN, f"{args.name}.json"), "w") as f:
            f.write(text + "\n")
        write_top(args.name, ref, peer, sha)
    return 0 if result["pass"] else 1


sys.exit(main())
