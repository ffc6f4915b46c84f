"""Text-to-SQL agents that run on a laptop without a GPU, offline, inside other programs.

```python
from sqale_edge import Agent

with Agent.load("sqale") as agent:
    episode = agent.run("How many customers placed more than three orders in 2024?", "shop.sqlite")
    print(episode.sql, episode.rows)
```
"""

import logging

from sqale_edge._version import __version__
from sqale_edge.agent import Agent
from sqale_edge.database import Database
from sqale_edge.episode import Episode, Event, ToolCall, ToolResult
from sqale_edge.errors import SqaleEdgeError
from sqale_edge.request import Request
from sqale_edge.settings import EngineSettings, EpisodeLimits, PrefixSettings, RemoteSettings, SamplingSettings
from sqale_edge.tools import Toolbox

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent unless the program that embeds us says otherwise

__all__ = [
    "Agent",
    "Database",
    "EngineSettings",
    "Episode",
    "EpisodeLimits",
    "Event",
    "PrefixSettings",
    "RemoteSettings",
    "Request",
    "SamplingSettings",
    "SqaleEdgeError",
    "ToolCall",
    "ToolResult",
    "Toolbox",
    "__version__",
]
