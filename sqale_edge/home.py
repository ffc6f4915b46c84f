"""Where this program keeps what outlives a start: the store of models, snapshots, the number of threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from sqale_edge.errors import StoreError

HOME_VARIABLE = "SQALE_EDGE_HOME"


def home_folder(kind: Literal["cache", "config", "data"]) -> Path:
    """The folder that `SQALE_EDGE_HOME` names, or this user's of that kind for this program; it may be missing.

    Raises:
        StoreError: This user has no home, or the variable's `~user` is nobody.
    """
    import platformdirs  # noqa: PLC0415 - keeps the import of the package light

    own = {
        "cache": platformdirs.user_cache_dir,
        "config": platformdirs.user_config_dir,
        "data": platformdirs.user_data_dir,
    }
    home = os.environ.get(HOME_VARIABLE) or own[kind]("sqale-edge", appauthor=False)
    try:
        return Path(home).expanduser().absolute()
    except RuntimeError as error:  # a "~" of nobody
        raise StoreError(f"{HOME_VARIABLE} is {home!r}: {error}", hint=f"correct {HOME_VARIABLE}") from None
