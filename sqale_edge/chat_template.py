"""A model's chat template, cut into what an append-only log needs: the first prompt, and what stands between turns.

Templates render whole conversations and drop earlier thoughts; a token log must only grow. So a conversation of
placeholders is rendered once, and what the template puts around them is cut out and reused.
"""

from __future__ import annotations

import dataclasses
import functools
import json

from sqale_edge.errors import ModelError
from sqale_edge.rendering import UnusableTemplateError, cut, cut_in_child

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
_THINK = "<think>\n"


@dataclasses.dataclass(frozen=True)
class ChatTexts:
    """What a chat template puts around the messages.

    Attributes:
        before_user: From the start to the first user message; the system message is in it.
        after_user: From there to where the model starts to write.
        between: From the end of a reply, its end token included, to the next user message.
        thinks: `after_user` ends with an open `<think>` line.
    """

    before_user: str
    after_user: str
    between: str
    thinks: bool


def cut_template(template: str, system: str, *, can_think: bool, eos: str = "") -> ChatTexts:
    """What `template` puts around the messages of a conversation that starts with `system`.

    Args:
        template: Jinja, as in `tokenizer.chat_template`.
        system: The system message, word for word.
        can_think: The vocabulary has `<think>` and `</think>`: a prompt then ends with an open `<think>` line.
        eos: The literal of the token that templates call `eos_token`. (`bos_token` is left empty: the log's first token
            is the agent's business.)

    Raises:
        ModelError: The template cannot be used, or takes too much time or memory.
    """
    variables = {
        "bos_token": "",
        "eos_token": eos,
        "enable_thinking": can_think,
        "add_generation_prompt": True,
        "tools": None,
    }
    try:
        before_user, after_user, between = _cut(template, system, json.dumps(variables))
    except UnusableTemplateError as error:
        raise ModelError(
            f"the model's chat template cannot be used: {error}", hint="the model file may be damaged: convert it again"
        ) from None
    if can_think and not after_user.rstrip().endswith(_THINK.strip()):
        after_user += _THINK
    return ChatTexts(before_user, after_user, between, thinks=can_think)


@functools.lru_cache(maxsize=16)
def _cut(template: str, system: str, variables: str) -> list[str]:
    """A program that loads a model again and again starts one child."""
    is_own = template == CHATML
    return (cut if is_own else cut_in_child)(template, system, json.loads(variables))
