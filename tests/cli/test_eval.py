"""`sqale-edge eval`, as a person or a program at the terminal meets it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from sqale_edge.benchmarks import ResultsFile, Run, ask_questions, read_questions, read_results, sample
from sqale_edge.benchmarks.results_file import digest_questions

from sqale_edge import Agent
from sqale_edge.cli import main
from sqale_edge.testing import ScriptedEngine

WAIT_S = 60
GOLDS = {
    "1": "SELECT name FROM customers ORDER BY name",
    "2": "SELECT count(*) FROM orders",
    "3": "SELECT name FROM customers LIMIT 1",
    "4": "SELECT city FROM customers",
}
FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_predictions(path, sql):
    return write_lines(path, [{"id": id_, "sql": one} for id_, one in sql.items()])


@pytest.fixture
def questions(tmp_path, shop):
    """Four questions about the shop, of which the third has a gold that is not deterministic."""
    records = [{"id": id_, "db": shop.name, "question": "?", "sql": sql} for id_, sql in GOLDS.items()]
    records[1]["difficulty"] = "[bold]hard\x1b[31m"
    return write_lines(tmp_path / "questions.jsonl", records)


@pytest.fixture
def run(capsys):
    """The command in this process: exit code, stdout, stderr."""

    def run_main(*args):
        with pytest.raises(SystemExit) as caught:
            main(["eval", *map(str, args)])
        return (caught.value.code, *capsys.readouterr())

    return run_main


def test_gold_scores_all_that_can_be_scored(run, questions, tmp_path):
    """One JSON document: counts, both rules with their intervals, and every question."""
    path = write_predictions(tmp_path / "p.jsonl", GOLDS)
    code, out, err = run(questions, "--predictions", path, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert (document["n"], document["n_scorable"]) == (4, 3)
    assert document["gold"] == {"scorable": 3, "not_deterministic": 1}
    assert document["bird"]["accuracy"] == document["strict"]["accuracy"] == 1.0
    assert document["bird"]["interval"] == [pytest.approx(0.4385, abs=1e-4), 1.0]
    assert (document["form"], document["file_form"], document["n_unknown"]) == ("jsonl", "jsonl", 0)
    assert document["settings"] == {"timeout_s": 5.0, "sample": None, "limit": None, "seed": None}
    assert [one["id"] for one in document["outcomes"]] == list("1234")
    assert document["outcomes"][2]["detail"] == "it gives other rows when it runs again"


def test_both_rules_side_by_side(run, questions, tmp_path):
    """The names in another order are right by BIRD's rule only."""
    sql = GOLDS | {"1": "SELECT name FROM customers ORDER BY name DESC", "9": "SELECT 1"}
    del sql["4"]
    document = json.loads(run(questions, "-p", write_predictions(tmp_path / "p", sql), "--json", "--rule", "spider")[1])
    assert [document[rule]["n_right"] for rule in ("bird", "strict", "spider")] == [2, 1, 1]
    assert document["predictions"] == {"ran": 2, "missing": 1}
    assert document["n_unknown"] == 1


def test_a_person_sees_a_table(run, questions, tmp_path):
    """With what could not be scored and why; nothing of the files can steer the terminal or rich."""
    code, out, err = run(questions, "-p", write_predictions(tmp_path / "p.jsonl", {"1": GOLDS["1"], "9": "SELECT 1"}))
    assert (code, err) == (0, "")
    assert "3 of 4 questions can be scored" in out
    assert "not: 1 not deterministic" in out
    assert "1 ran, 2 missing" in out
    assert "1 predictions are for no question here" in out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith(("bird", "strict"))] == [
        ["bird", "1", "33.3%"],
        ["strict", "1", "33.3%"],
    ]
    assert "\x1b" not in out


def test_groups_are_shown_as_they_are_called(run, questions, tmp_path):
    """A difficulty with markup in it is text."""
    records = [json.loads(line) for line in questions.read_text().splitlines()]
    records[0]["difficulty"] = "easy"
    write_lines(questions, records)
    out = run(questions, "-p", write_predictions(tmp_path / "p.jsonl", GOLDS))[1]
    assert "[bold]hard\\x1b[31m" in out
    assert "\x1b" not in out


