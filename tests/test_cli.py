"""`sqale-edge ask` and `doctor`, as a person or a program at the terminal meets them.

The models are real GGUF files: one that always submits the same query, and random ones that never find an answer.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import gguf
import numpy as np
import pytest
from checkpoints import byte_alphabet, train_bpe
from terminals import read_terminal

from sqale_edge import Episode
from sqale_edge._version import __version__
from sqale_edge.chat_template import CHATML
from sqale_edge.protocol import BUDGET_KEY, BUDGET_ONE_KEY, LIMIT_KEY, RESULT_KEY, SYSTEM_KEY, USER_KEY

QUESTION = "How many customers are there?"
WAIT_S = 60
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals are those of POSIX")


def write_submitting_gguf(
    path: Path, sql: str, *, name: str = "Submitter", template: str | None = None, is_trained: bool = True
) -> Path:
    """A Llama whose likeliest token is always the same one: a whole `submit_sql` call of `sql`."""
    alphabet = byte_alphabet()
    call = json.dumps({"tool": "submit_sql", "args": {"sql": sql}})
    words, merges = train_bpe()
    special = ["<|im_start|>", "<|im_end|>"]
    tokens = [*words, *special, "".join(alphabet[byte] for byte in call.encode())]
    kinds = [gguf.TokenType.NORMAL] * len(words) + [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL]
    n_embd = 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_context_length(16_384)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(1)
    writer.add_feed_forward_length(n_embd)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_token_types(kinds)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template(template or CHATML)
    for key in (SYSTEM_KEY, USER_KEY, RESULT_KEY, BUDGET_KEY, BUDGET_ONE_KEY, LIMIT_KEY) if is_trained else ():
        writer.add_string(key, "{question}")
    first = np.eye(1, n_embd, dtype=np.float32)  # every token looks the same: the first unit vector
    writer.add_tensor("token_embd.weight", np.repeat(first, len(tokens), axis=0))
    output = np.zeros((len(tokens), n_embd), np.float32)
    output[-1] = 10 * first
    writer.add_tensor("output.weight", output)
    for norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{norm}.weight", np.ones(n_embd, np.float32))
    for matrix in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        writer.add_tensor(f"blk.0.{matrix}.weight", np.zeros((n_embd, n_embd), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def count_model(tmp_path_factory):
    """Submits the number of customers."""
    return write_submitting_gguf(tmp_path_factory.mktemp("m") / "count.gguf", "SELECT count(*) AS n\nFROM customers")


@pytest.fixture
def ask(run, shop, tmp_path):
    """`ask` with a model that submits `sql`."""

    def ask_for(sql, *options, database=shop):
        path = tmp_path / "model.gguf"
        write_submitting_gguf(path, sql)
        return run("ask", database, QUESTION, "-m", path, "--threads", "1", *options)

    return ask_for


def executable() -> str:
    return str(Path(sysconfig.get_path("scripts")) / ("sqale-edge.exe" if sys.platform == "win32" else "sqale-edge"))


def start(*args, **options) -> subprocess.Popen:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
    # Unbuffered, Python takes half a write into a closed pipe for a whole one.
    options.setdefault("env", {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"})
    return subprocess.Popen([executable(), *map(str, args)], **options)


# Formats and streams.


def test_the_answer_is_on_stdout_and_everything_else_on_stderr(shop, count_model):
    """A real process: the table, the SQL on one line below it, exit code 0."""
    process = start("ask", shop, QUESTION, "--model", count_model, "--threads", "1")
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out.decode().split(), err) == (
        0,
        ["n", "4"],
        b"SQL: SELECT count(*) AS n FROM customers\n",
    )


FORMS = {
    "table": "name    city\nAda     London\nBarbara NULL\n",
    "csv": "name,city\nAda,London\nBarbara,\n",
    "markdown": "| name | city |\n| --- | --- |\n| Ada | London |\n| Barbara | NULL |\n",
    "jsonl": '{"name": "Ada", "city": "London"}\n{"name": "Barbara", "city": null}\n',
}
TWO = "SELECT name, city FROM customers WHERE name < 'C' ORDER BY name"


@pytest.mark.parametrize("form", FORMS)
def test_each_format_has_its_form(ask, form):
    """Header and rows; stderr says the SQL."""
    code, out, err = ask(TWO, "--format", form)
    lines = "\n".join(" ".join(line.split()) for line in out.splitlines()) + "\n"
    expected = "\n".join(" ".join(line.split()) for line in FORMS[form].splitlines()) + "\n"
    assert (code, lines, err) == (0, expected, f"SQL: {TWO}\n")


def test_sql_prints_the_query_alone(ask):
    """As the model wrote it, and nothing on stderr."""
    assert ask("SELECT 1\n-- one\n", "-f", "sql") == (0, "SELECT 1\n-- one\n", "")


def test_json_is_the_whole_episode(ask):
    """One document that becomes the `Episode` again; nothing on stderr."""
    code, out, err = ask(TWO, "-f", "json", "--evidence", "a hint", "--seed", "5")
    episode = Episode.from_dict(json.loads(out))
    assert (code, err) == (0, "")
    assert (episode.question, episode.evidence, episode.seed) == (QUESTION, "a hint", 5)
    assert (episode.ended_by, episode.sql, len(episode.rows)) == ("submit_sql", TWO, 2)
    assert episode.model == "Submitter"
    assert episode.usage.n_evaluated > 50


@pytest.mark.parametrize("form", ["table", "csv", "markdown", "jsonl"])
def test_an_empty_result_is_an_answer(ask, form):
    """The header alone, or no line at all; exit code 0."""
    code, out, _ = ask("SELECT name FROM customers WHERE 0", "-f", form)
    assert code == 0
    assert out.replace("| --- |\n", "").strip(" |\n") == ("" if form == "jsonl" else "name")


ODD = (
    "SELECT char(27) || '[2J' AS esc, char(155) || '2J' AS csi, 'a|b' || char(10) || 'c' AS bar, NULL AS missing, "
    "x'00ff' AS blob, 9e999 AS inf, 9223372036854775807 AS big, CAST(x'61ff' AS TEXT) AS latin, "
    "'[bold]x[/bold] :key:' AS markup, 0.1 AS real, '=1+1' AS formula"
)
HARMFUL = set(map(chr, [*range(9), *range(11, 32), *range(127, 160)]))


@pytest.mark.parametrize("form", ["table", "markdown", "json", "jsonl"])
def test_cells_cannot_steer_a_terminal(ask, form):
    """No control character reaches stdout or stderr: each is shown as its escape. Markup stays text."""
    code, out, err = ask(ODD, "-f", form)
    assert code == 0
    assert not HARMFUL & set(out + err)
    assert "[bold]x[/bold] :key:" in out
    assert ("\\u001b[2J" if form.startswith("json") else "\\x1b[2J") in out


def test_json_keeps_odd_cells_exactly(ask):
    """Bytes and infinities have their form, controls and bytes that are no UTF-8 are escaped, nothing is lost."""
    _, out, _ = ask(ODD, "-f", "json")
    (row,) = Episode.from_dict(json.loads(out)).rows
    assert row == (
        "\x1b[2J",
        "\x9b2J",
        "a|b\nc",
        None,
        b"\x00\xff",
        math.inf,
        2**63 - 1,
        "a\udcff",
        "[bold]x[/bold] :key:",
        0.1,
        "=1+1",
    )
    _, line, _ = ask(ODD, "-f", "jsonl")
    assert json.loads(line) == dict(zip(json.loads(out)["columns"], json.loads(out)["rows"][0], strict=True))


def test_csv_is_data(ask):
    """For programs: read back it gives the cells, bytes as hex, NULL as an empty field."""
    _, out, _ = ask(ODD, "-f", "csv")
    header, row = csv.reader(io.StringIO(out))
    assert row[:3] == ["\x1b[2J", "\x9b2J", "a|b\nc"]
    assert dict(zip(header, row, strict=True))["blob"] == "00ff"
    assert (row[3], row[5]) == ("", "inf")


def test_a_program_reads_utf_8_whatever_the_locale(shop, tmp_path):
    """Also in the C locale; bytes that are no UTF-8 are escaped instead of ending the program."""
    sql = "SELECT 'grün 日本' AS a, CAST(x'61ff' AS TEXT) AS b"
    model = write_submitting_gguf(tmp_path / "m.gguf", sql)
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    process = start("ask", shop, QUESTION, "-m", model, "--threads", "1", "-f", "csv", env=environment)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out.decode()) == (0, "a,b\ngrün 日本,a\\udcff\n")
    assert "grün 日本" in err.decode()


def test_columns_of_the_same_name_are_all_kept(ask):
    """JSON lines number them, whatever other names there are."""
    _, out, _ = ask("SELECT 1 AS id, 2 AS id, 3 AS id_2, 4 AS id", "-f", "jsonl")
    assert list(json.loads(out).values()) == [1, 2, 3, 4]


def test_long_cells_are_cut_in_a_table_only(ask):
    """The table says how long the cell is; other formats have all of it."""
    sql = "SELECT substr('" + "x" * 500 + "', 1) AS a"
    _, out, _ = ask(sql)
    assert "x" * 200 + "… (500 characters)" in out
    assert "x" * 201 not in out
    assert "x" * 500 in ask(sql, "-f", "markdown")[1]


def test_more_rows_than_are_shown_are_announced(ask):
    """With the option that shows them."""
    code, out, err = ask("SELECT id FROM orders", "--max-rows", "2", "-f", "csv")
    assert (code, out) == (0, "id\n1\n2\n")
    assert "Only the first 2 rows are shown; see more with --max-rows." in err
    assert "Only" not in ask("SELECT id FROM orders", "--max-rows", "6")[2]


def test_the_sql_on_stderr_can_be_run(ask):
    """One line, in which a comment does not swallow the rest and white space inside literals stays."""
    _, _, err = ask("SELECT 'a  b' -- two blanks\n  AS x,\n 1")
    assert err == "SQL: SELECT 'a  b' /* two blanks */ AS x, 1\n"


def test_the_trace_tells_everything_live(ask):
    """Notes, counts, what the model wrote, calls, results, the end; on stderr, as text."""
    code, out, err = ask("SELECT '[red]' AS \":key:\"", "--trace", "-f", "sql")
    assert (code, out) == (0, "SELECT '[red]' AS \":key:\"\n")
    lines = err.splitlines()
    assert lines[0].startswith("note: CPU only")
    assert any(line.startswith("── turn 1: ") and "new tokens evaluated, 0 cached" in line for line in lines)
    assert '→ submit_sql {"sql": "SELECT \'[red]\' AS \\":key:\\""}' in lines
    assert ":key:\n[red]\n" in err
    assert any(line.startswith("tokens: ") for line in lines)
    assert any(
        line.startswith("── submit_sql after 1 turns") and line.endswith("training prompt, seed 0") for line in lines
    )


def test_a_vote_says_how_it_went(ask):
    """The answer as always; stderr says how many agree, and with --trace each candidate is shown as a whole."""
    code, out, err = ask(TWO, "--votes", "5", "--format", "csv")
    assert (code, out) == (0, FORMS["csv"])
    assert err == f"Votes: 3 of 3 agree, 2 more could not change that.\nSQL: {TWO}\n"
    _, _, err = ask(TWO, "--votes", "3", "--trace", "--seed", "7")
    shown = [line for line in err.splitlines() if "══" in line or "submit_sql after" in line]
    assert [line.split(";")[0] for line in shown] == [
        "══ candidate 1 of 3",
        "── submit_sql after 1 turns",
        "══ candidate 2 of 3",
        "── submit_sql after 1 turns",
    ]
    assert [line.split("seed ")[1] for line in shown[1::2]] == ["7", "8"]


def test_a_vote_as_json_is_one_document(ask):
    """The winner's episode, with the votes beside it."""
    code, out, err = ask(TWO, "--votes", "2", "-f", "json")
    document = json.loads(out)
    votes = document.pop("votes")
    assert (code, err) == (0, "Votes: 2 of 2 agree.\n")
    assert Episode.from_dict(document).sql == TWO
    assert (votes["n_votes"], votes["n_agree"], len(votes["candidates"])) == (2, 2, 2)


