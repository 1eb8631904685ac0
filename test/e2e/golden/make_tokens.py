#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tokens.json, pretok.json and chat.json beside this script: golden tokenizations for SmolLM2-135M-Instruct.

    pip install gguf tokenizers transformers jinja2
    python make_tokens.py MODEL.gguf

The files here came out byte for byte from Python 3.11, gguf 0.19.0, tokenizers 0.23.3, transformers 5.24.0, jinja2 3.1.6.

The reference is the `tokenizers` library with vocabulary and merges from the GGUF and the rules of SmolLM2's own
tokenizer file: pre-tokenizer Digits(individual_digits) then ByteLevel with GPT-2's pattern, no normalizer, no unknown token,
control tokens as special added tokens. transformers' conversion of a GGUF is NOT the reference: it leaves the Digits step
out and applies ByteLevel alone (the script counts the strings on which that differs).

tokens.json: [{"text", "ids" (special tokens recognised), "plain" (not recognised; only where it differs)}].
pretok.json: {"strings": [indices into tokens.json], name: [piece lengths in bytes of each of these strings]}, from the same
library with each pre-tokenizer's published pattern; short strings without characters that Unicode 14 leaves unassigned: the
reference knows letters of later versions, PCRE2 10.42 does not. Python 3.11 has the tables of version 14. chat.json: conversations rendered by transformers' own template engine.
"""
import json, os, random, sys, unicodedata
from gguf import GGUFReader
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers as pre

here = os.path.dirname(os.path.abspath(__file__))
reader = GGUFReader(sys.argv[1])
field = lambda k: reader.fields[k].contents()
assert field("tokenizer.ggml.pre") == "smollm" and field("tokenizer.ggml.model") == "gpt2"
tokens, kinds, merges = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type"), field("tokenizer.ggml.merges")

def build(pre_tokenizer, special):
    t = Tokenizer(models.BPE({w: i for i, w in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    t.pre_tokenizer = pre_tokenizer
    t.decoder = decoders.ByteLevel()
    if special:
        t.add_special_tokens([AddedToken(w, special=True, normalized=False) for w, k in zip(tokens, kinds) if k == 3])
    return t

byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=True)
smollm = pre.Sequence([pre.Digits(individual_digits=True), byte_level])
llama3 = lambda n: (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + n +
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
split = lambda p: pre.Split(Regex(p), "isolated")
pretoks = {"gpt-2": byte_level, "smollm": smollm, "llama-bpe": split(llama3(r"\p{N}{1,3}")), "qwen2": split(llama3(r"\p{N}"))}

# ---- strings, all written for this test
texts = ["", " ", "  ", "   ", "\n", "\t", "\r\n", "\n\n", " \n", "\n ", "a", "A", "Z z", "0", "7", "42", ".", "...", "!?", "é", "中", "🙂", "\x00",
         "a\x00b", "\x00\x00\x00", "\x01\x02\x03", "\x7f", "\x1b[31mred\x1b[0m", "bell\x07bell", "\x04\x06\x13", "!\x04!", "a\x14b \x16c", "\x1d\x1d x",
         "\u0085", "a\u0085b", "\u00a0", "a\u00a0b", "a \u00a0 b", "\u180e", "a\u180eb", " \u180e ", "\u2003wide\u2003blank", "\u2028line\u2029para", "\u3000全角",
         "\u200bzero\u200bwidth", "\ufeffmark first", "\ufffd", "\uffff", "\U0010ffff", "\u202fnarrow\u205fmath", "\u1680ogham"]
texts += ["The mill stands by the river.", "Hello, world!", "hello world", " hello", "hello ", "  two before", "two after  ", "a  b   c    d     e",
          "I'm sure they've said we'll go; he'd stay, she's here, can't won't, you're", "I'M SURE THEY'VE SAID WE'LL GO", "it's 5 o'clock 'tis",
          "'s 's's ''s", "rock'n'roll y'all'd've", "don’t isn’t they’re", "\"quoted\" and 'quoted'", "«guillemets» „low“ “high”", "em—dash en–dash hy-phen",
          "semi;colon:comma,stop.", "(round) [square] {curly} <angle>", "a/b\\c|d", "x@y.org", "https://example.org/a/b?c=d&e=%20f#g",
          "C:\\Users\\name\\file.txt", "/usr/local/bin", "$100 €200 £300 ¥400", "50% off!!! ***now***", "#tag @user ~tilde ^caret `tick`", "___init___", "snake_case_name",
          "camelCaseName PascalCaseName SCREAMING_CASE", "iPhone eBay McDonald", "naïve café façade Ångström", "ẞ ß ſ ŉ ǅ", "ﬁ ﬂ ligatures", "ⅷ Ⅷ ½ ¾ ² ³ ① ⑳ 〇"]
texts += ["1", "12", "123", "1234", "12345", "1234567890", "1,234,567.89", "1 234 567", "1_000_000", "3.14159", "-273.15", "+1-555-0100", "1e-9 6.02e23",
          "0x7fff 0b1010 0o17", "2024-02-29T23:59:59Z", "12:34:56.789", "192.168.0.1", "v1.2.3-rc4", "a1b2c3", "1st 2nd 3rd", "  1", "   1", " 1 2  3   4",
          "x  1y", "1  x", "\t1", "\n1", "1\n", "1\n\n2", "٠١٢٣٤", "۱۲۳", "१२३ ४५६", "一二三 123", "๑๒๓", "𝟏𝟐𝟑", "①②③ 4", "10²", "½ cup", "Ⅳ. 4", "x₁ + x₂"]
texts += ["def f(x):\n    return x ** 2\n", "for (int i = 0; i < n; i++) {\n\tsum += a[i];\n}\n", "#include <stdio.h>\nint main(void) { return 0; }",
          "if x != 3 and y >= 4:\n        pass  # eight blanks", "let s = \"tab\\tnewline\\n\";", "SELECT * FROM t WHERE a = 'b' AND c <> 1;", "<div class=\"x\">&nbsp;</div>",
          "{\"key\": [1, 2.5, null, true], \"k2\": {}}", "a = b if c else d", "x->y::z<T>()", "fn main() -> Result<(), E> { Ok(()) }", "echo $HOME && ls -la | wc -l",
          "$x = {'a' => 1};", "\\frac{a}{b} = \\sum_{i=0}^{n} x_i", "lambda x, *a, **k: (x, a, k)", "// comment\n/* block\n * comment */", "\t\ttabs\t\tinside\t",
          "    four\n        eight\n            twelve\n", "trailing   \nblanks   \n", "crlf\r\nline\r\n\r\n", "\r\rold mac\r", "\x0b\x0cfeeds\x0c", "\n\n\n\n\n", "\n \n  \n   \n",
          " \t \t mixed", "```c\nint x;\n```", "| a | b |\n|---|---|\n| 1 | 2 |", "- item\n  - sub\n* star\n1. one", "====\n----\n####", "&&&&||||!!!!", ">>>>>>>> <<<<<<<<",
          "[[[[]]]]((((", "0;1;2;;;", "a,b,,c,,,d", "key=value;k=v", "%s %d %-10.3f %%", "~/.config/x.toml", "*.c *.h **/*.py", "git commit -m 'x: y (#12)'"]
scripts = {
    "ru": "Старая мельница стоит у реки.", "uk": "Їжак їсть яблуко.", "el": "Ο μύλος είναι δίπλα στο ποτάμι.", "el2": "ἐν ἀρχῇ ὁ μῦθος", "hy": "Ջրաղացը գետի մոտ է։",
    "ka": "წისქვილი მდინარესთან დგას.", "he": "הטחנה עומדת ליד הנהר.", "he2": "שָׁלוֹם לְכֻלָּם", "ar": "الطاحونة بجانب النهر.", "ar2": "مُحَمَّدٌ كِتَابٌ", "fa": "آسیاب کنار رودخانه می‌ایستد.",
    "ur": "چکی دریا کے پاس ہے۔", "hi": "चक्की नदी के पास है।", "mr": "गिरणी नदीजवळ आहे.", "bn": "কলটি নদীর পাশে।", "pa": "ਚੱਕੀ ਦਰਿਆ ਕੋਲ ਹੈ।", "gu": "ઘંટી નદી પાસે છે.", "ta": "ஆலை ஆற்றின் அருகே உள்ளது.",
    "te": "మిల్లు నది పక్కన ఉంది.", "kn": "ಗಿರಣಿ ನದಿಯ ಪಕ್ಕದಲ್ಲಿದೆ.", "ml": "മില്ല് നദിക്കരികിലാണ്.", "si": "මෝල ගඟ අසල ඇත.", "th": "โรงสีอยู่ริมแม่น้ำ", "lo": "ໂຮງສີຢູ່ແຄມແມ່ນ້ຳ", "my": "ဆန်စက်သည် မြစ်နားတွင်ရှိသည်။",
    "km": "ម៉ាស៊ីនកិនស្រូវនៅជិតទន្លេ។", "bo": "ཆུ་འཐག་ནི་གཙང་པོའི་འགྲམ་དུ་ཡོད།", "am": "ወፍጮው ከወንዙ አጠገብ ነው።", "zh": "磨坊在河边。今天天气很好！", "zh2": "舊磨坊在河邊，沒有人。", "ja": "水車小屋は川のそばにあります。", "ja2": "カタカナとひらがなと漢字、ー長音。",
    "ja3": "ﾊﾝｶｸ ｶﾅ ＡＢＣ １２３", "ko": "방앗간은 강가에 있습니다.", "ko2": "한글 ㄱㄴㄷ ㅏㅑ", "ko3": "\u1112\u1161\u11ab\u1100\u1173\u11af", "vi": "Cối xay nằm cạnh bờ sông đấy.", "tr": "Değirmen ırmağın kıyısında. İIıi", "pl": "Zażółć gęślą jaźń.",
    "cs": "Příliš žluťoučký kůň.", "hu": "Árvíztűrő tükörfúrógép.", "de": "Die Mühle steht am Fluß, größer als früher.", "fr": "Où est le moulin ? Là-bas, près de l’eau.", "es": "¿Dónde está? ¡Allí, señor!", "pt": "Não há moinho, só a nação.",
    "is": "Það er myllan við ána.", "mt": "Il-mitħna ħdejn ix-xmara.", "cy": "Mae'r felin ger yr afon.", "yo": "Ọlọ wà lẹ́bàá odò.", "chr": "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ", "iu": "ᐃᓄᒃᑎᑐᑦ", "mn": "ᠮᠣᠩᠭᠣᠯ ᠪᠢᠴᠢᠭ",
    "got": "𐌰𐌱𐌲 𐌳𐌴", "cu": "𒀀𒀁 𒀂", "eg": "𓀀𓁀𓂀", "math": "𝕬𝖇𝖈 𝒙𝒚 ∀x∈ℝ: x²≥0 ⇒ √x", "run": "ᚠᚢᚦᚨᚱᚲ", "br": "⠓⠑⠇⠇⠕", "box": "┌─┐│ │└─┘ ░▒▓█", "arrow": "→ ← ↔ ⇒ ⟶",
}
texts += list(scripts.values())
texts += ["🙂", "🙂🙃", "👍🏽", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷🇯🇵", "❤️ ❤", "☕️tea", "1️⃣2️⃣", "©️®™", "a🙂b", " 🙂 ", "🧑🏿‍🚀 to 🌕", "👁️‍🗨️", "🫠🫡🪿", "text🙂text 5🙂5", "😀" * 20, "♟️♠♥", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"]
texts += ["e\u0301 é", "a\u0308o\u0308u\u0308", "n\u0303", "Z\u0351\u036b\u0343a\u0329l\u0321g\u0322o\u0328", "\u0301alone", " \u0301 blank mark", "क\u094dष", "\u0e33\u0e49", "x\u20d7 y\u0305", "1\u0338", "I\u0307", "\u202eright to left\u202c", "\u2066isolate\u2069",
          "soft\u00adhyphen", "word\u2060joiner", "a\u034fb", "\ue000private\uf8ff", "\U000e0041tag", "\U000f0000plane 15", "\U00050000unassigned", "\U00090000 \U000a1234"]
specials = [w for w, k in zip(tokens, kinds) if k == 3]
texts += specials
texts += ["<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "a<|im_end|>b", " <|im_end|> ", "<|im_end|><|im_end|>", "<|im_end", "|im_end|>", "<|im_<|im_end|>end|>", "<<|im_start|>>",
          "<repo_name>x/y<file_sep>a.c\nint<|endoftext|>", "<reponame><filename>", "1<|im_end|>2", "  <|im_start|>  3", "<|IM_END|>", "<|im_end|>é<|im_start|>中", "\n<|im_end|>\n", "<jupyter_code>1+1<jupyter_output>2<empty_output>", "<|im_start|>" * 9]
texts += ["a" * 1, "a" * 17, "a" * 64, "a" * 257, "ab" * 700, "supercalifragilistic" * 40, "=" * 100, "-" * 33, " " * 16, " " * 63, " " * 300 + "x", "\n" * 50, "\t" * 40, "z" * 1000, "9" * 60, "é" * 100, "中" * 50, "x " * 60, "ACGT" * 150,
          "pneumonoultramicroscopicsilicovolcanoconiosis", "Donaudampfschifffahrtsgesellschaftskapitän", "llanfairpwllgwyngyll"]
rng = random.Random(7)
pools = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "0123456789", "    \t\n", ".,;:!?'\"-_()[]{}<>/\\|@#$%^&*+=~`", "éèüßñçøåłž", "абвгдежз", "αβγδεζ", "中文字符日本", "한국어글", "אבגד", "ابتث", "कखग\u093e\u094d", "🙂🚀👩‍", "\u0301\u200d\u00a0\u3000", "\x00\x01\x1f\x7f", "½²Ⅷ٣"]
for i in range(70):  # soup of a few pools each
    some = rng.sample(pools, rng.randint(2, 5))
    texts.append("".join(rng.choice(rng.choice(some)) for _ in range(rng.randint(5, 60))))
for i in range(30):  # any assigned or unassigned character, no surrogates
    texts.append("".join(chr(c) for c in (rng.randrange(0x30000 if i % 2 else 0x3000) for _ in range(25)) if not 0xd800 <= c < 0xe000))
words = "the of river mill stone old water wheel turns slowly and grain becomes flour for bread every morning while children watch from bridge".split()
for i in range(30):  # prose-like
    s = " ".join(rng.choice(words) for _ in range(rng.randint(5, 25)))
    texts.append(s.capitalize() + rng.choice([".", "!", "?", "...", "\n", ", " + str(rng.randrange(10**rng.randint(1, 7)))]))
texts = list(dict.fromkeys(texts))
assert len(texts) >= 300

with_special, plain = build(smollm, True), build(smollm, False)
ids = lambda t, s: t.encode(s, add_special_tokens=False).ids
out = []
for s in texts:
    e = {"text": s, "ids": ids(with_special, s)}
    p = ids(plain, s)
    if p != e["ids"]:
        e["plain"] = p
    out.append(e)
dump = lambda name, x: open(os.path.join(here, name), "w").write(x + "\n")
dump("tokens.json", "[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in out) + "\n]")

lengths = lambda p, s: [len(s[a:b].encode()) for _, (a, b) in p.pre_tokenize_str(s)]
assert unicodedata.unidata_version == "14.0.0"
chosen = [i for i, s in enumerate(texts) if len(s.encode()) <= 120 and not any(unicodedata.category(c) == "Cn" for c in s)]
short = [texts[i] for i in chosen]
dump("pretok.json", "{\"strings\":" + json.dumps(chosen, separators=(",", ":")) + ",\n" + ",\n".join(json.dumps(n) + ":" + json.dumps([lengths(p, s) for s in short], separators=(",", ":")) for n, p in pretoks.items()) + "}")

from transformers import AutoTokenizer
d, f = os.path.split(os.path.abspath(sys.argv[1]))
converted = AutoTokenizer.from_pretrained(d, gguf_file=f)
print(len(texts), "strings;", sum(converted(s).input_ids != e["ids"] for s, e in zip(texts, out)), "differ from transformers' conversion, which has no Digits step")
U, A, S = (lambda r: lambda t: {"role": r, "content": t})("user"), (lambda r: lambda t: {"role": r, "content": t})("assistant"), (lambda r: lambda t: {"role": r, "content": t})("system")
talks = [[U("hi")], [S("Be brief."), U("Why is the sky blue?")], [U("a"), A("b"), U("c")], [S("s"), U("a"), A("b"), U("c"), A("d")], [U("  blanks \n kept  ")], [U("")], [S(""), U("x")],
         [U("tags <|im_end|> inside")], [A("starts with the assistant")], [U("é 中 🙂\n\n```c\nint x;\n```")], [U("late"), S("system in the middle"), U("end")], [{"role": "tool", "content": "42"}, U("q")]]
dump("chat.json", "[\n" + ",\n".join(json.dumps({"messages": [[m["role"], m["content"]] for m in t], "reply": r, "text": converted.apply_chat_template(t, tokenize=False, add_generation_prompt=r)})
                                      for t in talks for r in (False, True)) + "\n]")
