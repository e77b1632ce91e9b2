"""How families cut text before merging, as the package `tokenizers` does it.

Writes crates/interbed-model/tests/fixtures/pre_tokenizers.json: texts, and for each name in `tokenizer.ggml.pre` the
pieces of each text, as the tokenizer.json of a model of that name has its pre-tokenizer and its normalizer.
"""

import json
import pathlib

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

OUT = pathlib.Path(__file__).parents[2] / "crates/interbed-model/tests/fixtures/pre_tokenizers.json"

TEXTS = [
    "I've been 'told he's there, 'RE you sure? WE'LL see; it\u2019s not 'M, 'D, y'all've o'clock \u017fa'\u017f",
    "0 12 123 1234 12345 1234567890 3.14 1,000 v2.0.1 \u0661\u0662\u0663\u0664 \u00bd\u2167 x86_64 10km 2nd",
    "a  b   c    d\te\t\tf \u00a0g\u3000h  ",
    "one\ntwo\n\nthree\r\nfour\r\n\r\n  five \n \n\t six\n",
    "   \n  \n\n x  \n",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u6211\u60f3\u5728apple\u5de5\u4f5c1314151\u5929\uff5e \u4e2d\u6587\u3002\u300c\u5f15\u7528\u300d",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c \u30ab\u30bf\u30ab\u30ca\u30fc2024\u5e74 \u6771\u4eac\u90fd\u3001\u65e5\u672c",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4 123\uac1c, \ud55c\uad6d\uc5b4test",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0414\u043e\u043a\u0443\u043c\u0435\u043d\u0442\u041f\u0440\u043e\u0434\u0430\u0436\u0438 \u043d\u0435\u0449\u043e \u043d\u0430 \u0411\u044a\u043b\u0433\u0430\u0440\u0441\u043a\u0438",
    "\U0001f680 (normal) \U0001f636\u200d\U0001f32b\ufe0f \u2705 \U0001f999\U0001f999 \U0001f468\u200d\U0001f469\u200d\U0001f467 ok\U0001f44d\U0001f3fd!",
    "\u1780\u17b6\u1793\u17cb\u178f\u17c2\u1796\u17b7\u179f\u17c1\u179f \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u0631\u062d\u0628\u0627\u060c \u05e9\u05dc\u05d5\u05dd \u0393\u03b5\u03b9\u03ac \u0565\u0580 \u10d0\u10d1",
    "cafe\u0301 caf\u00e9 na\u00efve \u1ec7t Vi\u1ec7t A\u030a \u212b \u00df\u0131\u0130 \U0001d400\U0001d41a",
    "fn main() { let x = vec![1, 2]; if a!=b && c<=d {println!(\"{x:?}\\n\");} } // path/to/file.rs",
    "camelCase HTMLParser snake_case SCREAMING_CASE iOS McDonald's e.g. U.S.A. foo-bar",
    "------======= '''''''```````\"\"\"\"......!!!!!!?????? $100 50% #tag @you a+b=c x^2 ~|\\",
    "<html><b class=\"x\">\n\t\u201cquoted\u201d \u2013 dashes \u2014 \u2026</b>//\n\n/",
    " leading", "trailing ", "\n", " ", "",
]


def split(regex, behavior="isolated", invert=False):
    return Split(Regex(regex), behavior, invert)


def words(regex, **more):
    """One expression and then bytes, as most families have it."""
    return Sequence([split(regex, **more), bytes_only()])


def bytes_only():
    return ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False)


def gpt2():
    return ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)


END = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + END
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + END
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SHORT, LATER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|{LATER}"
GPT4O = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{SHORT}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{SHORT}"
         rf"|\p{{N}}{{1,3}}|{LATER}")
SEED_CODER = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+")
DEEPSEEK3_WORDS = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" "\r\n" r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                   r"| ?[\p{P}\p{S}]+[" "\r\n" r"]*|\s*[" "\r\n" r"]+|\s+(?!\S)|\s+")
# Letters that DeepSeek's first model takes for parts of words, as code points in hexadecimal.
CASED = """
41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 3A3-3F5
3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15
1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 1FC6-1FCC
1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 212A-212D 212F-2134
2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787
A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 104D8-104FB 10C80-10CB2
10CC0-10CF2 118A0-118DF 1E900-1E943
"""
CASED = "".join("-".join(chr(int(end, 16)) for end in part.split("-")) for part in CASED.split())
EAST_ASIA = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK_LLM = ["[\r\n]", r"\s?[" + CASED + "]+", r"\s?[!-/:-~" "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
                r"\s+$", EAST_ASIA]
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIA]
DEEPSEEK3 = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3_WORDS]
VIKING = r" ?[^(\s|[.,!?" "\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c" r"])]+"

# Each name, the pre-tokenizer of its models, and whether they compose text first.
FAMILIES = {
    "llama-bpe": (words(LLAMA3), False),
    "lfm2": (words(LLAMA3), False),
    "midm-2.0": (words(LLAMA3, behavior="removed", invert=True), False),
    "glm4": (words(LLAMA3), False),
    "minicpm5": (Sequence([split(r"\p{N}{1,3}"), split(LLAMA3.replace("{1,3}", "+")), bytes_only()]), False),
    "qwen2": (words(QWEN2), True),
    "qwen35": (words(QWEN35), True),
    "hunyuan": (words(QWEN2), True),
    "solar-open": (words(QWEN2), False),
    "gpt-2": (gpt2(), False),
    "exaone4": (gpt2(), False),
    "a.x-4.0": (gpt2(), False),
    "granite-docling": (gpt2(), False),
    "olmo": (gpt2(), True),
    "smollm": (Sequence([Digits(individual_digits=True), gpt2()]), False),
    "exaone": (Sequence([Digits(individual_digits=True), gpt2()]), False),
    "command-r": (Sequence([Digits(individual_digits=True), gpt2()]), True),
    "tekken": (words(TEKKEN), False),
    "gpt-4o": (words(GPT4O, behavior="removed", invert=True), False),
    "minimax-m2": (words(GPT4O), False),
    "llama4": (words(GPT4O), False),
    "seed-coder": (words(SEED_CODER), False),
    "deepseek-v3": (Sequence([*map(split, DEEPSEEK3), bytes_only()]), False),
    "hunyuan-dense": (Sequence([*map(split, DEEPSEEK3), bytes_only()]), False),
    "deepseek-llm": (Sequence([*map(split, DEEPSEEK_LLM), Digits(individual_digits=True), bytes_only()]), False),
    "deepseek-coder": (Sequence([*map(split, DEEPSEEK_CODER), Digits(individual_digits=True), bytes_only()]), False),
    "viking": (Sequence([split(VIKING), Digits(individual_digits=True), bytes_only()]), False),
    "superbpe": (Sequence([split(r"\p{N}+"), split(r"(?=(\d{3})+(?!\d))"), bytes_only()]), False),
}


def pieces(pre_tokenizer: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [text[begin:end] for _, (begin, end) in pre_tokenizer.pre_tokenize_str(text)]


def main():
    lines = []
    for name, (pre_tokenizer, composed) in FAMILIES.items():
        texts = [normalizers.NFC().normalize_str(text) if composed else text for text in TEXTS]
        cut = [pieces(pre_tokenizer, text) for text in texts]
        assert all("".join(parts) == text for parts, text in zip(cut, texts)), name
        lines.append(f"{json.dumps(name)}: {json.dumps(cut, ensure_ascii=False)}")
    texts = json.dumps(TEXTS, ensure_ascii=False)
    OUT.write_text('{"texts": %s, "pieces": {\n%s\n}}\n' % (texts, ",\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
