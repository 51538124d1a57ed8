#!/usr/bin/env python3
"""Write the seed corpus of fuzz_tokenizer (its first lines say what the bytes mean)."""
import os
import struct

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "tokenizer")
TEXTS = {
    "words": b"the cat's abc, THE 12345 ab\n\n  end\r\n",
    "special": b"<s>a<b>b</s>----- <unk>--- \n\n\n<|im_end|>",
    "scripts": "é e\u0301 中文 한국 ไทย हिन्दी 🙂👨\u200d👩 ٣٤ ½ \u00a0\u3000x".encode(),
    "not-utf8": b"\xff\x80\xc3 \xe2\x82 \xf0\x9f\x99 \xed\xa0\x80 \xc0\xa0\xc0\xa7s \xf4\x90\x80\x80",
    "runs": b"a" * 70 + b" " * 40 + b"\n" * 20 + b"-" * 33 + b"1" * 20,
    "nul": b"a\0b\0\0 \xe2\x96\x81 \xef\xbb\xbf",
    "empty": b"",
}


def s(x):
    return struct.pack("<Q", len(x)) + x


def kv(key, type_, value):
    return s(key) + struct.pack("<I", type_) + value


def array(key, type_, items):
    return kv(key, 9, struct.pack("<IQ", type_, len(items)) + b"".join(items))


def gguf(*kvs):
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(kvs)) + b"".join(kvs)


def u32(key, v):
    return kv(b"tokenizer.ggml." + key, 4, struct.pack("<I", v))


def vocab(model, tokens, types, extra=()):
    return gguf(kv(b"tokenizer.ggml.model", 8, s(model)), array(b"tokenizer.ggml.tokens", 8, [s(t) for t in tokens]),
                array(b"tokenizer.ggml.token_type", 5, [struct.pack("<i", t) for t in types]),
                array(b"tokenizer.ggml.scores", 6, [struct.pack("<f", -i) for i in range(len(tokens))]), *extra)


def merges(*m):
    return array(b"tokenizer.ggml.merges", 8, [s(x) for x in m])


def main():
    os.makedirs(FOLDER, exist_ok=True)
    put = lambda name, data: open(os.path.join(FOLDER, name), "wb").write(data)
    for i, (name, text) in enumerate(TEXTS.items()):
        put(f"bpe-{name}", bytes([0, 3 * i & 0x1F, 6 * i]) + text)
        put(f"spm-{name}", bytes([1, 5 * i + 2 & 0x1F, 0]) + text)
    for pre in range(0, 45, 5):
        put(f"pre-{pre}", bytes([0, 2, pre]) + TEXTS["words"] + TEXTS["scripts"])
    spm = [b"<unk>", b"<s>", b"</s>", b"\xe2\x96\x81", b"a", b"b", b"ab", b"<0x41>", b"<0xFF>", b"user"]
    spm_types = [2, 3, 3, 1, 1, 1, 1, 6, 6, 4]
    put("gguf-llama", bytes([2, 3, 0]) + vocab(b"llama", spm, spm_types))
    put("gguf-llama-no-bytes", bytes([2, 1, 0]) + vocab(b"llama", spm[:3], spm_types[:3]))
    put("gguf-gpt2", bytes([2, 2, 0]) + vocab(b"gpt2", [b"a", b"b", b"ab", b"", b"<|x|>"], [1, 1, 1, 5, 3], [
        merges(b"a b", b"ab ab", b"q r"), u32(b"bos_token_id", 4), u32(b"eos_token_id", 4)]))
    put("gguf-duplicate", bytes([2, 2, 0]) + vocab(b"gpt2", [b"a", b"a"], [1, 1], [merges()]))
    put("gguf-bad-merge", bytes([2, 2, 0]) + vocab(b"gpt2", [b"a", b"b", b"c"], [1, 1, 1], [merges(b"ab")]))
    put("gguf-bad-id", bytes([2, 2, 0]) + vocab(b"gpt2", [b"a", b"b", b"c"], [1, 1, 1], [merges(), u32(b"eot_token_id", 3)]))
    put("gguf-short-types", bytes([2, 2, 0]) + vocab(b"llama", spm, [2]))
    put("gguf-no-tokenizer", bytes([2, 0, 0]) + gguf(kv(b"general.name", 8, s(b"phi-3"))))
    put("vocab-bpe", b"\x03\x02\x00ab\nabc\n<x>\na b\nab c\nx y\nxy z\nxyz")
    put("vocab-spm", b"\x03\x22\x01ab\nabc\n<x>\n<0x41>\nthe\n\xe2\x96\x81th\n---\n--")
    put("vocab-bare", b"\x03\x43\x00a\nb\nc\nd\na b\nab c")


main()
