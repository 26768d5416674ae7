"""What decides the bits: seeds, one tree of sums, threads, and large products in oneDNN."""

import hashlib
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedloom import Experiment, FedAvg, Local
from fedloom.algorithm import Job
from fedloom.algorithms import Scaffold
from fedloom.core import products as onednn
from fedloom.core.net import Net
from fedloom.core.rng import generator, key, substream
from fedloom.core.vector import rec, tree
from fedloom.data import from_clients
from fedloom.engines import Serial, Vectorised, Workers, bits_of, make_engine, recorded, vectorised
from fedloom.engines.recorded import Threads
from fedloom.engines.summation import (
    finite,
    push,
    push_rows,
    ranges,
    root,
    unweighted_of,
)
from fedloom.errors import AuthorError, ConfigError
from fedloom.models import mlp
from support.refusals import refused
from tiny import imprint, results_agree, same, small, trace


def test_a_key_is_the_documented_hash_and_differs_in_every_part():
    raw = hashlib.blake2b(repr((3, "batches", 2, 7)).encode(), digest_size=8).digest()
    assert key(3, "batches", 2, 7) == int.from_bytes(raw, "little") >> 1
    keys = [
        key(seed, purpose, round, client)
        for seed in range(3)
        for purpose in ("batches", "step", "cohort")
        for round in range(12)
        for client in range(12)
    ]
    assert len(set(keys)) == len(keys) and all(0 <= k < 2**63 for k in keys)
    assert key(0, "a", 1, 23) != key(0, "a", 12, 3) and key(0, "a", 1) != key(0, "a", "1")


def test_steps_have_seeds_of_their_own():
    starts = [key(0, "step", round, client) for round in range(5) for client in range(20)]
    seeds = {substream(start, step) for start in starts for step in range(50)}
    assert len(seeds) == 5 * 20 * 50 and all(0 <= s < 2**63 for s in seeds)


def test_generators_are_fresh_and_leave_torchs_alone():
    before = torch.get_rng_state()
    a, b = (torch.rand(5, generator=generator(0, "x", 1)) for _ in range(2))
    assert torch.equal(a, b) and torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(a, torch.rand(5, generator=generator(0, "y", 1)))


dtypes = st.sampled_from([torch.float32, torch.float64])


def leaf(seed, dtype=torch.float32):
    """An answer whose coordinates differ by orders of size, so that order shows in the bits."""
    draw = torch.Generator().manual_seed(seed)
    v = torch.randn(7, generator=draw) * 10.0 ** torch.randint(-6, 6, (7,), generator=draw)
    weight = 1.0 + seed % 5
    unweighted = rec(dc=v.flip(0).to(dtype), own=rec(t=float(seed)))
    delta, buffers = v.to(dtype), torch.zeros(0)
    return rec(
        n=1.0, weight=weight, delta=delta, unweighted=unweighted, buffers=buffers, mass=weight
    )


def pushed(answers, first=0):
    """The nodes of answers one by one, which may write into a delta of their own."""
    nodes = []
    for place, answer in enumerate(answers, first):
        push(nodes, 0, place, answer and answer._replace(delta=answer.delta.clone()))
    return nodes


def gathered(answers, edges):
    """Every range by itself, then all ranges' nodes, left to right."""
    out = []
    for a, b in itertools.pairwise([0, *sorted(edges), len(answers)]):
        nodes = pushed(answers[a:b], a)
        assert len(nodes) <= 2 * math.log2(max(len(answers), 2)) + 1
        for node in nodes:
            push(out, *node)
    return root(out)


def rows_of(answers):
    """Leaves as one record with a leading axis; numbers as doubles."""
    stacked = lambda *vs: (
        torch.stack(vs) if isinstance(vs[0], torch.Tensor) else torch.tensor(vs, dtype=torch.double)
    )
    return tree(stacked, *answers)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(1, 39), max_size=6), dtypes)