def test_two_files_are_compared(run, questions, tmp_path):
    """Both reports, and McNemar's test for each rule."""
    a = write_predictions(tmp_path / "a.jsonl", GOLDS)
    b = write_predictions(tmp_path / "b.jsonl", dict.fromkeys(GOLDS, "SELECT 6"))
    document = json.loads(run(questions, "--compare", a, b, "--json")[1])
    assert (document["a"]["strict"]["accuracy"], document["b"]["strict"]["n_right"]) == (1.0, 1)
    assert document["mcnemar"]["strict"] == {"both": 1, "only_a": 2, "only_b": 0, "neither": 0, "p": 0.5}
    out = run(questions, "--compare", a, b)[1]
    assert "McNemar" in out
    assert out.count("of 4 questions can be scored") == 2


def test_a_sample_is_part_of_the_whole(run, questions, tmp_path):
    """The predictions are those of all questions."""
    path = write_predictions(tmp_path / "p.jsonl", GOLDS)
    seeds = [1, 1, *range(2, 8)]
    documents = [json.loads(run(questions, "-p", path, "--sample", 2, "--seed", seed, "--json")[1]) for seed in seeds]
    ids = [tuple(one["id"] for one in document["outcomes"]) for document in documents]
    assert documents[0]["n"] == 2
    assert documents[0]["settings"] == {"timeout_s": 5.0, "sample": 2, "limit": None, "seed": 1}
    assert ids[0] == ids[1]
    assert len(set(ids)) > 1


def test_a_model_is_asked_and_scored(run, questions, qwen_gguf, tmp_path, monkeypatch):
    """Once: a second start goes on from the results file, which is judged like any predictions."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"TOOL_TURNS": 3, "TURN_TOKENS": 90, "CALL_TOKENS": 60, "FINAL_TOKENS": 90}.items():
        monkeypatch.setenv(f"SQALE_EDGE_{name}", str(value))
    command = (questions, "--model", qwen_gguf, "--threads", 1, "--json")
    code, out, err = run(*command, "--limit", 2)
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["file"] == "questions.qwen.jsonl"
    assert (document["n"], document["file_form"]) == (2, "results")
    assert (document["run"]["prompt"], document["run"]["seed"]) == ("own", 0)
    assert document["run"]["n_parameters"] > 1000
    first = (tmp_path / "questions.qwen.jsonl").read_bytes()
    code, out, err = run(*command)
    second = (tmp_path / "questions.qwen.jsonl").read_bytes()
    assert (code, err) == (0, "")
    assert json.loads(out)["n"] == 4
    assert second.startswith(first)
    assert second.count(b"\n") == 5
    again = json.loads(run(questions, "--predictions", "questions.qwen.jsonl", "--json")[1])
    assert again["outcomes"] == json.loads(out)["outcomes"]
    code, _, err = run(*command, "--seed", 1)
    assert (code, len(err.splitlines())) == (1, 1)
    assert "is of another run: seed 0 there, 1 now" in err


def test_a_report_of_predictions(run, questions, tmp_path):
    """A folder with three files; the last line on stderr says where, and stdout is what it was."""
    path = write_predictions(tmp_path / "p.jsonl", GOLDS | {"2": "SELECT 5"})
    plain = run(questions, "-p", path, "--json")[1]
    code, out, err = run(questions, "-p", path, "--json", "--report", tmp_path / "report")
    assert (code, out) == (0, plain)
    assert err == f"The report is {str(tmp_path / 'report' / 'report.html')!r}.\n"
    assert json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8")) == json.loads(out)
    assert json.loads(out)["failures"] == {"tables": 1}
    assert "analysis" not in json.loads(out)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "SELECT 5" in page
    assert "66.7" in page
    code, out, err = run(questions, "-p", path, "--report", tmp_path / "report")
    assert (code, out) == (1, "")
    assert err.endswith("already. Fix: choose another name, or overwrite it with --overwrite.\n")
    code, out, _ = run(questions, "--compare", path, path, "--report", tmp_path / "report", "--overwrite")
    assert code == 0
    assert "McNemar" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "wrong: 1 tables" in out


def test_the_report_of_a_model(run, questions, tmp_path):
    """Its analyses are in the JSON document, a few of them before a person's eyes; the folder is looked at first."""
    output = tmp_path / "r.jsonl"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("mine")
    command = (questions, "--model", "demo", "--threads", 1, "--limit", 2, "--output", output)
    code, _, err = run(*command, "--report", tmp_path / "mine")
    assert (code, output.exists()) == (1, False)
    assert "holds other files, such as 'diary.txt'" in err
    code, out, err = run(*command, "--report", tmp_path / "report")
    assert (code, err.splitlines()[-1][:14]) == (0, "The report is ")
    document = json.loads((tmp_path / "report" / "report.json").read_text(encoding="utf-8"))
    analysis = document["analysis"]
    assert (analysis["n_asked"], analysis["n_episodes"]) == (2, 2)
    tflop = (
        2
        * document["run"]["n_parameters"]
        * sum(analysis["tokens"][name]["total"] for name in ("evaluated", "decoded"))
    )
    assert analysis["tflop"]["total"] == pytest.approx(tflop / 1e12)
    assert f"gold tables opened {analysis['gold_tables']['share']:.1%} of 2, gold values seen - of 0" in out
    assert f"{analysis['turns']['mean']:.1f} turns" in out
    assert "ended by: " in out
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert document["run"]["model_sha256"] in page
    again = json.loads(run(questions, "-p", output, "--limit", 2, "--json")[1])
    assert again["analysis"] == analysis


