"""The engine's interface over a vLLM server: used only where a model is named by an http:// or https:// address.

Prompts go there as token ids and tokens come back as ids, so the server tokenises nothing. What its texts need is read
here, from the same model's files: see `vocabulary`. One question's log only grows, so a server that caches prefixes
evaluates each token once.

Not guaranteed: that two answers to the same request are equal. vLLM's sums depend on what it computes at the same time.
"""
