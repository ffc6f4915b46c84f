"""Bundles of a few kilobytes: `from small_bundles import write_small_bundle`. The real pip, and a program of 20 lines.

What installs them is the real installer: the stand-in has the names that it uses of the program, and nothing else.
"""

from __future__ import annotations

import importlib.metadata
import zipfile

from sqale_edge.bundle.collection import Wheel
from sqale_edge.bundle.creation import _write
from sqale_edge.bundle.installer.machine import name_platform, name_python
from sqale_edge.bundle.wheels import _digest, repack
from sqale_edge.store.steps import Listener

STAND_IN = {
    "sqale_edge/__init__.py": "",
    "sqale_edge/convert.py": "def verify_file(path): assert path.read_text() == 'model'",
    "sqale_edge/models.py": (
        "from pathlib import Path\n"
        "class Model: path = Path(__file__).with_name('demo.gguf')\n"
        "def find_model(name): return Model\n"
    ),
    "sqale_edge/cli.py": "def main(): print('the program runs')\n",
    "sqale_edge/demo.gguf": "model",
}


def write_wheel(folder, files=None, *, name="sqale_edge", version="0.1", tag="py3-none-any", requires=(), commands=()):
    """A wheel with these files."""
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    requirements = "".join(f"Requires-Dist: {line}\n" for line in requires)
    entries = {
        **(files or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requirements}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n",
        f"{info}/entry_points.txt": "[console_scripts]\n" + "".join(f"{line}\n" for line in commands),
    }
    rows = [
        f"{entry},sha256={_digest(content.encode())},{len(content.encode())}\n" for entry, content in entries.items()
    ]
    entries[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"])
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in entries.items():
            head = zipfile.ZipInfo(entry)
            head.external_attr = (0o100755 if ".data/scripts/" in entry else 0o100644) << 16
            archive.writestr(head, content)
    return path


def make_wheels(folder):
    """Of the stand-in, and of pip."""
    program = write_wheel(folder, STAND_IN, commands=["sqale-edge=sqale_edge.cli:main"])
    pip = importlib.metadata.distribution("pip")
    return [
        Wheel("pip", pip.version, repack(pip, folder), "installed"),
        Wheel("sqale-edge", "0.1", program, "given"),
    ]


def describe(wheels, **values):
    """What its `bundle.json` says."""
    return {
        "format": 1,
        "sqale_edge": "0.1",
        "platform": name_platform(),
        "python": name_python(),
        "glibc": None,
        "wheels": [{"name": one.name, "version": one.version, "file": one.path.name} for one in wheels],
        "models": [],
        **values,
    }


def write_small_bundle(path, wheels, packed=(), **values):
    """The bundle at `path`, a zip or a folder; its digest."""
    return _write(path, describe(wheels, **values), wheels, list(packed), Listener(), title="small")
