"""The report: what it says, that hostile text stays text, and where it may be written."""

import html.parser
import json
import re
import sqlite3
import xml.etree.ElementTree as ET
from contextlib import closing
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from sqale_edge.benchmarks import (
    GoldTable,
    Judged,
    Question,
    ResultsFile,
    Run,
    analyze,
    ask_questions,
    check_folder,
    compare,
    count_pairs,
    read_results,
    score,
    summarize,
    write_report,
)
from sqale_edge.benchmarks.charts import accuracy_chart, count_chart
from sqale_edge.benchmarks.report_folder import FILES
from sqale_edge.benchmarks.results_file import digest_questions

from sqale_edge import Agent
from sqale_edge.errors import SqaleEdgeError
from sqale_edge.testing import ScriptedEngine

RULES = ("bird", "strict")
EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> </pre></details></title></style> {{ 7 * 7 }} {% raw %} "
    "&amp; ]]> --> | pipe `tick` \n```\n<b>\n# head\r\n- list *b* _i_ [l](http://evil.test) www.evil.test "
    "\x1b[31m\x07 \u202e \\"
)
_VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(html.parser.HTMLParser):
    """An HTML file as its elements with their attributes, and its text; a tag out of place is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return " ".join("".join(self.texts).split())


def call(tool, **args):
    return json.dumps({"tool": tool, "args": args})


def describe(results, outcomes, about):
    settings = {"timeout_s": 5.0, "sample": None, "limit": None, "seed": None}
    document = {"questions": "q.jsonl", "form": "jsonl", "settings": settings, "sqale_edge": "0.9", "sqlite": "3.99"}
    document |= {"file": "r.jsonl", "file_form": "results", "n_unknown": 0} | dict(about) | summarize(outcomes, RULES)
    return document | ({"analysis": analyze(outcomes, results, RULES)} if results else {})


def judge(questions, sql, about=()):
    """A file of predictions."""
    outcomes = [one for (one,) in score(questions, [sql], RULES)]
    document = describe(None, outcomes, about)
    return Judged(document, outcomes, sql, {})


def write(folder, questions, judged, **options):
    document = judged[0].document
    if len(judged) == 2:
        tests = compare(judged[0].outcomes, judged[1].outcomes, RULES)
        pairs = count_pairs(judged[0].outcomes, judged[1].outcomes)
        document = {"a": document, "b": judged[1].document, "pairs": pairs, "mcnemar": tests}
    write_report(folder, questions, judged, RULES, document, **options)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def shop(shop):
    """The shop with a hostile cell in a table with a hostile name."""
    with closing(sqlite3.connect(shop)) as connection:
        name = EVIL.replace('"', '""')
        connection.execute(f'CREATE TABLE "{name}" (cell TEXT)')
        connection.execute(f'INSERT INTO "{name}" VALUES (?)', (EVIL,))
        connection.commit()
    return shop


@pytest.fixture
def asked(shop, tmp_path):
    """Questions, and a model's answers to them: one right, one wrong after a look around, one without an answer."""
    golds = (
        "SELECT name FROM customers WHERE city = 'London'",
        "SELECT id FROM orders",
        "SELECT 4",
        "SELECT 1 WHERE 0",
    )
    questions = [Question(str(i), shop, f"Question {i}?", (gold,), difficulty="easy") for i, gold in enumerate(golds)]
    scripts = [
        ["I know it.</think>" + call("submit_sql", sql="SELECT 'Ada'")],
        [
            "Which columns are there?</think>" + call("describe_table", table_name="orders") + call("fly"),
            "That will do.</think>" + call("submit_sql", sql="SELECT id, total FROM orders") + call("list_tables"),
        ],
        ["Hmm.</think>?"] * 6 + ["No idea.</think>I do not know."],
        ["One.</think>" + call("submit_sql", sql="SELECT 1")],
    ]
    return questions, ask(tmp_path, questions, scripts, "model.gguf")


def ask(tmp_path, questions, scripts, model):
    settings = {"engine": {"n_ctx": 4096}, "sampling": {"temperature": 0.6}, "limits": {"tool_turns": 6}}
    run = Run(model, "ab" * 32, 1_000_000, "own", settings, 7, digest_questions(questions), "0.1", "3.45")
    with ResultsFile(tmp_path / "r.jsonl", run) as file:
        for question, script in zip(questions, scripts, strict=True):
            list(ask_questions(Agent(ScriptedEngine(script, thinks=True)), [question], file))
    results = read_results(tmp_path / "r.jsonl", questions)
    outcomes = [one for (one,) in score(questions, [results.sql], RULES)]
    described = {name: getattr(run, name) for name in run.__dataclass_fields__}
    document = describe(results, outcomes, {"run": described})
    return Judged(document, outcomes, results.sql, results.answers)


