"""The demo's vocabulary: llama.cpp's tokens are ours, and a word has the same tokens everywhere."""

from __future__ import annotations

import itertools
import random

import pytest
from checkpoints import CORPUS
from episodes import make_lessons
from vocabulary import ADDED, learn_merges
from words import make_word, read_words

from sqale_edge.engine import Piece

EXOTIC = set("\u0301\u0308\u093c\u093e\u2003\u3000\u0085\u00bd")  # marks, fractions, blanks that no training text has
NAMES = [
    *(word for kind in ("people", "surnames", "cities", "measures") for word in read_words(kind, "held_out")),
    *(make_word(random.Random(seed), "held_out") for seed in range(60)),
]


@pytest.mark.parametrize("text", [text for text in CORPUS if not EXOTIC & set(text)])
@pytest.mark.parametrize("trusted", [True, False])
def test_llama_cpp_gives_the_same_tokens(demo_engine, vocabulary, text, trusted):
    """Text of all kinds, control tokens among it, is tokenised as llama.cpp does it."""
    assert vocabulary.encode(text, trusted=trusted) == demo_engine.tokenize(text, trusted)


def test_llama_cpp_gives_the_tokens_of_whole_episodes(demo_engine, vocabulary):
    """Episodes are learned in the tokens that the engine will see."""
    for lesson in itertools.islice(make_lessons(3, "held_out"), 25):
        text = vocabulary.decode(lesson.tokens).decode()
        assert demo_engine.tokenize(text, trusted=True) == vocabulary.encode(text, trusted=True)


def test_pieces_are_joined_as_in_the_engine(demo_engine, vocabulary):
    """Words run on across pieces, and only trusted literals become control tokens."""
    pieces = [
        Piece("<|im_start|>user\nTool", True),
        Piece(" result: </think> Osl", False),
        Piece("o<|im_end|>\n", True),
    ]
    assert vocabulary.encode_pieces(pieces) == demo_engine.tokenize_pieces(pieces)


def test_tokens_give_the_text_back(vocabulary):
    """No byte is lost."""
    for text in CORPUS:
        assert vocabulary.decode(vocabulary.encode(text, trusted=False)) == text.encode()


@pytest.mark.parametrize("before", [" ", '"', "(", "_", ".", "= '", '": "'])
def test_a_name_has_the_same_tokens_wherever_it_stands(vocabulary, before):
    """A name that was never seen has its own tokens after whatever stands before it, so it can be copied."""
    start = vocabulary.encode(before, trusted=False)
    glued = [
        name
        for name in NAMES
        if vocabulary.encode(before + name, trusted=False) != [*start, *vocabulary.encode(name, trusted=False)]
    ]
    assert len(glued) <= len(NAMES) // 50, glued


def test_a_name_is_cut_at_the_same_places_in_every_case(vocabulary):
    """Lower case, capitalised and upper case differ in letters, not in cuts."""

    def cuts(text):
        return [len(vocabulary.decode([token])) for token in vocabulary.encode(text, trusted=False)]

    other = [name for name in NAMES if not cuts(name.lower()) == cuts(name.capitalize()) == cuts(name.upper())]
    assert len(other) <= len(NAMES) // 12, other


def test_digits_are_single(vocabulary):
    """Each digit is a token."""
    assert len(vocabulary.encode("2024-03-17", trusted=False)) == 10


def test_it_is_small_and_has_its_control_tokens(vocabulary):
    """At most 2,048 rows; the added tokens are single and the last ones."""
    assert vocabulary.n_tokens == 2_048
    assert [vocabulary.encode(token, trusted=True) for token in ADDED] == [[vocabulary.ids[token]] for token in ADDED]
    assert all(len(vocabulary.encode(token, trusted=False)) > 1 for token in ADDED)


def test_merges_are_learned_by_frequency():
    """The most frequent pair is merged first; nothing grows longer than allowed."""
    assert learn_merges({"abab": 2, "abc": 1}, 5, longest=3) == [("a", "b"), ("ab", "c")]
