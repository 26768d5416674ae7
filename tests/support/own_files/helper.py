"""What a user's other files take from this one."""


def pull(mu, x, other):
    return mu * (x - other)


def wanted(outputs):
    return outputs.argmax(1)
