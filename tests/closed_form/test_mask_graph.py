"""How many neighbours a client of a masked sum needs: published values, and exact probabilities."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest

from fedloom.aggregation import IntegerRing, mask_graph
from fedloom.aggregation.mask_graph import Needed, needed, neighbourhoods
from fedloom.errors import ConfigError

# clients, colluding, dropouts, degree, threshold: graph_parameter_finder_test.cc of its authors,
# for a server that lies about who vanished
PUBLISHED = [
    (100, 0.3, 0.3, 92, 62),
    (100, 0.05, 0.33, 72, 39),
    (100, 0.33, 0.05, 42, 37),
    (1000, 0.05, 0.33, 398, 223),
    (1000, 0.33, 0.05, 132, 109),
    (10000, 0.33, 0.05, 178, 146),
]


@pytest.mark.parametrize(("n", "colluding", "gone", "degree", "shares"), PUBLISHED)
def test_degrees_are_those_that_the_papers_authors_publish(n, colluding, gone, degree, shares):
    clients, bad = math.ceil((1 - gone) * n - 1e-9), math.floor(colluding * n + 1e-9)
    of = lambda k: mask_graph._shares(n, clients, bad, k, own=0)
    assert of(degree) == shares and not of(degree - 2) and not of(degree - 20)


def fails(n, clients, bad, degree, shares):
    """The three probabilities, exactly: two pieces; both secrets of one; too few shares."""
    chance = lambda of, marked, found: Fraction(
        math.comb(marked, found) * math.comb(of - marked, degree - found), math.comb(of, degree)
    )
    gone = n - clients + bad
    pairs = n * (n - degree - 1) // 2
    pieces = pairs * Fraction(math.perm(gone, degree), math.perm(n, degree))
    # a server that tells half of the honest of a client's degree + 1 shares otherwise
    both = sum(chance(n - 1, bad, c) for c in range(bad + 1) if 2 * shares <= degree + 1 + c)
    few = sum(chance(n - 1, clients - 1, left) for left in range(shares) if left <= degree)
    return pieces, n * both, n * few


@pytest.mark.parametrize("n", [60, 100, 250])
@pytest.mark.parametrize("threshold", [0.7, 0.9])
def test_failures_are_as_rare_as_they_are_said_to_be(n, threshold):
    clients, bad = math.ceil(threshold * n - 1e-9), n // 20
    found = needed(n, clients, bad)
    assert found == IntegerRing(secure=True, threshold=threshold).needed(n)
    limits = Fraction(1, 2**41), Fraction(1, 2**41), Fraction(1, 2**20)
    of = lambda degree, shares: all(
        p <= most for p, most in zip(fails(n, clients, bad, degree, shares), limits, strict=True)
    )
    assert of(found.degree, found.shares) and not of(found.degree, found.shares - 1)
    assert not any(of(found.degree - 2, shares) for shares in range(found.degree // 2, n // 2))


def test_all_others_are_neighbours_of_few_clients_and_where_fewer_do_not_do():
    assert needed(50, 30, 2) == Needed(30, 49, 30)
    assert needed(60, 36, 12) == Needed(36, 59, 36)


def pieces(hoods, there):
    """How many pieces the neighbours' graph has on those who are there."""
    left, found = {*there}, 0
    while left:
        found, edge = found + 1, [left.pop()]
        while edge:
            near = left.intersection(hoods[edge.pop()])
            left -= near
            edge += near
    return found


@pytest.mark.parametrize(("n", "degree"), [(8, 4), (9, 4), (9, 8), (10, 9), (11, 6)])
def test_the_graph_is_regular_and_in_one_piece_where_a_client_would_answer(n, degree):
    """Of every subset: who has degree / 2 + 2 of its neighbourhood there is in the one piece."""
    hoods = neighbourhoods(b"name", tuple(range(n)), degree)
    assert all(len(hood) == degree + 1 and i in hood for i, hood in hoods.items())
    assert all(i in hoods[j] for i, hood in hoods.items() for j in hood)
    other = neighbourhoods(b"other", tuple(range(n)), degree)
    assert degree == n - 1 or hoods != other
    split = 0
    for k in range(1, n + 1):
        for there in itertools.combinations(range(n), k):
            least = min(sum(j in there for j in hoods[i]) for i in there)
            one = pieces(hoods, there) == 1
            split += not one
            assert one or least < degree // 2 + 2
    assert (split > 0) == (degree < n - 2)


@pytest.mark.parametrize("colluding", [0.0, 0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("threshold", [0.51, 0.55, 0.6, 0.66])
def test_a_plan_that_colluders_could_read_is_refused(threshold, colluding):
    """With c colluders a lying server splits the other n - c: some give shares of a client's one
    secret and some of its other; each secret takes as many shares as the sum has clients.
    """
    rule = IntegerRing(secure=True, threshold=threshold, colluding=colluding)
    for n in range(3, mask_graph.COMPLETE + 1):
        needs, c = rule.needed(n).shares, math.floor(colluding * n + 1e-9)
        split = range(n - c + 1)
        readable = any(some + c >= needs and n - c - some + c >= needs for some in split)
        refused = False
        try:
            rule.check(n)
        except ConfigError as error:
            refused = "reads updates unless it is more than" in str(error)
        assert refused == readable, (n, needs, c)