def test_rows_at_once_are_summed_as_one_by_one(count, edges, dtype):
    answers, stack = [leaf(n, dtype) for n in range(count)], []
    for a, b in itertools.pairwise(sorted({0, count, *(e for e in edges if e < count)})):
        rows = rows_of(answers[a:b])
        before = imprint(rows)
        push_rows(stack, a, rows)
        assert imprint(rows) == before, "the rows were written to"
    one_by_one = pushed(answers)
    assert [node[:2] for node in stack] == [node[:2] for node in one_by_one]
    assert all(same(a[2], b[2]) for a, b in zip(stack, one_by_one, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
    dtypes,
)
def test_any_cut_gives_the_same_bits(arrived, edges, dtype):
    answers = [leaf(n, dtype) if came else None for n, came in enumerate(arrived)]
    came = [a for a in answers if a is not None]
    before = imprint(*came)
    whole = gathered(answers, [])
    cut = gathered(answers, {e for e in edges if 0 < e < len(answers)})
    everywhere = gathered(answers, range(1, len(answers)))
    assert imprint(*came) == before, "a leaf was written to"
    if not came:
        assert whole is cut is everywhere is None
        return
    assert same(whole, cut) and same(whole, everywhere) and whole.n == len(came)
    exact = sum(a.delta.double() for a in came)
    scale = sum(a.delta.double().abs() for a in came)
    error = (whole.delta.double() - exact).abs() / scale
    assert float(error.max()) < 40 * torch.finfo(dtype).eps


def test_the_sum_of_seven_is_this_one():
    v = [leaf(n).delta for n in range(7)]
    want = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + v[6])
    assert torch.equal(gathered([leaf(n) for n in range(7)], [3]).delta, want)


@given(st.lists(st.floats(0.1, 100), max_size=60), st.integers(1, 12))
def test_ranges_cover_every_place_once_and_share_the_cost(costs, pieces):
    cuts = ranges(costs, pieces)
    assert [p for a, b in cuts for p in range(a, b)] == list(range(len(costs)))
    assert len(cuts) <= pieces and all(a < b for a, b in cuts)
    if costs:
        fair = sum(costs) / pieces
        assert max(sum(costs[a:b]) for a, b in cuts) <= 2 * fair + 2 * max(costs)


@pytest.mark.parametrize(
    ("costs", "pieces", "cuts"),
    [
        ([], 4, []),
        ([1, 1, 1, 1], 2, [(0, 2), (2, 4)]),
        ([3, 2, 1], 2, [(0, 1), (1, 3)]),  # the middle of the second is beyond a half
        ([1, 2, 1], 2, [(0, 2), (2, 3)]),  # the middle of the second is the half itself
        ([14, 1, 1], 3, [(0, 1), (1, 2), (2, 3)]),  # no range is empty
        ([1, 2, 3], 1, [(0, 3)]),
    ],
)
def test_a_range_ends_before_the_place_whose_middle_is_beyond_its_share(costs, pieces, cuts):
    assert ranges(costs, pieces) == cuts


def test_unweighted_gives_a_record_and_sees_no_gradients():
    class Mine(FedAvg):
        def unweighted(self, up, job):
            return rec(blind=float(job.full is None)) if up else [1.0]

    job = Job(1.0, 1.0, 0.1, 0.1, 0.0, 0.0, -1.0, full=lambda x: x)
    assert unweighted_of(Mine(), rec(a=1.0), job) == rec(blind=1.0)
    with pytest.raises(AuthorError, match=r"\(\) gives means of type list; make it with rec"):
        unweighted_of(Mine(), rec(), job)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_sees_every_number(bad):
    good = leaf(1)
    assert finite(good) and finite(rec(none=torch.zeros(0), count=torch.tensor([3])))
    assert finite(good._replace(delta=torch.tensor([3e38, 3e38]))), "though their sum is not"
    assert not finite(good._replace(weight=bad))
    assert not finite(good._replace(delta=torch.tensor([1.0, bad, 2.0])))
    assert not finite(good._replace(unweighted=rec(dc=torch.tensor([bad, -bad]))))


