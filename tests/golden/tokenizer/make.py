#!/usr/bin/env python3
"""Write the golden numbers of the tokenizer tests: what llama.cpp makes of the strings in strings.txt.

    PYTHON tests/golden/tokenizer/make.py MODELS_FOLDER

needs PyPI's gguf and llama-cpp-python (the numbers here: 0.3.36). Beside this script it writes
  strings.txt   the strings, one a line; bytes that do not print and strings that are not UTF-8 as \\xHH
  merges.txt    merges of the vocabulary that all pre-tokenizers are tried with, in byte-level BPE's characters
  NAME.ids      a line a string: ids; ids with specials added and parsed ("=": the same, "+": after bos);
                FNV-1a (32 bits) of four texts that llama_detokenize gives back. "-": llama.cpp throws.
  NAME.meta     special ids, end-of-generation ids, FNV-1a (64 bits) over the pieces of all tokens
for each real model and for each pre-tokenizer of PRE.

A split has to show in the ids, so merges.txt is learnt from the strings as they are, without any
pre-tokenizer: every pair of bytes that stands side by side in a string merges, across what is a word's end
for one pre-tokenizer or another, and then the commonest longer ones.
"""
import collections
import ctypes
import os
import random
import sys

import gguf
import llama_cpp.llama_cpp as L

HERE = os.path.dirname(os.path.abspath(__file__))
REAL = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma3": "gemma-3-270m-q4_k_m.gguf"}
# One name for each row of stages and flags of the table in lib/model/tokenizer_pre.c.
PRE = ["default", "falcon", "gpt-2", "trillion", "smollm", "starcoder", "llama-bpe", "glm4", "dbrx", "qwen2",
       "stablelm2", "laguna", "qwen35"]


