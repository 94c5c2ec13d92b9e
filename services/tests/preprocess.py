#!/usr/bin/env python3
"""Writes preprocess.txt, by which the service `preprocess` is judged: rows as they come, and as numpy makes them.

    python3 -m venv VENV && VENV/bin/pip install numpy && VENV/bin/python services/tests/preprocess.py

A line is a row as it comes and the row of features, each in hexadecimal, little-endian. The function is that of the CPU
reference of BALBOA's artifact. With --time it writes nothing, and prints how fast numpy is: the quickest of many passes
over the table of services/examples/preprocess_cost.rs. With a number it prints such lines of random rows by that seed.
"""

import pathlib
import sys
import time

import numpy as np

DENSE, ROW, MODULUS, SEED = 16, 48, 8192, 1


def features(table):
    made = np.empty(table.shape, dtype=np.float32)
    made[:, :DENSE] = np.log1p(np.maximum(table[:, :DENSE], 0).astype(np.float32))
    made[:, DENSE:] = (table[:, DENSE:] % MODULUS).astype(np.float32)
    return made


def table():
    rng = np.random.default_rng(SEED)
    edges = [0, 1, -1, 2, 7, 8191, 8192, 8193, -8191, -8192, -8193, 9999, 10000, 2**24, 2**24 + 1, 2**31 - 1, -(2**31)]
    rows = [np.roll(np.resize(np.array(edges, dtype=np.int32), ROW), shift) for shift in range(len(edges))]
    # As in the artifact.
    rows += list(rng.integers(0, 10000, (12, ROW), dtype=np.int32))
    rows += list(rng.integers(-(2**31), 2**31, (12, ROW), dtype=np.int32))
    return np.array(rows, dtype=np.int32)


def quickest(rows=4096, passes=200):
    values = (np.arange(rows * ROW) * 97 % (10_000 + MODULUS)).astype(np.int32).reshape(-1, ROW)

    def once():
        begun = time.perf_counter()
        features(values)
        return time.perf_counter() - begun

    return values.nbytes / min(once() for _ in range(passes))


def lines(rows):
    return "".join(
        f"{row.astype('<i4').tobytes().hex()} {made.astype('<f4').tobytes().hex()}\n"
        for row, made in zip(rows, features(rows))
    )


if sys.argv[1:] == ["--time"]:
    print(f"numpy {np.__version__}: {quickest() / 1e9:.2f} GB/s")
elif sys.argv[1:]:
    # All lengths of numbers alike: half of them would else have ten digits.
    rng = np.random.default_rng(int(sys.argv[1]))
    print(lines(rng.integers(-(2**31), 2**31, (500, ROW), dtype=np.int32) >> rng.integers(0, 32, (500, ROW))), end="")
else:
    pathlib.Path(__file__).with_suffix(".txt").write_text(lines(table()))