def test_the_trace_cannot_steer_a_terminal(ask):
    """Neither can results and calls in it."""
    _, _, err = ask(ODD.replace("'a|b'", "'\x1b[31m'"), "--trace")
    assert not HARMFUL & set(err)


def test_without_a_terminal_there_is_no_progress_line(ask):
    """A log file of stderr stays readable."""
    assert ask("SELECT 1")[2] == "SQL: SELECT 1\n"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_an_answer_has_no_colours_whatever_asks_for_them(ask, monkeypatch, form, name):
    """Where stdout is no terminal the variables of other programs change nothing: it may be a file."""
    sql = f"SELECT '{'x' * 150}' AS a, '{'y' * 150}' AS b"
    plain = ask(sql, "--format", form)
    monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert ask(sql, "--format", form) == plain
    assert "x" * 150 in plain[1]


# Exit codes.


@pytest.mark.parametrize("form", ["table", "csv", "sql", "jsonl", "markdown"])
def test_no_answer_is_exit_code_3(ask, form):
    """Nothing on stdout, one line on stderr with what to do."""
    code, out, err = ask("SELECT nonsense", "-f", form)
    assert (code, out) == (3, "")
    assert err == ("No answer: the model found no query that runs. See why with --trace, or try another --seed.\n")


def test_no_answer_as_json_is_still_one_document(ask):
    """A program reads how it ended."""
    code, out, _ = ask("SELECT nonsense", "-f", "json")
    assert (code, json.loads(out)["ended_by"], json.loads(out)["sql"]) == (3, "no_answer", None)


