"""The demo model, as it is in the package, answers: the real engine on the real architecture."""

import hashlib

import pytest
from restore import restore_folder
from sqale_edge.convert import convert_checkpoint

from sqale_edge import Agent, Database, EngineSettings
from sqale_edge.episode import Thought, ToolCalled
from sqale_edge.models import find_model, read_demo_card
from sqale_edge.results import same_rows
from sqale_edge.sample_shop import write_sample_shop

# One thread: for so small a model a second one only costs, most of all where other programs compute.
SETTINGS = EngineSettings(n_ctx=4_096, threads=1, threads_batch=1)
# One question of each kind that it was trained on, about the sample shop, and the statement that answers it.
_ORDERS = "orders JOIN customers ON customers.id = customer_id"
QUESTIONS = {
    "count": ("How many customers are there?", "SELECT count(*) FROM customers"),
    "count_text": (
        "How many customers with city Ghent are there?",
        "SELECT count(*) FROM customers WHERE city = 'Ghent'",
    ),
    "count_number": (
        "How many products with a price of more than 50 are there?",
        "SELECT count(*) FROM products WHERE price > 50",
    ),
    "count_date": (
        "How many orders that were ordered in 2023 are there?",
        "SELECT count(*) FROM orders WHERE ordered_on LIKE '2023%'",
    ),
    "count_null": (
        "How many shipments without a weight are there?",
        "SELECT count(*) FROM shipments WHERE weight IS NULL",
    ),
    "list_text": (
        "List the names of the customers with city Lille.",
        "SELECT name FROM customers WHERE city = 'Lille'",
    ),
    "list_number": (
        "List the names of the products whose stock is below 8.",
        "SELECT name FROM products WHERE stock < 8",
    ),
    "list_date": (
        "List the names of the customers joined after 2024-01-01.",
        "SELECT name FROM customers WHERE joined_on > '2024-01-01'",
    ),
    "total": ("What is the average price of the products?", "SELECT avg(price) FROM products"),
    "total_where": (
        "What is the total amount of the orders with status cancelled?",
        "SELECT sum(amount) FROM orders WHERE status = 'cancelled'",
    ),
    "distinct": ("How many different cities do the customers have?", "SELECT count(DISTINCT city) FROM customers"),
    "top": (
        "List the names of the 3 products with the highest price.",
        "SELECT name FROM products ORDER BY price DESC LIMIT 3",
    ),
    "group": ("Show the number of orders for each status.", "SELECT status, count(*) FROM orders GROUP BY status"),
    "having": (
        "Which materials have more than 3 products?",
        "SELECT material FROM products GROUP BY material HAVING count(*) > 3",
    ),
    "join": (
        "How many orders of customers whose city is Ghent are there?",
        f"SELECT count(*) FROM {_ORDERS} WHERE city = 'Ghent'",
    ),
    "join_group": (
        "Count the orders of each customer by name.",
        f"SELECT name, count(*) FROM {_ORDERS} GROUP BY name",
    ),
    "join_top": (
        "Which customer has the most orders? Give its name.",
        f"SELECT name FROM {_ORDERS} GROUP BY name ORDER BY count(*) DESC LIMIT 1",
    ),
    "two_joins": (
        "List the different ids of the shipments of customers with city Lille.",
        f"SELECT id FROM shipments WHERE order_id IN (SELECT orders.id FROM {_ORDERS} WHERE city = 'Lille')",
    ),
}


@pytest.fixture(scope="module")
def agent():
    with Agent.load("demo", settings=SETTINGS) as agent:
        yield agent


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    write_sample_shop(path)
    with Database.open(path) as database:
        yield database


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    restore_folder(find_model("demo").path, folder)
    return folder


def is_right(episode, kind, shop):
    """Whether the episode's rows are those of the kind's statement."""
    gold = shop.query(QUESTIONS[kind][1], max_rows=1_000).rows
    return episode.sql is not None and same_rows(episode.rows, gold, ordered=kind == "top")


@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_question_of_each_kind(agent, shop, kind):
    """It finds the tables, writes a statement, and the rows are right."""
    episode = agent.run(QUESTIONS[kind][0], shop)
    assert is_right(episode, kind, shop), (episode.sql, episode.ended_by)
    assert episode.prompt == "training"


def test_warm_and_cold_agree(agent, shop):
    """A question after others gets the answer that it gets from a fresh agent, token for token."""
    question = QUESTIONS["join"][0]
    agent.run(QUESTIONS["group"][0], shop)
    warm = agent.run(question, shop)
    with Agent.load("demo", settings=SETTINGS) as fresh:
        cold = fresh.run(question, shop)
    assert [turn.to_dict() for turn in warm.turns] == [turn.to_dict() for turn in cold.turns]


def test_only_new_tokens_are_evaluated(agent, shop):
    """From the second turn on, all of the log but the turn's own prompt is cached; nothing is evaluated twice."""
    episode = agent.run(QUESTIONS["join"][0], shop)
    n_log = 0
    for turn in episode.turns:
        assert turn.usage.n_cached >= n_log - 1  # the last token of a turn is evaluated with the next prompt
        n_log = turn.usage.n_prompt + turn.usage.n_decoded


@pytest.mark.parametrize("moment", [Thought, ToolCalled])
def test_cancel(agent, shop, moment):
    """It stops where it is, and the next question is answered as ever."""
    events = agent.stream(QUESTIONS["join"][0], shop)
    for event in events:
        if isinstance(event, moment):
            agent.cancel()
        last = event
    assert last.episode.ended_by == "cancelled"
    assert is_right(agent.run(QUESTIONS["count"][0], shop), "count", shop)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K_M"])
def test_quantized(checkpoint, tmp_path, shop, quant):
    """Made from the checkpoint that the package's file gives back, and most answers stay right."""
    model = tmp_path / f"{quant}.gguf"
    convert_checkpoint(checkpoint, model, quant=quant)
    kinds = ("count", "count_text", "list_number", "total", "top", "group", "join")
    with Agent.load(model, settings=SETTINGS) as agent:
        n_right = sum(is_right(agent.run(QUESTIONS[kind][0], shop), kind, shop) for kind in kinds)
    assert n_right >= 5


def test_the_card_is_about_this_file():
    """Its digest is in it, and it is small enough to be carried by the package."""
    assert hashlib.sha256(find_model("demo").path.read_bytes()).hexdigest() == read_demo_card().sha256
    assert find_model("demo").path.stat().st_size < 12_000_000