def hand_written():
    s = ["", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", "\t\t\t", " \n", "\n ", " \n \n ", "  \n  x",
         "a", "A", "0", "é", "中", "🙂", "Hello", "Hello world", " Hello world", "Hello  world", "Hello   world ",
         "Hello, world!", "hello\nworld", "hello\r\nworld\r\n", "The quick brown fox jumps over the lazy dog.",
         "   leading", "trailing   ", "\u00a0nbsp\u00a0\u00a0two", "a\u2003em\u2003space", "x\u200bzero\u200bwidth",
         "\u3000ideographic\u3000space", "line\u2028sep\u2029para", "vt\x0bff\x0cnel\x85end", "\ufeffBOM first",
         "mid\ufeffBOM", "a\x00b", "\x00", "\x00\x00\x00", "tab\tsep\tvalues", "bell\x07 esc\x1b[31mred\x1b[0m",
         "\r", "\r\r", " \rx", "a \r b", "a  \r  b", "\r \n \r x", "a\n\r\rb", "!\r\rx", "!\r \rx", "\t\r\t\n\ty",
         "\x1c\x1d\x1e\x1f separators", "soft\u00adhyphen"]
    contractions = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"]
    for c in contractions:
        s += [f"it{c} x", f"IT{c.upper()} X", f"It{c[0]}{c[1:].title()}y", f"it {c}", f"it\u2019{c[1:]} x", c, f"{c}{c}",
              f"1{c}2", f"'{c}", f"{c}'"]
    s += ["don't I'm you're we've he'll she'd it's", "DON'T I'M YOU'RE WE'VE HE'LL SHE'D IT'S", "''''", "'", "' '", "x ' y",
          "'\u017f", "'\u212a", "'L", "'lL", "'Ll", "'rE", "'", "a'b'c'd'e", "rock 'n' roll", "O'Reilly's 'quoted'",
          "'\n's", "'\r", "'é"]
    for n in range(1, 13):
        s.append("1234567890123"[:n])
    s += ["3.14159", "1,234,567.89", "1e-10", "0x1F600", "12:34:56", "2024-02-29", "٣٤٥٦", "१२३४५", "①②③", "½ ¼ ¾", "Ⅳ Ⅻ",
          "x²+y³", "1 2 3", "1  2   3", "12 345 6789", "a1b22c333d4444", "1٣2१3", "１２３４", "𝟏𝟐𝟑𝟒", "0000000", "1st 2nd 3rd",
          "+1 (555) 010-9999", "$1,000", "50%", "#1", "№5", "10€", "1/2", "1_000_000"]
    s += ["!!!", "?!", "...", "…", "--", "—", "(a)", "[b]", "{c}", "<d>", "a.b.c", "a,b;c:d", " ,", " .", " !", " ?", " :", "a ,b .c",
          "\"quoted\"", "“curly”", "«guillemets»", "„low“", "¿Qué?", "¡Hola!", "`code`", "``x``", "```py\nx\n```", "^~|<>=+$",
          "a^b~c|d<e>f=g+h$i`j", " $ + <", "@user #tag", "a@b.com", "https://example.com/a?b=c&d=e#f", "C:\\path\\file",
          "/usr/local/bin", "~/.bashrc", "*bold* _it_", "# head\n\n- item\n- item", "| a | b |\n|---|---|", "\\n", "\\\\", "%d%s",
          "&amp;&lt;", "!\n", "!\r\n\r\n", "! \n", "...\n\n\n", "?\n\tx", ".\n\n .", "}\n}\n", ");\r\n\r\n\t}"]
    s += ["def f(x):\n    return x + 1\n", "for (int i = 0; i < n; i++) {\n\tsum += a[i];\n}\n", "#include <stdio.h>\nint main(void){}\n",
          "SELECT * FROM t WHERE a >= 10 AND b != 'x';", "if x == None:\n\n\n    pass", "let y = |x| x * 2;", "\t\t\tdeep\n\t\t\t\tdeeper",
          "        eight\n    four\n  two\n one", "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"d\"}}", "<html><body class=\"x\">Hi</body></html>",
          "x=1;y=22;z=333", "camelCaseName snake_case_name CONST_NAME", "a->b->c", "std::vector<int> v{1,2,3};", "λx.x", "fn main() -> Result<(), E> {",
          "#!/bin/sh\nset -e\nexec \"$@\"\n", "\x60echo $((1+2))\x60", "// ----------\n/* **** */", "a\\\nb", "key:\n  - v1\n  - v2\n"]
    s += ["Ünïcödé Straße", "naïve café", "e\u0301cole n\u0303", "a\u0300\u0301\u0302\u0303", "\u0301alone", " \u0301 spaced", "Ångström", "ﬁ ligature ﬂ",
          "İstanbul ıI", "ΑΒΓ αβγ ς", "Привет, мир!", "Доброе утро", "שלום עולם", "שָׁלוֹם", "مرحبا بالعالم", "السَّلَامُ", "فارسی\u200cنویسی", "اردو",
          "नमस्ते दुनिया", "क्षत्रिय", "বাংলা ভাষা", "தமிழ்", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "ગુજરાતી", "ਪੰਜਾਬੀ", "සිංහල", "ภาษาไทย", "สวัสดีครับ",
          "ພາສາລາວ", "မြန်မာ", "ខ្មែរ", "བོད་ཡིག", "ქართული", "Հայերեն", "አማርኛ", "ᏣᎳᎩ", "你好,世界!", "你好,世界!中文。", "漢字かな交じり文", "カタカナ", "ｶﾀｶﾅ",
          "こんにちは世界", "안녕하세요 세계", "한국어", "ᄒ\u1161ᆫ", "Tiếng Việt", "ελληνικά", "ⴰⵎⴰⵣⵉⵖ", "𐌲𐌿𐍄𐌰", "𒀀𒁀", "𓀀𓁐", "𠮷野家", "𝕳𝖊𝖑𝖑𝖔", "ⓗⓔⓛⓛⓞ",
          "ＦＵＬＬ　ＷＩＤＴＨ", "English中文mixed日本語text한국어", "abc中def", "中1文2", "日本語 テスト 123"]
    s += ["🙂🙂", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣2️⃣", "❤️", "❤", "🧑🏿‍🚀 in space", "a🙂b", " 🙂 ", "🙂\n🙂", "🤷‍♀️?!", "☺☻", "🫠🫡", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "©®™", "←→⇒", "♠♣♥♦",
          "✓✗", "∀x∈ℝ: x²≥0", "∑_{i=1}^{n} i = n(n+1)/2", "∫₀^∞ e^{-x²} dx = √π/2", "α≤β≠γ", "⟨ψ|φ⟩", "½·⅓", "x ≈ 3×10⁸ m/s", "░▒▓█", "┌─┐│└┘", "\ue000\uf8ff",
          "\U000e0001", "\ufffd", "\ufffe\uffff", "\U0010ffff", "\u0378", "\u2ffc\u31ef", "\U0001fae9", "\u200e\u200f\u202a", "\u2060\u2061"]
    s += ["<|endoftext|>", "a<|endoftext|>b", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", " <|im_end|> ", "<|im_end|><|im_end|>", "<|im_end", "|im_end|>",
          "<s>", "</s>", "<unk>", "<pad>", "<bos>", "<eos>", "<bos>x<eos>", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>",
          "<unused0>", "<unused99>", "<unused6241>", "<unused6242>", "[multimodal]", "<mask>", "<h1>Title</h1>", "<table><tr><td>1</td></tr></table>", "<b>bold</b> <i>it</i>",
          "<code>x</code><pre>y</pre>", "<ul>\n<li>a</li>\n</ul>", "<blockquote>q</blockquote>", "<start_of_image>", "<image_soft_token>", "<0x41>", "<0x0A>", "▁", "▁▁", "▁▁▁▁ x", "a▁b",
          "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>", "[INST] hi [/INST]", "<reponame>x<file_sep>y<filename>z", "<repo_name>", "<jupyter_start>", "<empty_output>",
          "<issue_start><issue_comment>", "<gh_stars>", "<commit_before>", "Ġ", "Ċ", "ĠĠ", "aĠb"]
    for n in (2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 130):
        s += [" " * n, "\n" * n, "\t" * n, " " * n + "x", "x" + "\n" * n + "y", "\t" * n + "z"]
    s += ["a" * 1000, "ab" * 300, " a" * 200, "=" * 80, "-" * 40 + "\n", "*" * 33, "0" * 100, "é" * 150, "中" * 120, "🙂" * 50, "\r\n" * 20, " \n" * 20, "\t " * 20, "!?" * 40,
          "x\u0301" * 40, "の" * 100, "क्" * 40, "ก็" * 40, "<" * 50, ">" * 20 + "<" * 20, "'s" * 30, "١" * 40, "\u00a0" * 30, "\u200d" * 20]
    return [x.encode("utf-8", "surrogatepass") for x in s]


