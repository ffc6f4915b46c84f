"""Words of training databases and of held-out ones: two pools without a word in common, chosen by each word's hash.

All words are in `words/`, one file a kind, written for this demo. Some names are made up of syllables instead: so no
model can know all words, and has to learn to copy. What both pools share is said in `GLUE`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import string
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random

Split = Literal["train", "held_out"]

FOLDER = Path(__file__).parent / "words"
_LONGEST_PIECE = 4  # as in `vocabulary`, which learns from this module's words
GLUE = ("id", "name", "title", "label", "on", "at", "date")  # names that every database has somewhere


def split_of(word: str) -> Split:
    """The pool that `word` belongs to, in whatever case: a quarter of all words are held out."""
    return "held_out" if hashlib.sha256(word.lower().encode()).digest()[0] < 64 else "train"


def belongs(entry: str, split: Split) -> bool:
    """Whether each word of `entry` is of this pool; they are joined by `_`."""
    return all(split_of(word) == split for word in entry.split("_"))


@functools.cache
def read_words(kind: str, split: Split) -> tuple[str, ...]:
    """The words of one file that belong to `split`. Several joined by `_` belong where each of them does."""
    entries = dict.fromkeys((FOLDER / f"{kind}.txt").read_text(encoding="utf-8").split())
    return tuple(entry for entry in entries if belongs(entry, split))


@functools.cache
def read_categories() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Columns with a few values each: a name and its values."""
    lines = (FOLDER / "categories.txt").read_text(encoding="utf-8").splitlines()
    return tuple((name, tuple(values.split())) for name, values in (line.split(": ") for line in lines))


def make_word(rng: random.Random, split: Split, n_syllables: int = 2, *, of_pieces: bool = False) -> str:
    """A word that no language has, in lower case: of syllables, or of one more of the vocabulary's pieces."""
    starts, vowels, ends, rude = _read_syllables()
    while True:
        if of_pieces:
            parts = rng.choices(_read_pieces(), k=n_syllables + 1)
        else:
            parts = [rng.choice(starts) + rng.choice(vowels) + rng.choice(ends) for _ in range(n_syllables)]
        word = "".join(parts).replace("-", "")
        if split_of(word) == split and not any(part in word for part in rude):
            return word


@functools.cache
def _read_syllables() -> list[list[str]]:
    """Starts, vowels and ends of syllables (`-` is none), and what must not come of them."""
    lines = (FOLDER / "syllables.txt").read_text(encoding="utf-8").splitlines()
    return [line.partition(": ")[2].split() for line in lines]


@functools.cache
def _read_pieces() -> list[str]:
    """The vocabulary's pieces of words, in lower case, and the letters; longer ones are words of the episodes."""
    merges = json.loads((FOLDER.parent / "vocabulary.json").read_text(encoding="utf-8"))["merges"]
    pieces = {merge.replace(" ", "").lower() for merge in merges}
    short = {piece for piece in pieces if piece.isascii() and piece.isalpha() and len(piece) <= _LONGEST_PIECE}
    return sorted(short | set(string.ascii_lowercase))


def plural(word: str) -> str:
    """The plural of an English noun that is regular."""
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"