@pytest.fixture
def use():
    """A function that sets the number of threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


class Steps:
    """Steps that take so many seconds with one thread and with two, on a clock of their own. wrong:
    with two they have other bits.
    """

    def __init__(self, one, two, wrong):
        self.seconds, self.wrong, self.now, self.used = {1: one, 2: two}, wrong, 0.0, []
        self.threads = Threads(2, lambda: self.now)

    def do(self, shape="a"):
        def step(x):
            threads = torch.get_num_threads()
            self.used.append(threads)
            self.now += self.seconds[threads]
            return x + (1e-7 if threads > 1 and self.wrong else 0.0), x * torch.nan

        return self.threads.step(shape, step, (torch.ones(3),), lambda: self.used.append(0))[0]


@pytest.mark.parametrize(
    ("two", "wrong", "later"), [(0.9, False, 2), (0.5, True, 1), (0.99, False, 1)]
)
def test_a_shape_is_tried_once_and_takes_what_is_faster_with_equal_bits(two, wrong, later, use):
    use(1)
    steps = Steps(1.0, two, wrong)
    for _ in range(3):
        assert torch.equal(steps.do(), torch.ones(3))
    assert steps.used == [1, 0, 2, 0, 1, later, later] and torch.get_num_threads() == 1
    steps.do("b")
    assert steps.used[-5:] == [1, 0, 2, 0, 1]


def test_a_step_that_writes_into_its_input_is_done_once_on_it(use):
    use(1)
    x = torch.ones(3)
    out = Threads(2).step("a", lambda v: v.add_(1), (x,), lambda: None)
    assert out is x and x.tolist() == [2.0] * 3


@pytest.mark.parametrize("method", [FedAvg(), Scaffold()])
def test_a_run_with_threads_has_the_bits_and_the_costs_of_one(method, monkeypatch, use):
    monkeypatch.setattr(vectorised, "processors", lambda: 2)
    monkeypatch.setattr(recorded, "FASTER", 1e9)
    used, real, ends = set(), Threads.step, []

    def seen(self, shape, do, *rest):
        def step(*given):
            used.add((self.number, torch.get_num_threads()))
            return do(*given)

        return real(self, shape, step, *rest)

    monkeypatch.setattr(Threads, "step", seen)
    for number in (1, 2):
        use(number)
        ends.append(small(method, engine=Vectorised(3), model=lambda: nn.Linear(5, 3)).run())
        assert torch.get_num_threads() == number
    results_agree(*ends)
    assert used == {(1, 1), (2, 1), (2, 2)}


class CountsThreads(FedAvg):
    """Its server's state says how many threads server_step() had."""

    def server_init(self, x, up):
        return rec(x=x, threads=0.0)

    def server_step(self, srv, up, rnd):
        return rec(x=srv.x + up.delta, threads=float(torch.get_num_threads()))


@pytest.mark.parametrize(("values", "wanted"), [(10**7, 1), (102, 2)])
def test_the_server_takes_one_thread_for_a_model_that_gains_nothing(
    values, wanted, monkeypatch, use
):
    """Below about ten million values an operation waits longer for a busy core than it gains."""
    monkeypatch.setattr("fedloom.engines.base.SHARED_FROM", values)
    use(2)
    assert small(CountsThreads(), rounds=1).run().state.threads == wanted
    assert torch.get_num_threads() == 2


needed = pytest.mark.skipif(not onednn.has_onednn(), reason="this torch has no oneDNN")


@pytest.fixture
def all_sizes(monkeypatch):
    """Every product is large enough."""
    monkeypatch.setattr(onednn, "LEAST", 1)


