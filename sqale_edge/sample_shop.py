"""A small shop as a database, for demonstrations: what it sells, to whom, and what became of each order.

Lantern & Loom sells things for the home in a side street of Ghent. Five suppliers make its sixteen products, twenty
customers live in six cities, and of the sixty orders of two years a good half has been shipped. The rows are written
here by hand, or counted out by a fixed rule: the same ones every time.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

from sqale_edge.new_files import partial_name, put_in_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqale_edge.episode import Cell

_TABLES: Final = """
CREATE TABLE suppliers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, rating REAL);
CREATE TABLE products (
    id INTEGER PRIMARY KEY, name TEXT, material TEXT, price REAL, stock INTEGER,
    supplier_id INTEGER REFERENCES suppliers(id)
);
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT, joined_on TEXT);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, ordered_on TEXT, status TEXT, quantity INTEGER, amount REAL,
    customer_id INTEGER REFERENCES customers(id), product_id INTEGER REFERENCES products(id)
);
CREATE TABLE shipments (
    id INTEGER PRIMARY KEY, shipped_on TEXT, method TEXT, weight REAL, order_id INTEGER REFERENCES orders(id)
);
"""
_SUPPLIERS: Final = (
    ("Nordlys Glassworks", "Bergen", 4.5),
    ("Casa Arcilla", "Seville", 4.1),
    ("Weavers of Leith", "Dundee", 4.8),
    ("Brandt and Daughters", "Bremen", None),  # new, and not rated yet
    ("Oficina do Cobre", "Porto", 4.3),
)
_PRODUCTS: Final = (  # name, material, price, stock, supplier
    ("Fjord Vase", "glass", 48.0, 12, 1),
    ("Tide Carafe", "glass", 36.5, 20, 1),
    ("Moon Lamp", "glass", 119.0, 5, 1),
    ("Olive Bowl", "clay", 24.0, 31, 2),
    ("Patio Pot", "clay", 18.5, 44, 2),
    ("Noon Plate", "clay", 14.0, 60, 2),
    ("Heather Blanket", "wool", 89.0, 9, 3),
    ("Harbour Throw", "wool", 64.0, 14, 3),
    ("Moss Cushion", "wool", 39.0, 22, 3),
    ("Reading Stool", "wood", 75.0, 7, 4),
    ("Bread Board", "wood", 29.0, 26, 4),
    ("Key Shelf", "wood", 33.5, 18, 4),
    ("Sunday Kettle", "copper", 98.0, 6, 5),
    ("Jam Pan", "copper", 130.0, 3, 5),
    ("Candle Holder", "copper", 21.0, 38, 5),
    ("Salt Spoon", "copper", 7.5, 80, 5),
)
_CUSTOMERS: Final = (  # name, city, the day of joining
    ("Ada Peeters", "Ghent", "2022-11-03"),
    ("Bram Claes", "Antwerp", "2022-12-17"),
    ("Chiara Lenoir", "Lille", "2023-01-08"),
    ("Daan Mertens", "Ghent", "2023-01-21"),
    ("Elif Aydin", "Brussels", "2023-02-02"),
    ("Femke Smits", "Bruges", "2023-02-14"),
    ("Gilles Marchand", "Lille", "2023-03-05"),
    ("Hilde Wouters", "Ghent", "2023-03-30"),
    ("Imran Khan", "Brussels", "2023-04-11"),
    ("Jolien Maes", "Leuven", "2023-05-19"),
    ("Kobe Jacobs", "Antwerp", "2023-06-01"),
    ("Lotte Hermans", "Ghent", "2023-06-23"),
    ("Marius Popa", "Brussels", "2023-08-15"),
    ("Noor Willems", "Bruges", "2023-09-09"),
    ("Otis Baert", "Ghent", "2023-10-27"),
    ("Paulien Goossens", "Leuven", "2024-01-04"),
    ("Quinten Dubois", "Lille", "2024-02-20"),
    ("Rania Haddad", "Antwerp", "2024-04-06"),
    ("Sander Aerts", "Ghent", "2024-07-12"),
    ("Tess Lambert", "Bruges", "2024-09-01"),
)
_N_ORDERS: Final = 60
_OPENING: Final = dt.date(2023, 1, 9)
_STATUSES: Final = ("shipped", "paid", "shipped", "cancelled", "shipped", "shipped", "open")
_METHODS: Final = ("bicycle", "post", "courier")


def write_sample_shop(path: Path, *, overwrite: bool = True) -> None:
    """Write the shop to `path`, in one step. What is there is replaced, or with `overwrite=False` an error.

    Raises:
        OSError: It cannot be written; FileExistsError if `path` is taken.
        sqlite3.Error: It cannot be written, as SQLite says it: a full disk, for example.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # it is there, but not as a folder
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path.parent)) from error
    with partial_name(path) as partial:
        partial.touch()  # for the reason that the system gives; SQLite only says that it cannot
        with closing(sqlite3.connect(partial)) as connection, connection:
            connection.executescript(_TABLES)
            _insert(connection, "suppliers", _SUPPLIERS)
            _insert(connection, "products", _PRODUCTS)
            _insert(connection, "customers", _CUSTOMERS)
            orders = list(_make_orders())
            _insert(connection, "orders", orders)
            _insert(connection, "shipments", _make_shipments(orders))
        put_in_place(partial, path, overwrite=overwrite)


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[Cell, ...]]) -> None:
    """Add rows that lack only their id, which is counted from 1."""
    numbered = [(number, *row) for number, row in enumerate(rows, 1)]
    places = ", ".join("?" * len(numbered[0]))
    connection.executemany(f"INSERT INTO {table} VALUES ({places})", numbered)


def _make_orders() -> Iterator[tuple[str, str, int, float, int, int]]:
    """Orders in the order of their days. The strides share no factor with what they count, so all have their turn."""
    for number in range(_N_ORDERS):
        day = _OPENING + dt.timedelta(days=12 * number + number % 5)
        known = [place for place, (*_, joined) in enumerate(_CUSTOMERS, 1) if joined <= day.isoformat()]
        customer, product = known[number * 7 % len(known)], number * 11 % len(_PRODUCTS)
        quantity = 1 + number * 5 % 4
        amount = round(quantity * _PRODUCTS[product][2], 2)
        yield day.isoformat(), _STATUSES[number % len(_STATUSES)], quantity, amount, customer, product + 1


def _make_shipments(
    orders: list[tuple[str, str, int, float, int, int]],
) -> Iterator[tuple[str, str, float | None, int]]:
    """One for each order that was shipped, some days later."""
    for number, (ordered, status, quantity, *_) in enumerate(orders, 1):
        if status == "shipped":
            day = dt.date.fromisoformat(ordered) + dt.timedelta(days=1 + number % 6)
            yield (
                day.isoformat(),
                _METHODS[number % len(_METHODS)],
                round(0.4 * quantity + 0.1 * (number % 7), 1),
                number,
            )