def test_a_person_finds_what_was_measured(asked, tmp_path):
    """Model, digest, prompt, settings, accuracy, analyses, gold states, published figures: in HTML and in Markdown."""
    questions, judged = asked
    page = write(tmp_path / "report", questions, [judged])
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == sorted(FILES)
    for text in (page.text, " ".join(markdown.replace("\\", "").split())):
        for words in (
            "model.gguf",
            "ab" * 32,
            "1,000,000",
            "this package's own texts",
            "tool_turns 6",
            "temperature 0.6",
            "sqale-edge 0.1, SQLite 3.45",
            "33.3 %",
            "6.1 to 79.2 %",
            "gold tables opened",
            "TFLOP = 2 × parameters",
            "submit_sql",
            "has no rows: any query that finds nothing would be right",
            "published: M_SQaLe",
            "66.3 %",
            "n = 300",
            "the right rows, but for columns that are missing",
            "Which columns are there?",
            "SELECT id, total FROM orders",
            "orders (opened)",
            "no_answer after 7 turns",
        ):
            assert words in text, words
    assert json.loads((tmp_path / "report" / "report.json").read_text()) == judged.document


def test_the_page_is_whole_in_itself(asked, tmp_path):
    """It loads nothing and runs nothing, links only within itself, and each id is there once."""
    questions, judged = asked
    page = write(tmp_path / "report", questions, [judged, judged])
    tags = {tag for tag, _ in page.elements}
    assert tags & {"script", "link", "img", "iframe", "object", "base", "form"} == set()
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")]
        if "href" in attributes:
            assert (tag, attributes["href"][0]) == ("a", "#")
            assert attributes["href"][1:] in ids
    css = (
        (tmp_path / "report" / "report.html")
        .read_text(encoding="utf-8")
        .partition("<style>")[2]
        .partition("</style>")[0]
    )
    assert "prefers-color-scheme: dark" in css
    assert "url(" not in css
    assert "@import" not in css


def find_drawings(folder):
    return re.findall(r"<svg.*?</svg>", (folder / "report.html").read_text(encoding="utf-8"), re.DOTALL)


def test_drawings_are_drawn(asked, tmp_path):
    """Each is XML with a title and a description; bars and error bars are as long as their figures."""
    questions, judged = asked
    write(tmp_path / "report", questions, [judged])
    drawings = [ET.fromstring(text) for text in find_drawings(tmp_path / "report")]
    assert len(drawings) == 8
    space = "{http://www.w3.org/2000/svg}"
    for drawing in drawings:
        named = {one.get("id"): one for one in (drawing[0], drawing[1])}
        assert [one.tag for one in named.values()] == [f"{space}title", f"{space}desc"]
        assert all(one.text for one in named.values())
        assert drawing.get("role") == "img"
        assert drawing.get("aria-labelledby").split() == list(named)
    rules = drawings[0]
    assert [float(bar.get("width")) for bar in rules.iter(f"{space}rect")] == [100.0, 100.0]  # a third of 300
    low, high = re.match(r"M([\d.]+) [\d.]+H([\d.]+)", next(rules.iter(f"{space}path")).get("d")).groups()
    assert (float(low), float(high)) == (
        pytest.approx(14 + 300 * 0.0615, abs=0.1),
        pytest.approx(14 + 300 * 0.7923, abs=0.1),
    )
    assert [text.text for text in rules.iter(f"{space}text") if text.get("class") == "label"] == [
        "bird (n = 3)",
        "strict (n = 3)",
    ]


def test_charts_say_what_they_show():
    """In words, too; long labels are cut; an axis ends at a whole number."""
    chart = accuracy_chart("a", "T", {"x" * 50: {"n": 4, "strict": 0.5}}, ["strict"])
    assert chart.description.endswith(f"{'x' * 30}… (20 more characters) (n = 4): strict 50.0\u00a0%")
    counts = count_chart("c", "T", "questions", {"tables": 9, "order": 0})
    assert [label for _, label in counts.ticks] == ["0", "3", "6", "9", "12"]
    assert [bar.length for _, (bar,) in counts.groups] == [0.75, 0]
    assert count_chart("c", "T", "questions", {}).ticks[-1] == (1.0, "4")


