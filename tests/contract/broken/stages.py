"""Stages that break their contract, one fault each."""

from __future__ import annotations

import torch

from fedloom.core.vector import rec, zeros
from fedloom.stage import Stage

SENT = []


def changed(done, delta):
    return done._replace(up=done.up._replace(delta=delta))


class WritesIntoUpdate(Stage):
    def send(self, done, own, received, at):
        done.up.delta.mul_(0.5)
        return done, own


class DrawsItself(Stage):
    def send(self, done, own, received, at):
        return changed(done, done.up.delta + torch.randn_like(done.up.delta)), own


class KeepsSent(Stage):
    def send(self, done, own, received, at):
        SENT.append(float(done.up.delta.sum()))
        return done, own


class CountsAcrossRounds(Stage):
    """Its numbers go on where a stopped run's process ended."""

    rounds = 0

    def announce(self, msg, state, at):
        type(self).rounds += 1
        return msg._replace(x=msg.x + 0.01 * type(self).rounds), state


class KeepsHalfPrecision(Stage):
    name = "halves"

    def client_init(self, x, received):
        return rec(sent=zeros(x).float())

    def send(self, done, own, received, at):
        return done, rec(sent=done.up.delta.float())


class BranchesInAStep(Stage):
    def along(self, d, x, job):
        return 2 * d if d.norm() > 1 else d


STAGES = (
    (WritesIntoUpdate, "arguments stay as they are", r"send\(\) changes .*done\.up\.delta"),
    (DrawsItself, "the same answer twice", r"send\(\)"),
    (KeepsSent, "nothing kept on itself", "SENT"),
    (CountsAcrossRounds, "nothing kept on itself", "rounds"),
    (KeepsHalfPrecision, "types of what is kept", "'client_0.*' as float32"),
    (BranchesInAStep, "engine vectorised:3", "branch|vmap"),
)
