#!/usr/bin/env python3
"""The network of the service `classifier` in numpy, which judges the one in Rust by scores of words.

    python3 -m venv VENV && VENV/bin/pip install numpy
    VENV/bin/python services/tests/classifier.py             writes classifier.txt, of 2,000 words and of 100,000
    VENV/bin/python services/tests/classifier.py SEED        prints the same of 100,000 words of another seed

Three lines stand for words: a hundred of their scores, how many scores are above 0, and the digest of all.

Words are made by a seed, here and in classifier.rs: a third are bytes of all kinds, a third printable, a third with few
bits. Nothing here shares code with the service: inputs are bits, weights a matrix, sums an inner product.
"""

import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve()
WEIGHTS = HERE.parents[1] / "src/classifier.txt"
COUNTS, SHOWN = (2_000, 100_000), 100
M64 = (1 << 64) - 1


def read(text):
    """The layers' matrices, one row a unit, their shifts, the weights of the score, and its bias."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    shifts = [int(number) for number in lines[0].split(" ")]
    layers, at = [], 1
    for units in (32, 64, 64):
        rows = [["-0+".index(sign) - 1 for sign in line] for line in lines[at : at + units]]
        layers.append(np.array(rows, dtype=np.int64))
        at += units
    last = np.array([int(number) for number in lines[at].split(" ")], dtype=np.int64)
    return layers, shifts, last, int(lines[at + 1])


def bits(words):
    """The inputs: the bits of each word of 64 bytes, its last bit first."""
    return np.unpackbits(words[:, ::-1], axis=1)


def outputs(network, words):
    """What the last hidden layer gives for each word."""
    layers, shifts, _, _ = network
    # Sums are far below 2^24, so these numbers have them exactly.
    values = bits(words).astype(np.float32)
    for weights, shift in zip(layers, shifts):
        values = np.clip(np.floor(values @ weights.T.astype(np.float32) / 2**shift), 0, 7)
    return values.astype(np.int64)


def scores(network, words):
    """The scores of words; those above 0 look like machine code."""
    _, _, last, bias = network
    return outputs(network, words) @ last + bias


def mix(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def words_of(seed, count):
    """Words of a seed: the numbers of SplitMix64, eight a word, and what they are made to."""
    numbers = np.arange(1, 8 * count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    mixed = mix(numbers)
    whole = mixed.astype("<u8").view(np.uint8).reshape(count, 64)
    # One bit in four, by the bits of the same number in another place.
    sparse = (mixed & (mixed >> np.uint64(32) | mixed << np.uint64(32))).astype("<u8").view(np.uint8).reshape(count, 64)
    printable = whole % 95 + 32
    kind = np.arange(count)[:, None] % 3
    return np.where(kind == 0, whole, np.where(kind == 1, printable, sparse)).astype(np.uint8)


def digest(values):
    """FNV-1a over the scores, each 4 bytes, little-endian."""
    state = 0xCBF29CE484222325
    for byte in values.astype("<i4").tobytes():
        state = (state ^ byte) * 0x100000001B3 & M64
    return state


def told(seed, count):
    """The lines for words of a seed."""
    values = scores(read(WEIGHTS.read_text()), words_of(seed, count))
    shown = [str(score) for score in values[:: count // SHOWN]]
    return "".join(f"{line}\n" for line in (" ".join(shown), int((values > 0).sum()), f"{digest(values):016x}"))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(told(int(sys.argv[1]), COUNTS[-1]), end="")
    else:
        HERE.with_suffix(".txt").write_text("".join(told(1, count) for count in COUNTS))
