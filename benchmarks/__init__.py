"""Benchmarks: how right the answers are, of any model or file of predictions.

```python
from sqale_edge.benchmarks import choose_rules, read_predictions, read_questions, score, summarize

questions = read_questions("dev.json")
predictions = read_predictions("predict_dev.json", questions)
rules = choose_rules(questions[0].form)
outcomes = [outcome for (outcome,) in score(questions, [predictions.sql], rules)]
print(summarize(outcomes, rules)["strict"]["accuracy"])
```
"""

from .analysis import analyze
from .asking import ask_questions, describe_run
from .predictions import Predictions, read_predictions
from .question import GoldTable, Question
from .questions import read_questions, sample
from .report import Judged, write_report
from .report_folder import check_folder
from .results_file import Answer, Results, ResultsFile, Run, read_results
from .rules import choose_rules
from .scoring import Outcome, score
from .submissions import write_predictions
from .summary import compare, count_pairs, summarize

__all__ = [
    "Answer",
    "GoldTable",
    "Judged",
    "Outcome",
    "Predictions",
    "Question",
    "Results",
    "ResultsFile",
    "Run",
    "analyze",
    "ask_questions",
    "check_folder",
    "choose_rules",
    "compare",
    "count_pairs",
    "describe_run",
    "read_predictions",
    "read_questions",
    "read_results",
    "sample",
    "score",
    "summarize",
    "write_predictions",
    "write_report",
]
