"""The sample database of the demonstration."""

import sqlite3
from contextlib import closing

import pytest

from sqale_edge import Database
from sqale_edge.sample_shop import write_sample_shop


@pytest.fixture
def shop(tmp_path):
    path = tmp_path / "new folder" / "shop.sqlite"
    write_sample_shop(path)
    with Database.open(path) as database:
        yield database


def ask(database, sql):
    return database.query(sql, max_rows=100).rows


def test_all_five_tables_are_full(shop):
    """As many rows as the story says."""
    tables = ("suppliers", "products", "customers", "orders", "shipments")
    counts = [ask(shop, f"SELECT count(*) FROM {table}")[0][0] for table in tables]
    assert counts == [5, 16, 20, 60, 34]


def test_it_makes_sense(shop):
    """Every key leads somewhere, nobody orders before joining, nothing is sent before it is ordered."""
    with closing(sqlite3.connect(shop.path)) as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    joined = "orders JOIN customers ON customers.id = customer_id"
    assert ask(shop, f"SELECT count(*) FROM {joined} WHERE ordered_on < joined_on") == ((0,),)
    sent = "shipments JOIN orders ON orders.id = order_id"
    assert ask(shop, f"SELECT count(*) FROM {sent} WHERE shipped_on <= ordered_on OR status <> 'shipped'") == ((0,),)
    priced = "orders JOIN products ON products.id = product_id"
    assert ask(shop, f"SELECT count(*) FROM {priced} WHERE amount <> round(quantity * price, 2)") == ((0,),)


def test_it_is_the_same_each_time_and_replaces_itself(tmp_path):
    """A second one over the first, and nothing else in the folder."""
    path = tmp_path / "shop.sqlite"
    write_sample_shop(path)
    first = path.read_bytes()
    write_sample_shop(path)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_nothing(tmp_path):
    """A folder stands where the file should go."""
    (tmp_path / "shop.sqlite" / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match=r"shop\.sqlite"):
        write_sample_shop(tmp_path / "shop.sqlite")
    assert list(tmp_path.iterdir()) == [tmp_path / "shop.sqlite"]
