# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""The setting that every golden trace shares: model, data, seeds and the order of the samples.

Plain PyTorch, no training loop and no Accelerate: those are in make_golden.py, which comes after
this in the data flow. The C++ side repeats this file draw for draw, so the order of the statements
that draw random numbers matters.
"""

import torch
from torch import nn
from torch.nn import functional

FEATURES, HIDDEN, CLASSES = 20, 32, 4
BATCH = 16
DROP = 0.1
INIT_SEED, DATA_SEED, TRAIN_SEED = 42, 43, 44

IN_WORDS = [
    "one thread on CPU; 32-bit floats unless the trace says otherwise",
    "torch.manual_seed(42); l1 = Linear(20, 32), l2 = Linear(32, 32), l3 = Linear(32, 4)",
    "torch.manual_seed(43); x = randn(samples, 20); y = randint(0, 4, samples)",
    "torch.manual_seed(44 + rank); then prepare and train; nothing else draws from that generator",
    "forward: l3(drop(relu(l2(drop(relu(l1(x)))))))",
    "drop tensor_bernoulli: h * bernoulli(full(shape of h, 0.9), in float32).to(type of h) / 0.9",
    "drop module: nn.Dropout(0.1), whose kernel draws otherwise on Intel's CPUs",
    "loss: cross entropy, mean over the batch",
    "each epoch: one int64 random_() from the default generator (the loader's base seed, not used)",
    "order: randperm(samples) from a new generator seeded with 44 + epoch, cut in batches of 16",
    "the last batch of an epoch may be short on one rank",
    "several ranks: batch k goes to rank k mod ranks",
    "several ranks: the last round is filled up with the first samples of the epoch",
    "losses, batches: a list per rank, an entry per micro-batch; the rest is equal on all ranks",
    "lr, grad_norms: one entry per optimizer step, before it; grad_norms: before clipping",
    "first_draws: each after seeding with 44 + rank (randperm: a generator with 44)",
    "draws_after: randint(0, 2**31 - 1, 2) from the default generator when the run is over",
    "checksums: sum and sum of magnitudes of each parameter, in 64 bits",
]


class PortableDropout(nn.Module):
    """Dropout that draws the same bits on every CPU.

    A probability given as a number lets Intel's CPUs draw through MKL, from a stream of its own;
    one given as a tensor does not.
    """

    def forward(self, h):
        keep = torch.bernoulli(torch.full(h.shape, 1 - DROP))
        return h * keep.to(h.dtype) / (1 - DROP)


class Mlp(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.l1 = nn.Linear(FEATURES, HIDDEN)
        self.l2 = nn.Linear(HIDDEN, HIDDEN)
        self.l3 = nn.Linear(HIDDEN, CLASSES)
        self.drop = nn.Dropout(DROP) if drop == "module" else PortableDropout()

    def forward(self, x):
        h = self.drop(functional.relu(self.l1(x)))
        h = self.drop(functional.relu(self.l2(h)))
        return self.l3(h)


def model_and_data(samples, drop="tensor_bernoulli", rank=0):
    """Everything before the training; the third tensor of the data numbers the samples."""
    torch.manual_seed(INIT_SEED)
    model = Mlp(drop)
    torch.manual_seed(DATA_SEED)
    x = torch.randn(samples, FEATURES)
    y = torch.randint(0, CLASSES, (samples,))
    torch.manual_seed(TRAIN_SEED + rank)
    return model, torch.utils.data.TensorDataset(x, y, torch.arange(samples))


def order_of(samples, epoch):
    generator = torch.Generator().manual_seed(TRAIN_SEED + epoch)
    return torch.randperm(samples, generator=generator).tolist()


def rounds_of(samples, epoch, ranks):
    """The batches of one epoch by sample number: a list of rounds, each a batch per rank."""
    order = order_of(samples, epoch)
    per_round = BATCH * ranks
    missing = -samples % per_round if ranks > 1 else 0
    order += order[:missing]
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    return [batches[i : i + ranks] for i in range(0, len(batches), ranks)]


def hand_epochs(data):
    """The loader of a hand-written loop on one process: (x, y, numbers, last of its epoch?)."""
    x, y, _ = data.tensors
    epoch = 0
    while True:
        torch.empty((), dtype=torch.int64).random_()
        batches = [batch for (batch,) in rounds_of(len(data), epoch, 1)]
        for k, batch in enumerate(batches):
            yield x[batch], y[batch], batch, k + 1 == len(batches)
        epoch += 1


def checksums(model):
    """Sum and sum of magnitudes of each parameter, added up in 64 bits."""
    return {
        name: [p.double().sum().item(), p.double().abs().sum().item()]
        for name, p in model.named_parameters()
    }


def first_weights(model):
    return {name: p.detach().flatten()[:4].tolist() for name, p in model.named_parameters()}


def first_draws(rank=0):
    """What the generators give right after seeding, each line after a seeding of its own."""

    def seeded(draw):
        torch.manual_seed(TRAIN_SEED + rank)
        return draw()

    state = torch.get_rng_state()
    draws = {
        "base_seed": seeded(lambda: torch.empty((), dtype=torch.int64).random_().item()),
        "tensor_bernoulli": seeded(lambda: bits(torch.bernoulli(torch.full((64,), 1 - DROP)))),
        "module": seeded(lambda: bits(functional.dropout(torch.ones(64), DROP, training=True))),
        "rand": seeded(lambda: torch.rand(4).tolist()),
        "randperm": order_of(16, 0),
    }
    torch.set_rng_state(state)
    return draws


def bits(tensor):
    return "".join("1" if value else "0" for value in tensor.tolist())
