"""The demo model's vocabulary: a byte-level BPE in which a word has the same tokens wherever it stands.

An ordinary BPE glues the blank, quote or dot before a word to its first letters, so that a name in a question, in a
list and in a statement are three token strings, and a small model cannot copy one to the other. Here the pieces of
words are learned from word types (each once, however frequent), are at most four letters long, and exist in lower case,
capitalised and in upper case alike; a blank is merged only with the fixed words of the episodes. Names that training
never saw are cut into pieces of the same kind as those it did.

Words are split by Qwen3.5's pattern, so llama.cpp's `qwen35` gives the same tokens; that is tested, not assumed.

    python demo/vocabulary.py          # learns the vocabulary again and writes demo/vocabulary.json
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prompt import CHAT_TEMPLATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqale_edge.engine import Piece

PATH = Path(__file__).parent / "vocabulary.json"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = (*SPECIAL, "<think>", "</think>", "<tool_call>", "</tool_call>")  # the others are added, but not special
# Source: pre_tokenizer of Qwen3.5's tokenizer.json, and the same in the syntax of Python's `re`.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_WORDS = re.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|(?:[^\r\n\w]|_)?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LITERALS = re.compile("|".join(map(re.escape, ADDED)))
_LETTERS = re.compile(r"[^\W\d_]+")
_ROUND = 256  # the vocabulary is filled up to a multiple of it
LONGEST_PIECE = 4

Merge = tuple[str, str]


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level BPE. Source: encoder.py of openai/gpt-2."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(0x100)]


_ALPHABET = byte_alphabet()
_BYTES = {character: byte for byte, character in enumerate(_ALPHABET)}


def split_words(text: str) -> list[str]:
    """The words of `text`, inside which merges happen."""
    return _WORDS.findall(text)


def _spell(word: str) -> str:
    return "".join(_ALPHABET[byte] for byte in word.encode())


class Vocabulary:
    """Merges, and the tokens that follow from them: the 256 bytes, one for each merge, then the added ones."""

    def __init__(self, merges: Sequence[Merge]) -> None:
        self.merges = tuple(merges)
        self._ranks = {merge: rank for rank, merge in enumerate(self.merges)}
        tokens = dict.fromkeys([*_ALPHABET, *(left + right for left, right in self.merges)])
        self.tokens: list[str] = [*tokens, *ADDED]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        self.end_token, self.think_close = self.ids["<|im_end|>"], self.ids["</think>"]
        self.n_tokens = -(-len(self.tokens) // _ROUND) * _ROUND
        self._bytes = [
            token.encode() if token in ADDED else bytes(_BYTES[character] for character in token)
            for token in self.tokens
        ]
        self._encode_word = functools.lru_cache(maxsize=100_000)(self._cut_word)

    @classmethod
    def load(cls) -> Vocabulary:
        """The vocabulary in `vocabulary.json`."""
        return cls([tuple(merge.split(" ")) for merge in json.loads(PATH.read_text(encoding="utf-8"))["merges"]])

    def save(self) -> None:
        """Write `vocabulary.json`."""
        text = json.dumps({"merges": [" ".join(merge) for merge in self.merges]}, ensure_ascii=False, indent=0)
        PATH.write_text(text + "\n", encoding="utf-8")

    def encode(self, text: str, *, trusted: bool) -> list[int]:
        """The tokens of `text`; only where it is trusted, a literal such as `</think>` is one token."""
        tokens: list[int] = []
        start = 0
        for literal in _LITERALS.finditer(text):
            cut = literal.start() if trusted else literal.start() + 1
            tokens += self._encode_plain(text[start:cut])
            tokens += [self.ids[literal.group()]] if trusted else []
            start = literal.end() if trusted else cut
        return tokens + self._encode_plain(text[start:])

    def encode_pieces(self, pieces: Iterable[Piece]) -> list[int]:
        """The tokens of the joined pieces, as `sqale_edge.llama` makes them: words run on across a boundary."""
        tokens: list[int] = []
        plain = ""
        for piece in pieces:
            start = 0
            for literal in _LITERALS.finditer(piece.text) if piece.trusted else ():
                tokens += self.encode(plain + piece.text[start : literal.start()], trusted=False)
                tokens.append(self.ids[literal.group()])
                plain, start = "", literal.end()
            plain += piece.text[start:]
        return tokens + self.encode(plain, trusted=False)

    def decode(self, tokens: Iterable[int]) -> bytes:
        """The bytes of `tokens`."""
        return b"".join(self._bytes[token] for token in tokens)

    def _encode_plain(self, text: str) -> list[int]:
        return [token for word in split_words(text) for token in self._encode_word(word)]

    def _cut_word(self, word: str) -> tuple[int, ...]:
        return tuple(self.ids[part] for part in self.split(_spell(word)))

    def split(self, spelled: str) -> list[str]:
        """The tokens of one word in the byte-level alphabet: of all merges that apply the first, until none does."""
        parts = list(spelled)
        while len(parts) > 1:
            rank, place = min(
                (self._ranks.get((left, right), len(self.merges)), place)
                for place, (left, right) in enumerate(itertools.pairwise(parts))
            )
            if rank == len(self.merges):
                break
            parts[place : place + 2] = [parts[place] + parts[place + 1]]
        return parts

    def write_tokenizer(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json` as transformers reads them."""
        split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        added = [
            {"id": self.ids[token], "content": token, "special": token in SPECIAL}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for token in ADDED
        ]
        model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False}
        model |= {"continuing_subword_prefix": "", "end_of_word_suffix": "", "byte_fallback": False}
        model |= {"ignore_merges": False, "vocab": {token: self.ids[token] for token in self.tokens[: -len(ADDED)]}}
        model["merges"] = [list(merge) for merge in self.merges]
        tokenizer: dict[str, Any] = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
        }
        tokenizer |= {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}}
        tokenizer |= {"post_processor": level, "decoder": level, "model": model}
        settings = {"tokenizer_class": "Qwen2TokenizerFast", "add_bos_token": False, "model_max_length": 16_384}
        settings |= {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
        for name, value in (("tokenizer.json", tokenizer), ("tokenizer_config.json", settings)):
            (folder / name).write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


# Learning.


def learn_merges(counts: Mapping[str, int], n_merges: int, *, longest: int, known: Sequence[Merge] = ()) -> list[Merge]:
    """The `n_merges` most frequent merges inside the words of `counts`, on top of `known`; ties by their spelling."""
    vocabulary = Vocabulary(known)
    words = {word: vocabulary.split(word) for word in counts}
    merges: list[Merge] = []
    for _ in range(n_merges):
        pairs: collections.Counter[Merge] = collections.Counter()
        for word, parts in words.items():
            for pair in itertools.pairwise(parts):
                if len(pair[0]) + len(pair[1]) <= longest:
                    pairs[pair] += counts[word]
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        for parts in words.values():
            place = 0
            while place < len(parts) - 1:
                if (parts[place], parts[place + 1]) == best:
                    parts[place : place + 2] = ["".join(best)]
                place += 1
    return merges


def learn_vocabulary(words: Iterable[str], texts: Sequence[str], *, n_pieces: int, n_marks: int) -> Vocabulary:
    """The vocabulary for names made of `words`, in episodes like `texts`.

    Args:
        words: Words of training databases; each counts once.
        texts: Whole episodes. What is in many of them, whatever their database, becomes one token.
        n_pieces: Pieces of words in lower case.
        n_marks: Tokens for what stands between words: brackets, quotes, line ends.
    """
    types = {word.lower() for word in words}
    lower = learn_merges(dict.fromkeys(types, 1), n_pieces, longest=LONGEST_PIECE)
    merges: list[Merge] = []
    for left, right in lower:  # in all three forms, so that a word has the same cuts in each
        forms = [(left, right), (left.capitalize(), right), (left.upper(), right.upper())]
        merges += dict.fromkeys(form for form in forms if form not in merges)
    everywhere = set(_find_frequent_words(texts, share=0.3))
    frequent = [
        word for word in _find_frequent_words(texts) if word in everywhere or word.strip("_ ").lower() not in types
    ]
    starts = collections.Counter(Vocabulary(merges).split(word)[0] for word in types)
    for bare in dict.fromkeys(_LETTERS.search(word).group() for word in frequent if _LETTERS.search(word)):  # type: ignore[union-attr]
        merges += _join(Vocabulary(merges).split(bare))
    for word in frequent:
        letters = _LETTERS.search(word)
        # A blank is merged with a whole word only; not if names of databases begin with the same token.
        if (
            letters
            and letters.group() != word
            and len(letters.group()) > 1
            and (word in everywhere or not starts[letters.group()])
        ):
            merges += _join(Vocabulary(merges).split(_spell(word)))
    marks = collections.Counter(
        _spell(word) for text in texts for word in split_words(text) if not any(map(str.isalnum, word))
    )
    # A quote stays alone: after a literal always the same token follows, and in front of it always one of two.
    marks = collections.Counter({mark: n for mark, n in marks.items() if "'" not in mark or mark == _spell(" '")})
    merges += learn_merges(marks, n_marks, longest=8)
    return Vocabulary(list(dict.fromkeys(merges)))


def _join(parts: list[str]) -> list[Merge]:
    """Merges that make one token of `parts`, from left to right."""
    return [("".join(parts[:place]), parts[place]) for place in range(1, len(parts))]


def _find_frequent_words(texts: Sequence[str], share: float = 0.02) -> list[str]:
    """Words, with what is glued to their front, that are in more than `share` of the texts; the most frequent first."""
    found = collections.Counter(
        word for text in texts for word in set(split_words(text)) if any(map(str.isalpha, word)) and len(word) > 1
    )
    return [word for word, count in found.most_common() if count > share * len(texts) and word[0] not in "'\"("]


def main() -> None:
    """Learn the vocabulary of the training databases and write it."""
    from domains import training_words  # noqa: PLC0415 - the vocabulary itself needs no generator
    from episodes import sample_texts  # noqa: PLC0415

    vocabulary = learn_vocabulary(training_words(), sample_texts(1_500), n_pieces=440, n_marks=60)
    vocabulary.save()
    print(f"{len(vocabulary.tokens)} tokens, {len(vocabulary.merges)} merges, {vocabulary.n_tokens} rows")  # noqa: T201


if __name__ == "__main__":
    main()
