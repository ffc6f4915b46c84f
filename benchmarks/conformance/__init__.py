"""Does the original agree? A checkpoint's own tools and texts beside ours, byte for byte.

The one part of the package that runs a checkpoint's code: only where a person asks for it, and in another process.
"""

from .comparison import Comparison, Edit
from .report import show_report
from .run import Conformance, compare_checkpoint, read_adapter

__all__ = ["Comparison", "Conformance", "Edit", "compare_checkpoint", "read_adapter", "show_report"]