def test_a_timeout_is_exit_code_3(run, shop, qwen_gguf):
    """The line names the limit."""
    code, out, err = run("ask", shop, QUESTION, "-m", qwen_gguf, "--threads", "1", "--timeout", "0.3")
    assert (code, out) == (3, "")
    assert "No answer: the time limit of 0.3 s was reached." in err


def wrong_files(folder: Path) -> dict[str, Path]:
    (folder / "empty.gguf").touch()
    (folder / "text.gguf").write_text("not a model", encoding="utf-8")
    (folder / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    (folder / "empty.sqlite").touch()
    (folder / "text.sqlite").write_text("not a database, but long enough to be one" * 30, encoding="utf-8")
    (folder / "folder.sqlite").mkdir()
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["missing.gguf", "empty.gguf", "text.gguf", "cut.gguf", "."])
def test_a_model_that_cannot_be_loaded_is_one_clear_line(run, shop, tmp_path, name):
    """Exit code 1, nothing on stdout; the line names the file and what to do."""
    wrong_files(tmp_path)
    code, out, err = run("ask", shop, QUESTION, "-m", tmp_path / name)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: ")
    assert str(tmp_path / name) in err
    assert " Fix: " in err


@pytest.mark.parametrize("name", ["missing.sqlite", "text.sqlite", "folder.sqlite", "missing.csv", "shop.sqlite/x"])
def test_a_database_that_cannot_be_opened_is_one_clear_line(run, shop, tmp_path, count_model, name):
    """Before the model is loaded: exit code 1, nothing on stdout, the file is named."""
    wrong_files(tmp_path)
    code, out, err = run("ask", tmp_path / name, QUESTION, "-m", count_model)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: ")
    assert name.rpartition("/")[2] in err


