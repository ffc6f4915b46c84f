"""Text to tokens and back, such that text from people and databases cannot become a control token.

llama.cpp's own switch (`parse_special`) is not enough: it guards tokens of type CONTROL only, while `<think>`,
`</think>` and `<tool_call>` are of type USER_DEFINED and are recognised in any text. So markup literals are found here:
in trusted text they become their token, everywhere else they are cut in two and tokenised as plain characters.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import unicodedata
from typing import TYPE_CHECKING, Any

import llama_cpp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sqale_edge.engine import Piece

_USER_DEFINED = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
_CONTROL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
# Added tokens that are markup. Others exist that are ordinary text, such as runs of blanks.
_MARKUP = re.compile(r"<.*>|\[.*\]", re.DOTALL)
# The bytes 00, C0, C1, E0, F0, or 80 80 at the start, as they are and as byte-level vocabularies write them. Source of
# the latter: GPT-2's bytes_to_unicode.
_SUSPICIOUS = re.compile(
    rb"[\x00\xc0\xc1\xe0\xf0]|^\x80\x80"
    rb"|\xc4\x80|\xc3[\x80\x81\xa0\xb0]|^\xc4\xa2\xc4\xa2"  # U+0100; U+00C0, C1, E0, F0; twice U+0122
)


class Vocabulary:
    """The vocabulary of a loaded model.

    Args:
        pointer: llama.cpp's vocabulary.
        is_nfc: The model's own tokenizer brings text into Unicode's form NFC first; llama.cpp's does not.

    Attributes:
        n_tokens: How many tokens there are.
        markup: Literal -> id of every control token and every added token that is markup.
        end_tokens: The tokens that llama.cpp knows to end a generation.
        unsafe: What must never stand in text under a grammar: markup, and tokens that llama.cpp's check may read a NUL
            in, at which it stops looking; taking such a token ends the process. End tokens are not among them.
    """

    def __init__(self, pointer: Any, *, is_nfc: bool = False) -> None:
        self._pointer = pointer
        self._is_nfc = is_nfc
        self.n_tokens: int = llama_cpp.llama_vocab_n_tokens(pointer)
        self.markup: dict[str, int] = {}
        end_tokens, unsafe = [], []
        for token in range(self.n_tokens):
            attributes = llama_cpp.llama_vocab_get_attr(pointer, token)
            text = llama_cpp.llama_vocab_get_text(pointer, token) or b""
            literal = text.decode("utf-8", "replace") if attributes & (_CONTROL | _USER_DEFINED) else ""
            is_markup = bool(literal and (attributes & _CONTROL or _MARKUP.fullmatch(literal)))
            if is_markup:
                self.markup[literal] = token
            if is_markup or (_SUSPICIOUS.search(text) and _may_read_as_nul(self.piece(token))):
                unsafe.append(token)
            if llama_cpp.llama_vocab_is_eog(pointer, token):
                end_tokens.append(token)
        self.end_tokens = frozenset(end_tokens)
        self.unsafe = frozenset(unsafe) - self.end_tokens
        literals = sorted(self.markup, key=len, reverse=True)
        self._markup_pattern = re.compile("|".join(map(re.escape, literals)) or r"(?!)")

    def tokenize(self, pieces: Iterable[Piece]) -> list[int]:
        """The tokens of the joined pieces; only a literal inside a trusted piece becomes a control token."""
        tokens: list[int] = []
        plain = ""
        for piece in pieces:
            start = 0
            for literal in self._markup_pattern.finditer(piece.text) if piece.trusted else ():
                tokens += self._tokenize_plain(plain + piece.text[start : literal.start()])
                tokens.append(self.markup[literal.group()])
                plain, start = "", literal.end()
            plain += piece.text[start:]
        return tokens + self._tokenize_plain(plain)

    def _tokenize_plain(self, text: str) -> list[int]:
        text = unicodedata.normalize("NFC", text) if self._is_nfc else text
        return [token for part in self._cut_literals(text) for token in self._call_tokenizer(part)]

    def _cut_literals(self, text: str) -> Iterator[str]:
        """`text` in parts, none of which contains a markup literal."""
        start = position = 0
        while literal := self._markup_pattern.search(text, position):
            position = literal.start() + 1
            yield text[start:position]
            start = position
        if start < len(text):
            yield text[start:]

    def _call_tokenizer(self, text: str) -> Sequence[int]:
        data = text.encode("utf-8", "replace")
        size = len(data) + 16
        while True:
            buffer = (llama_cpp.llama_token * size)()
            n_tokens = llama_cpp.llama_tokenize(self._pointer, data, len(data), buffer, size, False, False)
            if n_tokens >= 0:
                tokens: list[int] = buffer[:n_tokens]
                return tokens
            size = -n_tokens

    def digest(self) -> str:
        """SHA-256 of what each id stands for: the lines `[id, text]` as JSON, in order; ids that are unused left out.

        The text is the vocabulary's own, so that of a byte-level one is in its alphabet, as in `tokenizer.json`.
        """
        found = hashlib.sha256()
        for token in range(self.n_tokens):
            if not llama_cpp.llama_vocab_get_attr(self._pointer, token) & llama_cpp.LLAMA_TOKEN_ATTR_UNUSED:
                text = (llama_cpp.llama_vocab_get_text(self._pointer, token) or b"").decode("utf-8", "replace")
                found.update(json.dumps([token, text]).encode() + b"\n")
        return found.hexdigest()

    def piece(self, token: int) -> bytes:
        """The bytes of one token, a control token as its literal."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_token_to_piece(self._pointer, token, buffer, size, 0, True)
            if length >= 0:
                return buffer.raw[:length]
            size = -length


def _may_read_as_nul(piece: bytes) -> bool:
    """Whether llama.cpp's grammars can see the character 0 in `piece`, or any ASCII where there is none.

    They take whatever follows a first byte for continuation bytes, over-long forms too: C0 80, and also C0 40, is NUL.
    A character may have begun in the token before; then two bytes 80 can complete a NUL. Source: decode_utf8 in
    src/llama-grammar.cpp.
    """
    position = 0
    while position < len(piece):
        first = piece[position]
        n_more = 0 if first < 0xC0 else 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        value = first & 0x7F >> n_more
        following = piece[position + 1 : position + 1 + n_more]
        for byte in following:
            value = value << 6 | byte & 0x3F
        is_over_long = n_more > 0 and len(following) == n_more and value < 0x80
        if first == 0 or is_over_long:
            return True
        position += 1 + n_more
    return piece.startswith(b"\x80\x80")