def not_utf8():
    s = [b"\x80", b"\xbf\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc3", b"\xc3(", b"abc\xff", b"\xfe\xff", b"\xe2\x82", b"\xe2\x28\xa1", b"\xe2\x82\x28", b"\xf0\x9f\x98", b"\xf0\x28\x8c\xbc",
         b"\xf0\x9f\x98 x", b"\xed\xa0\x80", b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xbf\xbf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xe0\x9f\xbf", b"a\x80b\x80c", b"\xffend", b"caf\xe9 latin1",
         b"\xa0\xa1\xa2", b"x\xc3\n", b" \xff ", b"\xff\xff\xff\xff", b"1\xff2", b"'\xff", b"'s\xff's", b"\xc2\x85\xc2", b"ok \xe4\xb8\xad\xe4\xb8 cut", b"\xf8\x88\x80\x80\x80",
         b"\xfc\x84\x80\x80\x80\x80", b"\xd0\xd1\xd2", b"\x80\x81 \x82\n\x83", b"\xc3\xa9\xc3", b"\xe2\x96", b"\xe2\x96\x81\xe2\x96", b"\xc0\xafx", b"\xc0\x8a\xc0\x8a", b"\xc0\xa0\xc0\xa0x", b"it\xc0\xa7s", b"it'\xc1\xb3 x", b"I\xc0\xa7\xc1\x8cL", b"12\xc0\xb3\xc0\xb4\xc0\xb5", b"!\xc0\x8a\xc0\x8dx", b"a\xc0\xa0b", b"\xc0\xa0!",
         b"\xe0\x80\xa0\xf0\x80\x80\xa0y", b"\xc1\xa1\xc1\x82c", b"a \xc0\x8a b",
         b"\xf4\x8f\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf7\xbf\xbf\xbf", b"z\xf5\x80\x80\x80z", bytes(range(256)), bytes(range(128, 256)), bytes(range(255, -1, -1))]
    # Values above U+10FFFF make llama.cpp's byte-level BPE throw; SentencePiece does not look.
    s[-3:] = [bytes(b for b in range(256) if b < 0xF4), bytes(range(128, 0xF4)), bytes(range(0xF3, -1, -1))]
    return s