def test_an_error_message_cannot_steer_a_terminal(run, shop, tmp_path):
    """Names of files and texts of models are shown with their controls escaped, on one line."""
    model = write_submitting_gguf(
        tmp_path / "m.gguf", "SELECT 1", template="{{ raise_exception('\x1b[31m red\nand more') }}"
    )
    code, out, err = run("ask", shop, QUESTION, "-m", model)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "\\x1b[31m red and more" in err
    code, out, err = run("ask", tmp_path / "a\x1b[2Jb\nc.sqlite", QUESTION, "-m", model)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert not HARMFUL & set(err)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["ask"], "Missing argument"),
        (["ask", "shop.sqlite"], "Missing argument"),
        (["ask", "shop.sqlite", "q"], "--model"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--format", "xml"], "xml"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--seed", "-1"], "--seed"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--seed", str(2**64)], "--seed"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--timeout", "0"], "--timeout"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--timeout", "nan"], "'nan' is not a number of seconds"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--timeout", "inf"], "inf is not in the range"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--max-rows", "0"], "--max-rows"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--threads", "0"], "--threads"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--gpu-layers", "all"], "--gpu-layers"),
        (["ask", "shop.sqlite", "q", "-m", "m", "--nonsense"], "--nonsense"),
        (["nonsense"], "nonsense"),
        (["doctor", "--nonsense"], "--nonsense"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, args, word, monkeypatch):
    """Nothing on stdout; stderr names the argument."""
    monkeypatch.delenv("SQALE_EDGE_MODEL", raising=False)
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert word in err


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--gpu-layers", "-1", "gpu_layers is -1"),
        ("--gpu-layers", "7", "cannot offload"),
    ],
)
def test_a_setting_out_of_range_is_one_clear_line(ask, option, value, word):
    """What the option's own type lets through, the settings refuse."""
    code, out, err = ask("SELECT 1", option, value)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert word in err


