"""Texts that are read on: streams side by side, and the network's state carried along them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedloom import FedAvg, Local
from fedloom.data import from_clients
from fedloom.errors import CompositionError
from fedloom.federation.federation import Federation
from fedloom.models import lstm_language_model, lstm_shakespeare
from fedloom.objectives import CrossEntropy
from support.federations import READ_ON, STREAMS, VOCABULARY, reading, stream
from tiny import small

SIZES, WORDS, BATCH, STEPS = STREAMS, VOCABULARY, READ_ON.batch, READ_ON.steps


def data(clients=range(4)):
    return from_clients([stream(i) for i in clients], test=stream(0), dtype=torch.float64)


def experiment(**changes):
    torch.manual_seed(6)
    model = lstm_language_model(WORDS, 4, 4, dropout=0.0).double()
    return reading(**({"model": model} | changes))


# ------------------------------------------------------------------------------------------ batches
@pytest.mark.parametrize("client", range(4))
def test_batches_are_the_next_windows_of_streams_of_equal_length(client):
    fed = Federation(data(), Local(steps=STEPS, batch=BATCH, order="text"))
    n, first = SIZES[client], sum(SIZES[:client])
    streams = min(BATCH, n)
    length = n // streams
    got = [b.tolist() for round in range(5) for b in fed.batches(client, round)]
    want = [[first + s * length + k % length for s in range(streams)] for k in range(5 * STEPS)]
    assert got == want
    assert [len(b) for b in fed.batches(client, 1)] == list(fed.sizes(client))


def test_a_pass_is_all_whole_batches():
    fed = Federation(data(), Local(epochs=1, batch=BATCH, order="text"))
    assert [fed.steps(i) for i in range(4)] == [5, 4, 2, 1]
    assert [fed.first(i, 3) for i in range(4)] == [0, 0, 0, 0]


# ------------------------------------------------------------------------------- a plain torch loop
def plain(client, rounds, visits=None, carried=True):
    """One client's training as one writes it by hand: hidden state detached and handed on."""
    torch.manual_seed(6)
    net = lstm_language_model(WORDS, 4, 4, dropout=0.0).double()
    inputs, targets = (torch.from_numpy(v) for v in stream(client))
    streams = min(BATCH, SIZES[client])
    length = SIZES[client] // streams
    state, last = None, -1
    for round in visits or range(rounds):
        if last != round - 1:
            state = None
        last = round
        for k in range(round * STEPS, (round + 1) * STEPS):
            rows = torch.arange(streams) * length + k % length
            if state is None or k % length == 0 or not carried:
                state = net.zeros(streams)
            outputs, state = net((inputs[rows], state))
            state = tuple(v.detach() for v in state)
            loss = F.cross_entropy(outputs.flatten(0, 1), targets[rows].flatten())
            net.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.25)
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.5 * p.grad
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("client", range(4))
def test_one_client_trains_as_a_plain_loop_does(client, engine):
    run = experiment(data=data([client]), engine=engine).run()
    torch.testing.assert_close(run.state.x, plain(client, 4), rtol=0, atol=1e-9)
    if client < 2:  # there are passes of more than one batch, so the state matters
        assert not torch.allclose(run.state.x, plain(client, 4, carried=False), atol=1e-6)


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
def test_who_missed_a_round_begins_from_zeros(engine):
    # client 1 does nothing but move the server's model: leave it with a step of length nothing
    class Only(FedAvg):
        """FedAvg that keeps client 0's answers alone."""

        def finish(self, x, loc, msg, mem, job):
            up, own = super().finish(x, loc, msg, mem, job)
            return up._replace(delta=up.delta * (job.weight == SIZES[0])), own

    run = experiment(algorithm=Only(), engine=engine, cohort=[[0], [1], [0], [0]]).run()
    want = plain(0, 4, visits=[0, 2, 3])
    torch.testing.assert_close(run.state.x, want, rtol=0, atol=1e-9)
    assert not torch.allclose(run.state.x, plain(0, 4, visits=[0, 2], carried=True), atol=1e-6)


# -------------------------------------------------------------------------------------- the engines


# ------------------------------------------------------------------------------------------ refused
def test_a_state_needs_batches_that_follow_each_other():
    local = Local(steps=STEPS, batch=BATCH)
    with pytest.raises(CompositionError, match=r"LanguageModel and local.order = shuffled.*= text"):
        experiment(local=local).run()


def test_a_model_without_a_state_is_refused():
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)).double()
    with pytest.raises(CompositionError, match=r"LanguageModel and Sequential: .* no state"):
        experiment(model=model).run()
    assert experiment(model=model, objective=CrossEntropy(), rounds=1).run().last > 0


def test_a_model_of_one_row_per_text_is_refused():
    with pytest.raises(CompositionError, match=r"gives \[3, 7\]; a language model gives"):
        experiment(model=lstm_shakespeare(WORDS, 4, 4).double()).run()


def test_the_order_may_be_anothers_too():
    run = small(FedAvg(), local=Local(epochs=1, batch=4, order="text")).run()
    assert run.history[-1]["answered"] == 4
