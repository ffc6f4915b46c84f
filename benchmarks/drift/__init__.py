"""How far quantized files drift from what they were made of, and llama.cpp from other engines.

```python
from pathlib import Path

from sqale_edge.benchmarks.drift import DriftBench, write_markdown

bench = DriftBench(Path("logs.jsonl"), Path("bf16.gguf"), [Path("q4.gguf")], [Path("vllm")])
documents = [step for step in bench.run() if isinstance(step, dict)]
print(write_markdown(documents))
```
"""

from .everything import QUANTS, DriftPlan, DriftRun
from .measuring import DriftBench, read_done
from .parting import compare_logs
from .recording import describe_recording, record_logs
from .references import read_reference
from .report import draw_plot, write_markdown
from .token_logs import LogsFile, TokenLog, TokenLogs, read_logs

__all__ = [
    "QUANTS",
    "DriftBench",
    "DriftPlan",
    "DriftRun",
    "LogsFile",
    "TokenLog",
    "TokenLogs",
    "compare_logs",
    "describe_recording",
    "draw_plot",
    "read_done",
    "read_logs",
    "read_reference",
    "record_logs",
    "write_markdown",
]