def test_a_wrong_variable_is_one_clear_line(run, shop, count_model, monkeypatch):
    """With its name, and how to get rid of it."""
    monkeypatch.setenv("SQALE_EDGE_TOOL_TURNS", "six")
    code, out, err = run("ask", shop, QUESTION, "-m", count_model)
    assert (code, out) == (1, "")
    assert err == (
        "Error: SQALE_EDGE_TOOL_TURNS is 'six', which cannot be read. Fix: unset SQALE_EDGE_TOOL_TURNS or correct it.\n"
    )


def test_the_model_can_come_from_the_environment(run, shop, count_model, monkeypatch):
    """`SQALE_EDGE_MODEL` stands in for `--model`."""
    monkeypatch.setenv("SQALE_EDGE_MODEL", str(count_model))
    assert run("ask", shop, QUESTION, "--threads", "1", "-f", "csv")[:2] == (0, "n\n4\n")


def test_several_files_become_one_database(run, tmp_path, count_model):
    """CSV and JSON lines files are tables of it; the last argument is the question."""
    (tmp_path / "customers.csv").write_text("name\nAda\nGrace\n", encoding="utf-8")
    (tmp_path / "orders.jsonl").write_text('{"id": 1}\n', encoding="utf-8")
    files = [tmp_path / "customers.csv", tmp_path / "orders.jsonl"]
    assert run("ask", *files, QUESTION, "-m", count_model, "--threads", "1", "-f", "csv")[:2] == (0, "n\n2\n")


def test_the_version_is_told(run):
    """One place, one version."""
    assert run("--version") == (0, f"sqale-edge, version {__version__}\n", "")


@pytest.mark.parametrize("command", [[], ["ask"], ["doctor"]])
def test_help_has_an_example(run, command):
    """On stdout, exit code 0."""
    code, out, err = run(*command, "--help")
    assert (code, err) == (0, "")
    assert not command or f"sqale-edge {command[0]}" in out.partition("Example")[2]


# Pipes, terminals, Ctrl-C.


def test_what_a_person_should_know_is_said_without_a_trace(run, shop, tmp_path):
    """Notes about the model and the files are on stderr in every format; stdout is the answer alone."""
    model = write_submitting_gguf(tmp_path / "m.gguf", "SELECT 1 AS one", is_trained=False)
    for form in ("table", "csv", "sql"):
        code, out, err = run("ask", shop, QUESTION, "-m", model, "--threads", "1", "-f", form)
        assert (code, "Note" in out) == (0, False)
        assert sum("no training prompt" in line for line in err.splitlines()) == 1


def test_a_time_limit_says_how_to_allow_more(run, shop, qwen_gguf):
    """And not to look at a trace."""
    code, out, err = run("ask", shop, QUESTION, "-m", qwen_gguf, "--threads", "1", "--timeout", "0.05")
    assert (code, out) == (3, "")
    assert err.splitlines()[-1] == "No answer: the time limit of 0.05 s was reached. Allow more with --timeout."


@pytest.mark.parametrize("question", ["", "  "])
def test_an_empty_question_is_wrong_usage(run, shop, count_model, question):
    """It is refused before a model is loaded."""
    code, out, err = run("ask", shop, question, "-m", count_model)
    assert (code, out) == (2, "")
    assert "empty" in err


