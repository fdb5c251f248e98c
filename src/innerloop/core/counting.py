"""Sizes as formulas in K and V: sums of products of shapes, read off from the shapes that two odd sizes give."""

from __future__ import annotations

from collections.abc import Iterable

from .architecture import Architecture

K, V = 1009, 10007
"""Stand-ins for the key's and the value's channels: primes, so that no other size is taken for them."""


def formula(terms: Iterable[tuple[int, tuple[int, ...]]], architecture: Architecture, suffix: str = "") -> str:
    """The sum of `coefficient * product(shape)` as text; F stands for the channels of a feature map.

    suffix: a factor of every term, such as "c".
    """
    features = architecture.inputs(K)
    total: dict[str, int] = {}
    for coefficient, shape in terms:
        powers = dict.fromkeys("FKV", 0)
        for n in shape:
            for size, letter in ((features, "F"), (K, "K"), (V, "V")):
                if (letter != "F" or features != K) and n % size == 0:
                    coefficient, n = coefficient * (n // size), 1
                    powers[letter] += 1
            coefficient *= n
        word = " ".join(x + (f"^{n}" if n > 1 else "") for x, n in powers.items() if n)
        word = f"{suffix} {word}".strip()
        total[word] = total.get(word, 0) + coefficient
    parts = [word if n == 1 and word else f"{n} {word}".strip() for word, n in total.items() if n]
    return " + ".join(parts) or "0"