BIRD = {"db_id": "shop", "evidence": "", "question": "?"}
EHRSQL = {"db_id": "shop", "question": "?"}
# What a benchmark's own file looks like, with the golds of above in it.
OWN_FORMS = {
    "bird": json.dumps([BIRD | {"question_id": int(id_), "SQL": sql} for id_, sql in GOLDS.items()]),
    "spider": json.dumps([{"db_id": "shop", "question": "?", "query": sql} for sql in GOLDS.values()]),
    "ehrsql": json.dumps(
        [EHRSQL | {"id": id_, "query": sql, "is_impossible": id_ == "4"} for id_, sql in GOLDS.items()]
    ),
    "jsonl": "".join(
        json.dumps({"id": id_, "db": "shop.sqlite", "question": "?", "sql": sql}) + "\n" for id_, sql in GOLDS.items()
    ),
}
NOT_ASKED = "not asked"


def write_results(path, file, sql):
    """A results file as a model's run leaves it: the real agent, with scripted decisions."""
    questions = read_questions(file)
    run = Run("m", "ab" * 32, 7, "own", {}, 0, digest_questions(questions), "0.1", "3.45")
    with ResultsFile(path, run) as results:
        for question, one in zip(questions, sql, strict=True):
            if one != NOT_ASKED:
                call = {"tool": "submit_sql", "args": {"sql": one}} if one else {"tool": "list_tables", "args": {}}
                list(ask_questions(Agent(ScriptedEngine([json.dumps(call)] * 7)), [question], results))
    asked = [one for one in sql if one != NOT_ASKED]
    assert [answer.sql for answer in read_results(path, questions).answers.values()] == asked
    return path


@pytest.mark.parametrize("form", OWN_FORMS)
def test_a_models_answers_become_a_submission(run, shop, tmp_path, form):
    """In the benchmark's own form; judged again they have the same outcomes."""
    file = tmp_path / "dev.json"
    file.write_text(OWN_FORMS[form], encoding="utf-8")
    sql = ["SELECT name -- all\nFROM\tcustomers ORDER BY 1;", "SELECT ';', '''', \"id\" FROM orders", None, None]
    results = write_results(tmp_path / "r.jsonl", file, sql)
    written = tmp_path / "submission"
    code, out, err = run(file, "-p", results, "--write-predictions", written, "--json")
    assert (code, err) == (0, f"The predictions are in {str(written)!r}, in the form {form}.\n")
    again = json.loads(run(file, "-p", written, "--json")[1])
    assert again["file_form"] == form
    assert again["outcomes"] == json.loads(out)["outcomes"]
    assert [one["prediction"] for one in again["outcomes"]] == ["ran", "ran", "no_sql", "no_sql"]
    assert again["outcomes"][0]["right"]["strict"] is True


def test_a_submission_is_written_before_it_is_judged(run, questions, tmp_path):
    """Also by a run with a model; a name that is taken stops it before anything is asked."""
    written, output = tmp_path / "submission.jsonl", tmp_path / "r.jsonl"
    command = (questions, "-m", "demo", "--threads", 1, "--limit", 1, "-o", output, "--write-predictions", written)
    code, _, err = run(*command)
    assert code == 0
    assert "in the form jsonl; 3 of 4 questions were not asked." in err
    assert [json.loads(line)["id"] for line in written.read_text().splitlines()] == ["1"]
    output.unlink()
    code, out, err = run(*command)
    assert (code, out) == (1, "")
    assert err.endswith("exists already. Fix: choose another name, or overwrite it with --overwrite.\n")
    assert not output.exists()
    assert run(*command, "--overwrite", "--predictions-form", "ehrsql")[0] == 0
    assert list(json.loads(written.read_text())) == ["1"]