def test_a_variable_out_of_range_is_named(run, shop, count_model, monkeypatch):
    """The one line says which variable to correct."""
    monkeypatch.setenv("SQALE_EDGE_N_CTX", "3")
    code, out, err = run("ask", shop, QUESTION, "-m", count_model)
    assert (code, out) == (1, "")
    assert err == "Error: n_ctx is 3, but must be from 64 to 1048576. Fix: unset SQALE_EDGE_N_CTX or correct it.\n"


def test_a_folder_as_model_says_how_to_convert_it(run, shop, tmp_path):
    """A checkpoint's folder is what people try first."""
    code, out, err = run("ask", shop, QUESTION, "-m", tmp_path)
    assert (code, out) == (1, "")
    assert "is a folder" in err
    assert "sqale-edge convert" in err


@needs_posix
def test_a_reader_that_goes_away_is_no_error_message(shop, tmp_path):
    """`ask ... | head -1`: no traceback, and it ends well: it was the reader who had seen enough."""
    sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000) SELECT i, i, i FROM n"
    model = write_submitting_gguf(tmp_path / "m.gguf", sql)
    options = ["-m", model, "--threads", "1", "-f", "csv", "--max-rows", "200000"]
    process = start("ask", shop, QUESTION, *options)
    assert process.stdout.readline() == b"i,i,i\n"
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(WAIT_S) == 0
    assert err == b""


@needs_posix
@pytest.mark.parametrize("form", ["csv", "sql", "table", "json", "jsonl", "markdown"])
def test_no_format_can_steer_a_terminal(shop, tmp_path, form):
    """Where stdout is a terminal, also CSV and SQL come without control characters."""
    import pty

    model = write_submitting_gguf(
        tmp_path / "m.gguf", "SELECT char(27) || '[2J' AS a, '\x1b]0;b\x07' AS b, '\x9b' AS c"
    )
    master, slave = pty.openpty()
    process = start("ask", shop, QUESTION, "-m", model, "--threads", "1", "-f", form, stdout=slave)
    os.close(slave)
    shown = read_terminal(master).replace("\r\n", "\n")
    err = process.communicate(timeout=WAIT_S)[1].decode()
    assert process.returncode == 0
    assert "\\x1b" in shown or "\\u001b" in shown
    # A heading is bold: that escape is ours.
    assert not HARMFUL & set(shown.replace("\x1b[1m", "").replace("\x1b[0m", "") + err)


@needs_posix
def test_progress_is_one_line_that_goes_away(shop, count_model):
    """On a terminal stderr says what is going on; what remains at the end is the SQL."""
    import pty

    master, slave = pty.openpty()
    process = start("ask", shop, QUESTION, "-m", count_model, "--threads", "1", stderr=slave)
    os.close(slave)
    shown = read_terminal(master)
    out = process.communicate(timeout=WAIT_S)[0]
    assert (process.returncode, out.split()) == (0, [b"n", b"4"])
    assert "loading the model" in shown
    assert shown.rstrip().endswith("SQL: SELECT count(*) AS n FROM customers")


@pytest.fixture
def interruptible():
    """Children can be interrupted even where these tests run in the background, with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_at(word: bytes, *args) -> tuple[int, bytes, bytes]:
    """Start a process, interrupt it when `word` is on stderr, and see that nothing of it is left."""
    process = start(*args, start_new_session=True)
    err = b""
    while word not in err:
        chunk = os.read(process.stderr.fileno(), 65536)
        assert chunk, err
        err += chunk
    process.send_signal(signal.SIGINT)
    out, rest = process.communicate(timeout=WAIT_S)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    return process.returncode, out, err + rest


COMMANDS = {
    "the answer": ["ask", "SHOP", QUESTION, "-m", "MODEL", "--threads", "1"],
    "a trace": ["ask", "SHOP", QUESTION, "-m", "MODEL", "--threads", "1", "--trace"],
    "json": ["ask", "SHOP", QUESTION, "-m", "MODEL", "--threads", "1", "-f", "json"],
    "doctor": ["doctor"],
    "help": ["--help"],
    "a command's help": ["ask", "--help"],
    "the version": ["--version"],
}
# What stdout is: a pipe whose reader is gone before anything is written, no open file, a full disk.
STDOUTS = {
    "no reader": ("", 0, b""),
    "closed": ("1>&-", 1, b"stdout is closed"),
    "full": ("1>/dev/full", 1, b"No space"),
}


def run_with(redirection: str, shop, model, *args, stdout=subprocess.PIPE):
    """The command with a shell's redirections: exit code, stdout, stderr."""
    command = [str({"SHOP": shop, "MODEL": model}.get(arg, arg)) for arg in args]
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", executable(), *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"},
    )
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err


