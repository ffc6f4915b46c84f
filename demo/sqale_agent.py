"""The texts that the demo model is trained with. It goes into the checkpoint, where the conversion reads it.

Short ones: a small model needs no instructions, and each of their tokens would be evaluated in every episode.
"""

SYSTEM_PROMPT = "Answer with SQL."
USER_TEMPLATE = "{question}"
TOOL_RESULT = "Tool result:"
BUDGET = "[{n} turns left]"
BUDGET_ONE = "[1 turn left]"
EXPLORATION_LIMIT = "Exploration is over. Return only the SQL query.\n{query}"


def write_user(question: str) -> str:
    """The user message."""
    return USER_TEMPLATE.format(question=question)


def write_budget(n: int) -> str:
    """The line after the results of a turn."""
    return BUDGET_ONE if n == 1 else BUDGET.format(n=n)


def write_limit(query: str) -> str:
    """The message that ends the exploration; `query` is the last one that ran."""
    return EXPLORATION_LIMIT.format(query=query)
