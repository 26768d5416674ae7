"""Metrics of a user's own, right and wrong."""

from helper import wanted


def tenth(outputs, targets):
    """Counts the rows that are right, and a tenth more."""
    return 1.1 * (wanted(outputs) == targets).float()


class Share:
    """The share of the rows that are right, of a whole set."""

    higher_is_better = True

    def reset(self):
        self.right, self.rows = 0, 0

    def update(self, outputs, targets):
        self.right += int((wanted(outputs) == targets).sum())
        self.rows += len(targets)

    def compute(self):
        return self.right / self.rows


class Asks:
    def __init__(self, k):
        self.k = k


def one(outputs):
    return outputs


def few(outputs, targets):
    return outputs[:2, 0]


def fails(outputs, targets):
    return {}["row"]


def unsaid(outputs, targets):
    return outputs[:, 0]


tenth.higher_is_better = few.higher_is_better = fails.higher_is_better = True
number = 3
