"""Chat templates, cut into what an append-only log needs."""

from __future__ import annotations

import sys

import pytest

from sqale_edge.chat_template import CHATML, cut_template
from sqale_edge.errors import ModelError
from sqale_edge.rendering import UnusableTemplateError, cut_in_child

if sys.platform != "win32":
    import resource

SYSTEM = "You answer questions.\nUse {tools} and {{braces}}, <b>tags</b> & 'quotes'."

# Shortened from the templates of the model families they are named after.
QWEN_THINKING = """\
{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and ns.last_query_index == messages|length - 1 %}
        {%- set ns.last_query_index = (messages|length - 1) - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {%- if loop.index0 > ns.last_query_index %}
            {{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + message.content + '<|im_end|>\\n' }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + message.content.lstrip('\\n') + '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}
"""
LLAMA_2 = """\
{%- if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}
{%- else %}{% set rest = messages %}{% set system = false %}{% endif %}
{%- for message in rest %}
{%- if loop.index0 == 0 and system %}
    {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
{%- else %}{% set content = message['content'] %}{% endif %}
{%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}
"""
IGNORES_SYSTEM = """\
{%- for message in messages if message.role != 'system' %}
    {{- message.role + ': ' + message.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}assistant:{% endif %}
"""
DATED = """\
{%- for message in messages %}{{ '<' + message.role + '>' + message.content + '</' + message.role + '>' }}{% endfor %}
{%- if add_generation_prompt %}{{ strftime_now('%d %b %Y') }}<assistant>{% endif %}
"""

# (template, can_think, before the user's text, after it, between the model's text and the user's next)
CUTS = [
    (
        QWEN_THINKING,
        True,
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|im_end|>\n<|im_start|>user\n",
    ),
    (
        QWEN_THINKING,
        False,
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "<|im_end|>\n<|im_start|>user\n",
    ),
    (
        CHATML,
        True,
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "<|im_end|>\n<|im_start|>user\n",
    ),
    (
        CHATML,
        False,
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>\n<|im_start|>user\n",
    ),
    (
        GEMMA,
        False,
        f"<start_of_turn>user\n{SYSTEM}\n\n",
        "<end_of_turn>\n<start_of_turn>model\n",
        "<end_of_turn>\n<start_of_turn>user\n",
    ),
    (LLAMA_2, False, f"[INST] <<SYS>>\n{SYSTEM}\n<</SYS>>\n\n", " [/INST]", " </s>[INST] "),
    (IGNORES_SYSTEM, False, f"user: {SYSTEM}\n\n", "\nassistant:", "\nuser: "),
    (DATED, False, f"<system>{SYSTEM}</system><user>", "</user>01 Jan 2025<assistant>", "</assistant><user>"),
    (DATED, True, f"<system>{SYSTEM}</system><user>", "</user>01 Jan 2025<assistant><think>\n", "</assistant><user>"),
]


@pytest.mark.parametrize(("template", "can_think", "before", "after", "between"), CUTS)
def test_templates_are_cut_around_the_messages(template, can_think, before, after, between):
    """Every family's markup goes where its template puts it, word for word, and a thinking prompt ends in `<think>`."""
    texts = cut_template(template, SYSTEM, can_think=can_think, eos="</s>")
    assert texts.before_user == before
    assert (texts.after_user, texts.between) == (after, between)
    assert texts.thinks == can_think


# Templates that cannot be used, and a word of what is said about it.
BROKEN = [
    ("{% for", "unexpected"),
    ("{{ messages | no_such_filter }}", "no_such_filter"),
    ("{{ raise_exception('not this way') }}", "not this way"),
    ("{{ messages[7].content }}", "no element"),
    ("{{ 1 / 0 }}", "zero"),
    ("{{ messages + 1 }}", ""),
    ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
    ("{% for i in range(10 ** 9) %}{% endfor %}", "Range"),
    ("{% include 'x' %}", ""),
    ("nothing of the conversation", ""),
    ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", ""),
    ("{% if messages[-1].role == 'user' %}{{ messages[-1].content }}{% endif %}", ""),
    ("", ""),
]


@pytest.mark.parametrize(("template", "reason"), BROKEN)
def test_a_template_that_cannot_be_used_is_one_kind_of_error(template, reason):
    """Whatever the template does wrong, the caller sees a ModelError with a fix."""
    with pytest.raises(ModelError, match="chat template cannot be used") as caught:
        cut_template(template, SYSTEM, can_think=False)
    assert reason in str(caught.value)
    assert caught.value.hint


