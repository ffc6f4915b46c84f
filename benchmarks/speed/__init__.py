"""How fast, how much memory, how many tokens: measured side by side, with what it depends on.

```python
from sqale_edge import EngineSettings
from sqale_edge.benchmarks.speed import QUICK, Bench, write_markdown

*_, document = Bench("model.gguf", EngineSettings(), QUICK).run()
print(write_markdown(document))
```
"""

from .bench import QUICK, Bench, Plan
from .goals import Goal, list_goals
from .measurements import NAMES
from .plots import draw_plots
from .report import write_goals, write_markdown
from .results import append_document, combine_documents
from .tune import Tuned, candidate_threads, make_tuning, tune

__all__ = [
    "NAMES",
    "QUICK",
    "Bench",
    "Goal",
    "Plan",
    "Tuned",
    "append_document",
    "candidate_threads",
    "combine_documents",
    "draw_plots",
    "list_goals",
    "make_tuning",
    "tune",
    "write_goals",
    "write_markdown",
]