def test_hostile_text_is_text(shop, tmp_path):
    """In a question, its id, evidence, difficulty, SQL, a cell, a column, a thought, a call, a file name, a model."""
    named = EVIL.replace('"', '""')
    gold = f'SELECT cell AS "{named}" FROM "{named}" -- {EVIL!r}'
    questions = [Question(EVIL, shop, EVIL, (gold,), evidence=EVIL, difficulty=EVIL)]
    answer = f'SELECT cell AS "{named}", 1 FROM "{named}"'
    script = [
        f"{EVIL}</think>" + call(EVIL, sql=EVIL) + call("sample_rows", table_name=EVIL) + call("run_query", sql=EVIL),
        f"{EVIL}</think>{EVIL}",
        f"{EVIL}</think>" + call("submit_sql", sql=answer),
    ]
    judged = ask(tmp_path, questions, [script], EVIL)
    assert judged.outcomes[0].failure == "columns"
    predicted = judge(questions, {EVIL: EVIL}, {"file": EVIL, "questions": EVIL})
    for name, files in {"one": [judged], "two": [predicted, judged]}.items():
        page = write(tmp_path / name, questions, files)
        tags = {tag for tag, _ in page.elements}
        assert tags & {"script", "img"} == set()
        assert page.text.count("<script>alert(1)</script>") > 10
        assert "{{ 7 * 7 }}" in page.text
        source = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", source)
        for text in find_drawings(tmp_path / name):
            ET.fromstring(text)
        check_markdown((tmp_path / name / "report.md").read_text(encoding="utf-8"))


def check_markdown(text):
    """Its HTML is ours alone, its headings, tables and lists are too, and it links nowhere."""
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for token in tokens:
        if token.type == "html_block":
            assert re.fullmatch(r"<details><summary>[^<>]*</summary>|</details>", token.content.strip())
        for child in token.children or ():
            assert child.type in ("text", "strong_open", "strong_close"), (child.type, child.content)
    titles = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert "head" not in titles
    rows = [token for token in tokens if token.type == "tr_open"]
    assert len(rows) > 20


def test_hostile_markdown_is_read_as_it_is(shop, tmp_path):
    """A cell in a table is the text that it was, but for its controls."""
    questions = [Question("1", shop, "?", ("SELECT '| a `b` \\ <i> *c*\nd' AS cell",))]
    write(tmp_path / "report", questions, [judge(questions, {"1": "SELECT 2"})])
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    rendered = MarkdownIt("commonmark").enable("table").render(markdown)
    assert "<td>| a `b` \\ &lt;i&gt; *c*\\nd</td>" in rendered


def test_predictions_have_no_traces(asked, tmp_path):
    """What a model did is not in them; gold, answer and rows are."""
    questions, _ = asked
    page = write(tmp_path / "report", questions, [judge(questions, {"1": "SELECT name FROM customers", "2": None})])
    assert "A file of predictions does not say how they came about." in page.text
    assert "How the model worked" not in page.text
    assert "How it came about" not in page.text
    assert "Barbara" in page.text
    assert "(no SQL)" in page.text


def test_what_was_said_before_is_not_said_again(shop, tmp_path):
    """A repeated call refers to its first answer; a note of all episodes stands with the model alone."""
    questions = [Question("1", shop, "?", ("SELECT 1",)), Question("2", shop, "?", ("SELECT 2",))]
    tables = "Look.</think>" + call("list_tables") * 45
    scripts = [
        [tables, "Again.</think>" + call("list_tables"), "So.</think>" + call("submit_sql", sql="SELECT 7")],
        ["Hm.</think>?"] * 6 + ["So.</think>SELECT nonsense"],
    ]
    page = write(tmp_path / "report", questions, [ask(tmp_path, questions, scripts, "m")])
    assert page.text.count("customers, orders") == 1
    assert page.text.count("(as before)") == 39 + 1 + 5
    assert "the first 40 of 45 calls" in page.text
    assert page.text.count("brings no training prompt") == 1
    assert "the final answer does not run: no such column: nonsense" in page.text