@needed
@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("shape", [(4, 30), (2, 3, 30), (1, 30)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_and_its_gradients_are_those_of_doubles(shape, bias):
    torch.manual_seed(0)
    layer, x = nn.Linear(30, 20, bias=bias), torch.randn(shape, requires_grad=True)
    exact = nn.Linear(30, 20, bias=bias).double()
    exact.load_state_dict(layer.state_dict())
    twin = x.detach().double().requires_grad_()
    weights = torch.randn(*shape[:-1], 20)
    out, wanted = onednn.in_onednn(layer, x), exact(twin)
    assert type(out.grad_fn).__name__ == "_LinearBackward"
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=1e-5)
    (out * weights).sum().backward()
    (wanted * weights).sum().backward()
    for ours, theirs in [(x, twin), *zip(layer.parameters(), exact.parameters(), strict=True)]:
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=0, atol=1e-5)


@needed
def test_small_and_other_products_stay_torchs(monkeypatch):
    layer, x = nn.Linear(6, 5), torch.randn(4, 6)
    stays = lambda x: onednn.in_onednn(layer, x).grad_fn.name().startswith("Addmm")
    layer.double()
    assert stays(x.double())
    layer.float()
    for least, stay in ((4 * 6 * 5, False), (4 * 6 * 5 + 1, True)):
        monkeypatch.setattr(onednn, "LEAST", least)
        assert stays(x) is stay
    assert onednn.gains(layer, 5) and not onednn.gains(layer, 4)
    assert not onednn.gains(nn.Conv2d(3, 3, 3), 100)


@pytest.mark.usefixtures("all_sizes")
def test_frozen_layers_get_no_gradient_and_evaluation_is_as_training():
    layer, x = nn.Linear(6, 5).requires_grad_(False), torch.randn(4, 6, requires_grad=True)
    if onednn.has_onednn():
        onednn.in_onednn(layer, x).sum().backward()
        torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(4, 6))
        assert layer.weight.grad is None
        assert not onednn.in_onednn(layer, x.detach()).requires_grad
    net, x = Net(nn.Linear(6, 5)), x.detach()
    net.onednn = onednn.has_onednn()
    net.bind(net.init())
    torch.testing.assert_close(net.evaluated(x), net(net.init(), x), rtol=0, atol=1e-6)


@needed
def test_a_run_in_onednn_is_the_run_rounded_otherwise(engine_of):
    torch.manual_seed(1)
    clients = [(torch.randn(8, 1024), torch.randint(0, 3, (8,))) for _ in range(3)]
    model = mlp(1024, (1024,), 3)  # with batches of 4 just large enough
    local = Local(epochs=1, batch=4, lr=0.1)
    parts = {"algorithm": FedAvg(), "model": model, "data": from_clients(clients), "metrics": {}}

    def weights(engine):
        run = Experiment(**parts, local=local, rounds=2, engine=engine)
        return [*trace(run, 2)][-1].state.srv.x.clone()

    plain, ours, again = map(weights, ("serial", "serial+onednn", "serial+onednn"))
    assert torch.equal(ours, again)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-6)
    assert torch.equal(ours, weights(engine_of("workers:2+onednn")))


def test_the_engine_says_its_name_and_what_it_does_not_go_with(monkeypatch):
    monkeypatch.setattr("fedloom.engines.has_onednn", lambda: True)
    for name in ("serial+onednn", "workers:2+onednn"):
        assert make_engine(name).text == name
    assert Workers(2, onednn=True).in_process().text == "serial+onednn"
    assert bits_of("workers:2+onednn") == "serial+onednn" != bits_of("workers:2")
    assert bits_of(Serial(onednn=True).text) == "serial+onednn"
    for name, says in (
        ("vectorised:3+onednn", "or serial and workers with onednn"),
        ("serial+onednx", "as in 'workers:2+onednn'"),
        ("workers:2+serial", "as in 'workers:2+onednn'"),
        ("serial+vectorised:2", "as in 'workers:2+onednn'"),
    ):
        refused(lambda name=name: make_engine(name), says, kind=ConfigError)
    monkeypatch.setattr("fedloom.engines.has_onednn", lambda: False)
    says = "'workers:2+onednn' ... take 'workers:2'"
    refused(lambda: make_engine("workers:2+onednn"), says, kind=ConfigError)