@pytest.mark.skipif(sys.platform != "linux", reason="a full disk is simulated by Linux's /dev/full")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("stdout", STDOUTS)
def test_an_answer_that_cannot_be_written_is_one_clear_line(shop, count_model, command, stdout):
    """No traceback, no second complaint at exit; a reader that has gone is no error."""
    redirection, expected, words = STDOUTS[stdout]
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        code, _, err = run_with(redirection, shop, count_model, *COMMANDS[command], stdout=pipe)
    assert code == expected
    errors = [line for line in err.splitlines() if line.startswith(b"Error")]
    assert len(errors) == bool(words)
    assert words in b"".join(errors)
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    assert command == "a trace" or len(err.splitlines()) == len(errors)


@pytest.mark.skipif(sys.platform != "linux", reason="a full disk is simulated by Linux's /dev/full")
@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_answer_does_not_need_stderr(shop, count_model, command, redirection):
    """A full disk behind the log costs the log alone."""
    code, out, _ = run_with("", shop, count_model, *COMMANDS[command])
    assert (code, bool(out)) == (0, True)
    again, without, err = run_with(redirection, shop, count_model, *COMMANDS[command])
    assert (again, err) == (0, b"")
    assert len(without) > 0
    if command in ("the answer", "a trace"):
        assert without == out


@pytest.mark.skipif(sys.platform != "linux", reason="a full disk is simulated by Linux's /dev/full")
@pytest.mark.parametrize(("redirection", "expected"), [("2>/dev/full", 2), ("2>&-", 2)])
def test_wrong_usage_does_not_need_stderr(shop, count_model, redirection, expected):
    """The exit code says it, too."""
    assert run_with(redirection, shop, count_model, "ask", "--nonsense") == (expected, b"", b"")


# (what stands on stderr when it is interrupted, the question)
MOMENTS = {
    "before the prompt is evaluated": (b"note: ", "why? " * 1300),
    "while it decodes": (b"new tokens evaluated", QUESTION),
}


@needs_posix
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_cancels_cleanly(shop, qwen_gguf, interruptible, moment):
    """Exit code 130, one last line, nothing on stdout, no process left, the database as it was."""
    word, question = MOMENTS[moment]
    before = shop.read_bytes()
    code, out, err = interrupt_at(word, "ask", shop, question, "-m", qwen_gguf, "--threads", "1", "--trace")
    assert (code, out) == (130, b"")
    assert err.decode().endswith("\nCancelled.\n")
    assert b"Traceback" not in err
    assert "── cancelled after" in err.decode()
    assert shop.read_bytes() == before
    assert list(shop.parent.iterdir()) == [shop]


@needs_posix
def test_ctrl_c_without_a_trace_is_one_line(shop, qwen_gguf, interruptible):
    """Whenever it comes after the start: while libraries or the model are loaded, or later."""
    process = start("-v", "ask", shop, QUESTION, "-m", qwen_gguf, "--threads", "1")
    assert process.stderr.read(1)  # llama.cpp's log: the model is being loaded
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, b"")
    assert err.endswith(b"\nCancelled.\n")
    assert b"Traceback" not in err


@needs_posix
@pytest.mark.parametrize("module", ["sqale_edge", "sqale_edge.errors", "click", "sqale_edge.cli", "rich"])
def test_ctrl_c_while_the_program_is_imported_is_one_line(shop, count_model, interruptible, module):
    """Whatever is being imported then."""
    script = f"""if True:
        import signal, sys
        class Interrupt:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    signal.raise_signal(signal.SIGINT)
        sys.meta_path.insert(0, Interrupt())
        from sqale_edge_command import main
        main()"""
    command = [sys.executable, "-P", "-c", script, "ask", shop, QUESTION, "-m", count_model]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"Cancelled.\n")