def mixed(n, seed):
    r = random.Random(seed)
    words = ("the of and Hello WORLD x I'm DON'T you're naïve straße Привет мир שלום مرحبا नमस्ते ภาษา 你好 世界 こんにちは 안녕 Tiếng αβγ e\u0301 int return "
             "foo_bar fooBar 0 7 42 123 4567 89012 ٣٤ १२ ½ ² Ⅳ 🙂 👍🏽 👨‍👩‍👧 🇩🇪 ❤️ ∑ ≤ √ € $ 's 'S 't 're 'LL ' '' \" “ ” ( ) { } [ ] < > = == -> :: ; : , . ! ? ... … - -- — _ # @ % & * + / \\ | ~ ` ^ "
             "<|im_end|> <|endoftext|> <bos> <eos> <end_of_turn> <b> </b> <unused7> <0x20> ▁ Ġ \u0301 \u200d \ufeff \u00ad").split(" ")
    gaps = ["", "", "", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2009", "\x0b", "\x00", "        "]
    bad = [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xc0\xa0"]
    out = []
    for i in range(n):
        s = b""
        for _ in range(r.randint(2, 14)):
            s += r.choice(gaps).encode() + r.choice(words).encode("utf-8", "surrogatepass")
            if i % 4 == 3 and r.random() < 0.15:
                s += r.choice(bad)
        out.append(s + r.choice(gaps).encode())
    return out


def any_class(n, seed):
    """Code points drawn from every general category, in short runs."""
    r = random.Random(seed)
    blocks = [(0x20, 0x7F), (0x80, 0x250), (0x250, 0x400), (0x400, 0x590), (0x590, 0x780), (0x900, 0xE00), (0xE00, 0x1100), (0x1600, 0x1700), (0x1780, 0x1A00), (0x1D00, 0x2100),
              (0x2000, 0x2070), (0x2070, 0x2C00), (0x2E00, 0x3100), (0x3100, 0x3400), (0xA000, 0xABFF), (0xF900, 0x10000), (0x10000, 0x10400), (0x10900, 0x11000), (0x11000, 0x11C00),
              (0x1D100, 0x1D800), (0x1F000, 0x1FB00), (0x1FB00, 0x1FC00), (0xE0000, 0xE0200)]
    out = []
    for _ in range(n):
        s = ""
        for _ in range(r.randint(3, 12)):
            lo, hi = r.choice(blocks)
            s += "".join(chr(r.randrange(lo, hi)) for _ in range(r.randint(1, 3)))
            s += r.choice(["", "", " ", "a", "1", "\n", "."])
        out.append(s.encode())
    return out


def strings():
    out, seen = [], set()
    for s in hand_written() + not_utf8() + mixed(200, 1) + any_class(80, 2):
        if s not in seen:
            seen.add(s)
            out.append(s)
    return out


def escape(s):
    try:
        s.decode()
        top = 0x100
    except UnicodeDecodeError:
        top = 0x7F
    return b"".join(bytes([b]) if 0x20 <= b < top and b not in (0x5C, 0x7F) else b"\\x%02x" % b for b in s)


def throws(s):
    """A four-byte form above U+10FFFF, as llama.cpp reads UTF-8."""
    return any(a == 0xF4 and b >= 0x90 or 0xF5 <= a <= 0xF7 for a, b, c, d in zip(s, s[1:], s[2:], s[3:])
               if b & 0xC0 == c & 0xC0 == d & 0xC0 == 0x80)


def byte_chars():
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    return {**{b: chr(b) for b in own}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def learn_merges(texts, n_long):
    """All neighbouring pairs of bytes, in random order, then n_long merges learnt as BPE learns them."""
    chars = byte_chars()
    words = [[chars[b] for b in s[:300].decode("utf-8", "replace").encode()] for s in texts if not throws(s)]
    pairs = sorted({p for w in words for p in zip(w, w[1:])})
    random.Random(3).shuffle(pairs)
    # Half of the pairs by chance of the draw go first, the rest after the longer ones: both orders occur.
    merges = pairs[: len(pairs) // 2]
    rank = {p: i for i, p in enumerate(merges)}

    def apply(w):
        while True:
            best = min((rank.get(p, 1 << 30), i) for i, p in enumerate(zip(w, w[1:]))) if len(w) > 1 else (1 << 30, 0)
            if best[0] == 1 << 30:
                return w
            i = best[1]
            w = w[:i] + [w[i] + w[i + 1]] + w[i + 2:]

    words = [apply(w) for w in words]
    for _ in range(n_long):
        count = collections.Counter(p for w in words for p in zip(w, w[1:]) if p not in rank)
        if not count:
            break
        best = max(sorted(count), key=lambda p: count[p])
        rank[best] = len(merges)
        merges.append(best)
        for k, w in enumerate(words):
            out, i = [], 0
            while i < len(w):
                if i + 1 < len(w) and (w[i], w[i + 1]) == best:
                    out.append(w[i] + w[i + 1])
                    i += 2
                else:
                    out.append(w[i])
                    i += 1
            words[k] = out
    merges += [p for p in pairs if p not in rank]
    return merges


def write_vocab(path, merges, pre):
    tokens = [byte_chars()[b] for b in range(256)]
    special = ["<|endoftext|>", "<b>", "</b>"]  # control, user-defined, user-defined
    # Words that no merge makes: only a model that looks whole words up first finds them.
    whole = ["Hello", "\u0120world", "fooBar", "\u0120quick", "\u00c3\u0143\u00e2\u0126\u00a2"]
    tokens += sorted({a + b for a, b in merges} - set(tokens) - set(special) - set(whole)) + whole + special
    types = [1] * (len(tokens) - 3) + [3, 4, 4]
    w = gguf.GGUFWriter(path, "llama")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([f"{a} {b}" for a, b in merges])
    for add in (w.add_bos_token_id, w.add_eos_token_id):
        add(len(tokens) - 3)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def fnv(data, h=0xCBF29CE484222325):
    for b in data:
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


class Judge:
    def __init__(self, path):
        p = L.llama_model_default_params()
        p.vocab_only = True
        self.model = L.llama_model_load_from_file(path.encode(), p)
        assert self.model, path
        self.vocab = L.llama_model_get_vocab(self.model)

    def encode(self, s, add, parse):
        buf = (ctypes.c_int32 * (len(s) * 3 + 16))()
        n = L.llama_tokenize(self.vocab, s, len(s), buf, len(buf), add, parse)
        assert n >= 0
        return list(buf[:n])

    def decode(self, ids, remove, show):
        buf = ctypes.create_string_buffer(len(ids) * 100 + 4096)
        n = L.llama_detokenize(self.vocab, (ctypes.c_int32 * len(ids))(*ids), len(ids), buf, len(buf), remove, show)
        assert n >= 0
        return buf.raw[:n]

    def piece(self, i, special):
        buf = ctypes.create_string_buffer(4096)
        n = L.llama_token_to_piece(self.vocab, i, buf, 4096, 0, special)
        assert n >= 0
        return buf.raw[:n]

    def meta(self):
        n = L.llama_vocab_n_tokens(self.vocab)
        hashes = []
        for special in (False, True):
            h = 0xCBF29CE484222325
            for i in range(n):
                p = self.piece(i, special)
                h = fnv(bytes([len(p) & 255]) + p, h)
            hashes.append(f"{h:016x}")
        v = self.vocab
        return (f"n_vocab {n}\nbos {L.llama_vocab_bos(v)}\neos {L.llama_vocab_eos(v)}\nadd_bos {int(L.llama_vocab_get_add_bos(v))}\n"
                f"add_eos {int(L.llama_vocab_get_add_eos(v))}\npieces {hashes[0]}\npieces_special {hashes[1]}\n"
                f"eog {' '.join(str(i) for i in range(n) if L.llama_vocab_is_eog(v, i))}\n")

    def lines(self, texts, bpe):
        bos = L.llama_vocab_bos(self.vocab) if L.llama_vocab_get_add_bos(self.vocab) else None
        for s in texts:
            if bpe and throws(s):
                yield "-"
                continue
            plain, full = self.encode(s, False, False), self.encode(s, True, True)
            texts_back = (self.decode(plain, False, False), self.decode(full, False, True), self.decode(full, True, False),
                          self.decode(full, True, True))
            short = "=" if full == plain else "+" if bos is not None and full == [bos] + plain else " ".join(map(str, full))
            yield f"{' '.join(map(str, plain))};{short};{' '.join('%08x' % (fnv(t) & 0xFFFFFFFF) for t in texts_back)}"


def main():
    models = sys.argv[1]
    quiet = L.llama_log_callback(lambda *a: None)  # kept: the library calls it until the end
    L.llama_log_set(quiet, None)
    L.llama_backend_init()
    texts = strings()
    put = lambda name, data: open(os.path.join(HERE, name), "wb").write(data)
    put("strings.txt", b"".join(escape(s) + b"\n" for s in texts))
    merges = learn_merges(texts, 1500)
    put("merges.txt", "".join(f"{a} {b}\n" for a, b in merges).encode())
    for name in [*REAL, *PRE]:
        path = os.path.join(models, REAL[name]) if name in REAL else f"/tmp/vocab-{os.getpid()}.gguf"
        if name in PRE:
            write_vocab(path, merges, name)
        judge = Judge(path)
        put(f"{name}.ids", "".join(x + "\n" for x in judge.lines(texts, name != "gemma3")).encode())
        put(f"{name}.meta", judge.meta().encode())
        if name in PRE:
            os.unlink(path)
    print(len(texts), "strings,", len(merges), "merges")


main()