def test_a_file_in_use_is_not_written_over(run, questions, tmp_path):
    """Whatever --overwrite says."""
    results = write_results(tmp_path / "r.jsonl", questions, ["SELECT 1"] * 4)
    before = questions.read_bytes(), results.read_bytes()
    for target in (questions, results, tmp_path / "none" / ".." / "r.jsonl"):
        code, out, err = run(questions, "-p", results, "--write-predictions", target, "--overwrite")
        assert (code, out) == (2, "")
        assert "--write-predictions names a file that is needed" in err
    assert (questions.read_bytes(), results.read_bytes()) == before
    code, _, err = run(questions, "-p", write_predictions(tmp_path / "p", GOLDS), "--write-predictions", tmp_path / "w")
    assert code == 2
    assert "give --model M, or its results file" in err
    assert not (tmp_path / "w").exists()


def test_a_run_and_a_file_are_compared(run, questions, tmp_path):
    """On the questions that both have; one that was not asked is wrong in its own report only."""
    a = write_results(tmp_path / "a.jsonl", questions, [GOLDS["1"], "SELECT 1", NOT_ASKED, NOT_ASKED])
    b = write_predictions(tmp_path / "b.jsonl", {"1": "SELECT 1", "2": None, "4": GOLDS["4"]})
    code, out, err = run(questions, "--compare", a, b, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["pairs"] == {"n": 2, "only_in_a": 0, "only_in_b": 1, "in_neither": 0}
    assert document["mcnemar"]["strict"] == {"both": 0, "only_a": 1, "only_b": 0, "neither": 1, "p": 1.0}
    assert (document["a"]["file_form"], document["b"]["file_form"]) == ("results", "jsonl")
    assert [document[side]["strict"]["n_right"] for side in "ab"] == [1, 1]
    assert err == (
        f"Note: 1 of 4 questions were not asked in {str(a)!r}, and count as wrong; "
        "judge those that were with its --sample and --seed, or --limit.\n"
    )
    out = run(questions, "--compare", a, b)[1]
    assert "A and B on the 2 questions that both have\nleft out, as they are not in both files: 1 only in b\n" in out
    other = json.loads(run(questions, "--compare", b, a, "--json")[1])
    assert other["mcnemar"]["strict"] == {"both": 0, "only_a": 0, "only_b": 1, "neither": 1, "p": 1.0}


def test_runs_of_a_sample_are_compared_on_it(run, tmp_path, shop):
    """With the same --sample and --seed nothing is missing; without, the pairs are the same ones."""
    records = [{"id": str(n), "db": shop.name, "question": "?", "sql": f"SELECT {n}"} for n in range(12)]
    file = write_lines(tmp_path / "many.jsonl", records)
    chosen = {question.id for question in sample(read_questions(file), 5, 3)}
    n_even = sum(int(id_) % 2 == 0 for id_ in chosen)
    assert 0 < n_even < 4
    answers = [
        [f"SELECT {n if n % step == 0 else -1}" if str(n) in chosen else NOT_ASKED for n in range(12)]
        for step in (1, 2)
    ]
    a, b = (write_results(tmp_path / name, file, sql) for name, sql in zip("ab", answers, strict=True))
    test = {"both": n_even, "only_a": 5 - n_even, "only_b": 0, "neither": 0, "p": 2 / 2 ** (5 - n_even)}
    code, out, err = run(file, "--compare", a, b, "--sample", 5, "--seed", 3, "--json")
    document = json.loads(out)
    assert (code, err, document["a"]["n"]) == (0, "", 5)
    assert document["pairs"] == {"n": 5, "only_in_a": 0, "only_in_b": 0, "in_neither": 0}
    assert document["mcnemar"]["strict"] == test
    assert document["a"]["strict"]["accuracy"] == 1.0
    document = json.loads(run(file, "--compare", a, b, "--json")[1])
    assert document["pairs"] == {"n": 5, "only_in_a": 0, "only_in_b": 0, "in_neither": 7}
    assert document["mcnemar"]["strict"] == test


@pytest.mark.parametrize("name", ["FORCE_COLOR", "TTY_COMPATIBLE", "CLICOLOR_FORCE"])
def test_a_table_is_text_whatever_asks_for_colours(questions, tmp_path, name):
    """In a pipe: no escape sequence, and no progress bar on a stderr that is no terminal either."""
    path = write_predictions(tmp_path / "p.jsonl", GOLDS)
    script = "from sqale_edge.cli import main; main()"
    command = [sys.executable, "-P", "-c", script, "eval", str(questions), "-p", str(path)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, name: "1"}, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"accuracy" in done.stdout
    assert b"\x1b" not in done.stdout


def test_nothing_to_score_is_no_answer(run, questions, tmp_path):
    """Exit code 3, with the reason and the fix."""
    path = write_predictions(tmp_path / "p.jsonl", GOLDS)
    (tmp_path / "shop.sqlite").unlink()
    code, out, err = run(questions, "-p", path, "--json")
    assert code == 3
    assert json.loads(out)["bird"]["accuracy"] is None
    assert err.startswith("No answer: none of the 4 questions can be scored: 4 no database; there is no file '")
    assert err.endswith("Name the folder of the databases with --databases.\n")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, "give either --predictions FILE, or --compare A B, or --model M"),
        (["-p", "p", "--compare", "p", "p"], 2, "give either --predictions FILE, or --compare A B, or --model M"),
        (["-p", "p", "-m", "demo"], 2, "give either --predictions FILE, or --compare A B, or --model M"),
        (["-p", "p", "--sample", "1", "--limit", "1"], 2, "give either --sample N or --limit N"),
        (["-p", "p", "--rule", "best"], 2, "'best' is not one of"),
        (["-p", "p", "--form", "best"], 2, "'best' is not one of"),
        (["-p", "p", "--timeout", "0"], 2, "--timeout"),
        (["-p", "p", "--timeout", "nan"], 2, "'nan' is not a number of seconds"),
        (["-p", "p", "--timeout", "inf"], 2, "inf is not in the range"),
        (["-p", "p", "--timeout", "1e7"], 2, "10000000.0 is not in the range"),
        (["-p", ""], 2, "it is empty"),
        (["--compare", "p", "p", "--write-predictions", "w"], 2, "leave out --compare"),
        (
            ["-p", "none.jsonl"],
            1,
            "Error: 'none.jsonl' cannot be read: No such file or directory. Fix: check the path.",
        ),
    ],
)
def test_wrong_use(run, questions, args, code, message):
    """2 for what was typed, 1 for a file."""
    result = run(questions, *args)
    assert (result[0], result[1]) == (code, "")
    assert message in result[2]


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
def test_ctrl_c_leaves_nothing(questions, tmp_path):
    """Within a query: exit code 130, nothing on stdout, no file."""
    path = write_predictions(tmp_path / "p.jsonl", {"1": FOREVER})
    (tmp_path / "tmp").mkdir()
    before = sorted(tmp_path.rglob("*"))
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import sys, sqale_edge.cli.eval; print('ready', file=sys.stderr, flush=True); sqale_edge.cli.main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", script, "eval", str(questions), "-p", str(path), "--timeout", "600"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )
    assert process.stderr.readline() == b"ready\n"
    time.sleep(1)  # wherever that finds it, the outcome is the same
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (130, b"", b"Cancelled.\n")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_an_end_keeps_what_was_answered(shop, tmp_path, name, code):
    """Whatever ends it, the file is one that the next start goes on from."""
    records = [{"id": str(n), "db": shop.name, "question": "How many customers are there?"} for n in range(2_000)]
    path = write_lines(tmp_path / "many.jsonl", [one | {"sql": "SELECT 1"} for one in records])
    output = tmp_path / "results.jsonl"
    command = [sys.executable, "-P", "-c", "from sqale_edge.cli import main; main()", "eval", str(path)]
    process = subprocess.Popen(
        [*command, "--model", "demo", "--threads", "1", "--output", str(output)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + WAIT_S
    while (not output.exists() or output.read_bytes().count(b"\n") < 2) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (code, b"")
    answers = read_results(output, read_questions(path)).answers
    assert 1 <= len(answers) < 2_000
    if name == "SIGINT":
        assert f"{len(answers)} answers are kept in".encode() in err