def test_two_files_side_by_side(asked, tmp_path):
    """McNemar's table, the questions on which they differ with both answers, then each file alone."""
    questions, judged = asked
    other = judge(questions, {"0": "SELECT 'Eve'", "1": "SELECT id FROM orders", "2": "SELECT 4"}, {"file": "p.jsonl"})
    page = write(tmp_path / "report", questions, [judged, other])
    markdown = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| strict | 0 | 1 | 2 | 0 | 1.0000 |" in markdown
    assert "There are 3 questions." in markdown
    for words in ("A is r.jsonl", "B is p.jsonl", "SELECT 'Eve'", "0: bird: A, strict: A", "1: bird: B, strict: B"):
        assert words in page.text
    assert page.text.count("What was measured") == 4  # two headings, two links
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    assert document["mcnemar"]["strict"]["only_b"] == 2


def test_a_right_result_in_a_csv_file(shop, tmp_path):
    """Spider 2 has no SQL as gold; and a question that one file lacks is no difference."""
    (tmp_path / "gold.csv").write_text("n\n4\n")
    table = GoldTable(tmp_path / "gold.csv")
    questions = [Question(id_, shop, f"Q {id_}?", gold_tables=(table,), form="spider2") for id_ in "123"]
    a = judge(questions, {"1": "SELECT count(*) FROM customers", "2": "SELECT 4"}, {"file": "a.jsonl"})
    b = judge(questions, {"1": "SELECT 5", "3": "SELECT 4"}, {"file": "b.jsonl"})
    page = write(tmp_path / "report", questions, [a, b])
    assert "1 questions" in page.text
    assert "1: bird: A, strict: A" in page.text
    assert "(a CSV file)" in page.text
    assert "2: bird" not in page.text
    words = (
        "Counted are the 1 questions that both were asked; left out are 1 of A alone, 1 of B alone and 0 of neither."
    )
    assert words in page.text
    assert words in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_nothing_to_score(asked, tmp_path):
    """A report says so, without drawings of nothing."""
    questions, _ = asked
    page = write(tmp_path / "report", questions[3:], [judge(questions[3:], {})])
    assert "1 of 1 questions do not count." in page.text
    assert find_drawings(tmp_path / "report") == []


def test_long_reports_end(shop, tmp_path):
    """After 200 wrong questions, and it says so."""
    questions = [Question(str(i), shop, f"Question {i}?", ("SELECT 1",)) for i in range(205)]
    page = write(tmp_path / "report", questions, [judge(questions, {})])
    assert "205 questions, the first 200 of them, by kind." in page.text
    assert sum(attributes.get("class") == "question" for _, attributes in page.elements) == 200


def test_the_same_evaluation_makes_the_same_files(asked, tmp_path):
    """Byte by byte."""
    questions, judged = asked
    for name in ("one", "two"):
        write(tmp_path / name, questions, [judged])
    for file in FILES:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_report_is_replaced_only_when_asked(asked, tmp_path):
    """The folder is left as it was otherwise; nothing else appears in it or beside it."""
    questions, judged = asked
    folder = tmp_path / "report"
    folder.mkdir()
    write(folder, questions, [judged])
    before = (folder / "report.md").read_bytes()
    with pytest.raises(SqaleEdgeError, match="there is a report in") as caught:
        write(folder, questions[3:], [judge(questions[3:], {})])
    assert "--overwrite" in caught.value.hint
    assert (folder / "report.md").read_bytes() == before
    write(folder, questions[3:], [judge(questions[3:], {})], overwrite=True)
    assert (folder / "report.md").read_bytes() != before
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.jsonl", "report", "shop.sqlite"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine", "holds other files, such as 'diary.txt'"),
        ("mine/diary.txt", "is not a folder"),
        ("none/report", "of the report does not exist"),
        ("mine/diary.txt/report", "is not a folder, nor can it be one"),
        ("x" * 300, "cannot be the report's folder: File name too long"),
        ("nul\0", "cannot be the report's folder"),
        ("dangling", "is a link to nothing"),
    ],
)
def test_somebody_elses_folder_is_left_alone(tmp_path, name, message, overwrite):
    """One clear line that names it."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("mine")
    (tmp_path / "mine" / "report.md").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SqaleEdgeError, match=re.escape(message)) as caught:
        check_folder(tmp_path / name, overwrite=overwrite)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_folders_that_will_do(tmp_path):
    """A new one, an empty one, a link to one."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("new", "empty", "link"):
        check_folder(tmp_path / name)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder in which nobody may write")
def test_a_folder_that_cannot_be_written(asked):
    """One clear line."""
    questions, judged = asked
    with pytest.raises(SqaleEdgeError, match="'/proc' cannot be written to") as caught:
        write(Path("/proc/report"), questions, [judged])
    assert caught.value.hint
