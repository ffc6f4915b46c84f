"""Text-to-SQL agents that run on a laptop without a GPU, offline, inside other programs."""