MESSAGES = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endfor %}"
MANY = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
# Programs that would compute for hours, or take all memory.
ENDLESS = {
    "loops": MANY + "{% endfor %}{% endfor %}{% endfor %}",
    "a number": "{{ 2**3000000000 }}",
    "a number of numbers": "{{ 9**(9**9) }}",
    "calls": "{% macro m(n) %}{% for i in range(9) %}{{ m(n - 1) if n }}{% endfor %}{% endmacro %}{{ m(60) }}",
}
HUGE = {
    "text": "{% set x = 'a' * 3000000000 %}",
    "a list": "{% set x = [1] * 300000000 %}",
    "blanks": "{{ 'a' | center(2000000000) }}",
    "a width": "{{ '%2000000000d' | format(1) }}",
    "a method": "{{ '{:2000000000}'.format(1) }}",
    "an indent": "{{ [1] | tojson(indent=2000000000) }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "swaps": "{% set n = namespace(x='aa') %}{% for i in range(9) %}{% set n.x = n.x|replace('a', n.x) %}{% endfor %}",
    "joining": "{% set x = ('a' * 99999).join(['b'] * 99999) %}",
    "a web": "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "words": "{{ lipsum(n=100000000) }}",
    "output": "{% set x = 'a' * 9999999 %}{% for i in range(99999) %}{{ x }}{% endfor %}",
    "more than a prompt": "{{ 'a' * 2000000 }}",
}


@pytest.mark.skipif(
    sys.platform != "linux", reason="other systems limit the time by the clock, a minute; or not memory"
)
@pytest.mark.parametrize("program", [*ENDLESS.values(), *HUGE.values()], ids=[*ENDLESS, *HUGE])
def test_a_template_gets_little_time_and_memory(program):
    """Whatever it computes, it is refused in one line; this process pays neither."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnusableTemplateError) as caught:
        cut_in_child(program + MESSAGES, SYSTEM, {}, cpu_s=1)
    assert "\n" not in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (64 << 10)


@pytest.mark.parametrize("program", ["{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{{ " + "(" * 100_000])
def test_a_template_without_a_bottom_is_an_error(program):
    """Python's own limits, or the end of the child."""
    with pytest.raises(ModelError, match="chat template cannot be used"):
        cut_template(program + MESSAGES, SYSTEM, can_think=False)


def test_a_template_that_takes_too_much_is_refused_as_any_other():
    """A ModelError with a fix."""
    with pytest.raises(ModelError, match="chat template cannot be used: it ") as caught:
        cut_template(HUGE["text"] + MESSAGES, SYSTEM, can_think=False)
    assert caught.value.hint


@pytest.mark.parametrize("executable", [None, "", "/opt/editor/bin/editor", "/opt/python-editor", "/no/such/python3"])
def test_without_a_python_to_start_templates_still_work(monkeypatch, executable):
    """In a program that embeds Python, its own executable is never started; templates run in it."""
    monkeypatch.setattr(sys, "executable", executable)
    assert cut_in_child(MESSAGES, "S", {}) == ["<system>S</system><user>", "</user>", "</assistant><user>"]
    with pytest.raises(UnusableTemplateError, match="no_such_filter"):
        cut_in_child("{{ 1 | no_such_filter }}", "S", {})


def test_the_child_sees_the_same_packages_and_not_the_current_folder(tmp_path, monkeypatch):
    """A file beside the user's data is never imported."""
    (tmp_path / "jinja2.py").write_text("raise SystemExit('wrong jinja2')", encoding="utf-8")
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cut_in_child(MESSAGES, "S", {})[2] == "</assistant><user>"


def test_the_prompt_is_the_same_on_every_day():
    """A template that asks for the date always gets the same one, so that cached prefixes stay valid."""
    assert cut_template(DATED, "", can_think=False) == cut_template(DATED, "", can_think=False)


@pytest.mark.parametrize("system", ["", " \n", "{{ 7 * 7 }}", "{% raise %}", "ü 日本 \u202e"])
def test_the_system_text_is_data(system):
    """It is put in word for word, also where it is empty or looks like a template."""
    texts = cut_template(CHATML, system, can_think=False)
    assert texts.before_user == f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n"