@needs_posix
def test_ctrl_c_stops_a_query_too(shop, tmp_path, interruptible):
    """SQLite is stopped in the middle of a statement."""
    slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    model = write_submitting_gguf(tmp_path / "m.gguf", slow)
    options = ["-m", model, "--threads", "1", "--trace"]
    code, out, err = interrupt_at("→ submit_sql".encode(), "ask", shop, QUESTION, *options)
    assert (code, out) == (130, b"")
    assert err.endswith(b"\nCancelled.\n")
    assert b"took longer" not in err


@needs_posix
def test_a_cancelled_question_as_json_is_one_document(shop, qwen_gguf, interruptible):
    """A program that interrupts reads how far it came."""
    options = ["-m", qwen_gguf, "--threads", "1", "--trace", "-f", "json"]
    code, out, _ = interrupt_at(b"new tokens evaluated", "ask", shop, QUESTION, *options)
    assert (code, json.loads(out)["ended_by"]) == (130, "cancelled")


@needs_posix
def test_ctrl_c_that_is_to_be_ignored_is_ignored(shop, count_model):
    """As for a job in the background: whoever started the program decides."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start("ask", shop, QUESTION, "-m", count_model, "--threads", "1", "--trace")
    finally:
        signal.signal(signal.SIGINT, before)
    assert process.stderr.read(5) == b"note:"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out.split()) == (0, [b"n", b"4"])


# doctor.


def test_doctor_describes_the_build_and_the_machine(run):
    """As text for people: sections with a line for each value."""
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert out.startswith("build\n")
    assert f"sqale_edge                 {__version__}" in out
    assert "gpu_layers_auto" in out
    assert "model" not in out.splitlines()


def test_doctor_estimates_a_models_memory(run, qwen_gguf):
    """As one JSON document: what the file is, what it needs part by part, whether that fits."""
    code, out, err = run("doctor", "--model", qwen_gguf, "--json")
    report = json.loads(out)
    model = report["model"]
    assert (code, err) == (0, "")
    assert (model["architecture"], model["thinks"], model["prompt"], model["fits"]) == ("qwen35", True, "own", True)
    assert model["n_ctx"] == 16_384
    parts = ("weights", "kv_cache", "recurrent_state", "compute", "program")
    assert model["total_bytes"] == sum(model[f"{part}_bytes"] for part in parts)
    assert report["machine"]["threads_decode"] >= 1
    assert report["build"]["sqale_edge"] == __version__


def test_doctor_counts_with_the_environments_context(run, qwen_gguf, monkeypatch):
    """Half the context, half the KV cache."""
    whole = json.loads(run("doctor", "-m", qwen_gguf, "--json")[1])["model"]["kv_cache_bytes"]
    monkeypatch.setenv("SQALE_EDGE_N_CTX", "8192")
    assert json.loads(run("doctor", "-m", qwen_gguf, "--json")[1])["model"]["kv_cache_bytes"] * 2 == whole


@pytest.mark.parametrize("name", ["missing.gguf", "empty.gguf", "text.gguf", "cut.gguf", "."])
def test_doctor_says_in_one_line_what_is_wrong_with_a_file(run, tmp_path, name):
    """Exit code 1, nothing on stdout."""
    wrong_files(tmp_path)
    code, out, err = run("doctor", "-m", tmp_path / name)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert str(tmp_path / name) in err


def test_a_models_name_cannot_steer_a_terminal(run, shop, tmp_path):
    """What a file says about itself is shown with its controls escaped."""
    model = write_submitting_gguf(tmp_path / "m.gguf", "SELECT 1", name="a\x1b[2Jb\x9bc")
    code, out, _ = run("doctor", "-m", model)
    assert code == 0
    assert "a\\x1b[2Jb\\x9bc" in out
    assert not HARMFUL & set(out)
    assert json.loads(run("doctor", "-m", model, "--json")[1])["model"]["name"] == "a\x1b[2Jb\x9bc"
