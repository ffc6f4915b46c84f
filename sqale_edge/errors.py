"""Every exception that sqale-edge raises on purpose.

```
SqaleEdgeError                      .hint: the fix, shown with the message
  ConversionError(path)
    CheckpointError  UnsupportedArchitectureError  TensorShapeError  QuantizationError
  ModelError
    ModelNotFoundError  ModelLoadError  GrammarError  ContextOverflowError  DecodeError  ServerError  Cancelled
  DatabaseError(path)
    DatabaseOpenError  QueryError
  BenchmarkError(path)
  StoreError                        download, checksum, disk space
  BundleError(path)
  SettingsError(field, value)       also a ValueError
```

A message says in one line what failed, with the value, and the limit; `hint` says what to do about it. What a *model*
does wrong (a bad call, SQL that does not run) is data in a `ToolResult`, never an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

QueryErrorKind = Literal["refused", "failed", "timeout", "interrupted"]


class SqaleEdgeError(Exception):
    """Base of the tree. `str(error)` is the message alone; `error.hint` is the fix, or an empty string."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class _PathError(SqaleEdgeError):
    """An error about one file, which it names in `path`."""

    def __init__(self, message: str, *, path: str | Path | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


class ConversionError(_PathError):
    """A checkpoint could not become a GGUF file. Nothing was left behind."""


class CheckpointError(ConversionError):
    """The checkpoint is incomplete, damaged or contradicts itself."""


class UnsupportedArchitectureError(ConversionError):
    """The checkpoint is of a model family that the conversion does not know."""


class TensorShapeError(ConversionError):
    """A tensor does not have the shape that the configuration promises."""


class QuantizationError(ConversionError):
    """A file type, recipe or importance matrix cannot be used, or llama.cpp could not quantize the file."""


class ModelError(SqaleEdgeError):
    """A language model could not be loaded or run."""


class ModelNotFoundError(ModelError):
    """There is no such file, and no such name in the store."""


class ModelLoadError(ModelError):
    """The model cannot be loaded by llama.cpp, or memory does not suffice; or a server has another than expected."""


class GrammarError(ModelError):
    """llama.cpp does not accept the grammar."""


class ContextOverflowError(ModelError):
    """More tokens than the context holds."""


class DecodeError(ModelError):
    """llama.cpp failed while evaluating tokens."""


class ServerError(ModelError):
    """The server that runs the model cannot be reached, fails, or is not one that can be used."""


class Cancelled(ModelError):  # noqa: N818 - it is asked for, not a fault
    """`cancel` was called. An agent turns it into an outcome; it is seen where there is none yet, as while loading."""


class DatabaseError(_PathError):
    """Something about the user's database; it is unchanged."""


class DatabaseOpenError(DatabaseError):
    """The file is missing, unreadable or not a SQLite database."""


class QueryError(DatabaseError):
    """A statement was refused, failed, or ran past a limit.

    `kind` says which. The tools turn it into text for the model.
    """

    def __init__(
        self, message: str, *, kind: QueryErrorKind = "failed", path: str | Path | None = None, hint: str = ""
    ) -> None:
        super().__init__(message, path=path, hint=hint)
        self.kind: QueryErrorKind = kind


class BenchmarkError(_PathError):
    """A benchmark's file is missing, broken, or does not belong to the others; or one cannot be written."""


class StoreError(SqaleEdgeError):
    """The model store: download, checksum, disk space."""


class BundleError(_PathError):
    """A bundle is damaged, or cannot be made, read or installed here."""


class SettingsError(SqaleEdgeError, ValueError):
    """A setting is out of its range; `field` and `value` say which."""

    def __init__(self, message: str, *, field: str, value: Any, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field
        self.value = value
