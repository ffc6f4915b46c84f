"""A model's chat template, cut into what an append-only log needs: the first prompt, and what stands between turns.

Templates render whole conversations and drop earlier thoughts; a token log must only grow. So a conversation of
placeholders is rendered once, and what the template puts around them is cut out and reused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sqale_edge.errors import ModelError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
_THINK = "<think>\n"
# Private-use characters: no template contains them, and no template trims them.
_USER, _REPLY, _NEXT = "\ue000user\ue001", "\ue000reply\ue001", "\ue000next\ue001"


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
        ModelError: The template cannot be used.
    """
    try:
        compiled = _environment().from_string(template)
        variables = {
            "bos_token": "",
            "eos_token": eos,
            "enable_thinking": can_think,
            "add_generation_prompt": True,
            "tools": None,
        }
        conversation = [("user", _USER), ("assistant", _REPLY), ("user", _NEXT)]
        first = _render(compiled, system, conversation[:1], variables)
        whole = _render(compiled, system, conversation, variables)
        before_user, after_user = first.split(_USER)
        between = whole.split(_REPLY)[1].split(_NEXT)[0]
    except Exception as error:  # noqa: BLE001 - a template is a program, and may fail as any can
        raise ModelError(
            f"the model's chat template cannot be used: {error}", hint="the model file may be damaged: convert it again"
        ) from None
    if can_think and not after_user.rstrip().endswith(_THINK.strip()):
        after_user += _THINK
    return ChatTexts(before_user, after_user, between, thinks=can_think)


def _render(template: Any, system: str, conversation: list[tuple[str, str]], variables: dict[str, Any]) -> str:
    messages = [{"role": role, "content": content} for role, content in conversation]
    with contextlib.suppress(TemplateError):
        text = str(template.render(messages=[{"role": "system", "content": system}, *messages], **variables))
        if system.strip() in text:
            return text
    # Some templates refuse a system message, or leave it out; its text then opens the first user message.
    messages[0]["content"] = f"{system}\n\n{_USER}"
    return str(template.render(messages=messages, **variables))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, indent=options.get("indent")
    )
    environment.globals["raise_exception"] = _raise
    # A date in the prompt would make every day's prompt another one, and the cached prefixes worthless.
    environment.globals["strftime_now"] = dt.datetime(2025, 1, 1, tzinfo=dt.UTC).strftime
    return environment


def _raise(message: str) -> None:
    raise TemplateError(message)
