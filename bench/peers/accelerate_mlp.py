#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of bench_mlp as a user of Python's Accelerate writes it: MLP 784-64-64-10, batch 64, SGD.

Takes its first step at once, then steps in blocks as the driver asks (the protocol is in README.md),
with one thread a process; for two processes, start it under torchrun. The C++ program runs the same
loop; neither is tuned beyond what a user would do.
"""

import argparse
import os
import sys
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy

BATCH = 64
SAMPLES = 200 * BATCH


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(784, 64)
        self.l2 = nn.Linear(64, 64)
        self.l3 = nn.Linear(64, 10)

    def forward(self, x):
        return self.l3(torch.relu(self.l2(torch.relu(self.l1(x)))))


class Synthetic(torch.utils.data.Dataset):
    """Samples in two tensors; a batch is gathered rows, not samples that are stacked."""

    def __init__(self):
        self.x = torch.randn(SAMPLES, 784)
        self.y = torch.randint(0, 10, (SAMPLES,))

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.x[index], self.y[index]

    def __getitems__(self, indices):
        rows = torch.tensor(indices)
        return self.x[rows], self.y[rows]


def as_it_is(batch):
    return batch


def batches(loader, resident):
    """Batches without end: read through the prepared loader, or drawn once and kept."""
    kept = list(loader) if resident else loader
    while True:
        yield from kept


def steps(accelerator, resident):
    """A generator that takes one training step each time it is asked."""
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(
        Synthetic(), batch_size=BATCH, shuffle=True, collate_fn=as_it_is
    )
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for x, y in batches(loader, resident):
        with accelerator.accumulate(model):
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        yield loss


def asked(accelerator):
    """The lengths of the blocks: the main process reads them, the others hear of them; 0 ends."""
    while True:
        count = torch.zeros((), dtype=torch.int64)
        if accelerator.is_main_process:
            words = sys.stdin.readline().split()
            count.fill_(int(words[1]) if words[:1] == ["run"] else 0)
        if accelerator.num_processes > 1:
            torch.distributed.broadcast(count, 0)
        if count == 0:
            return
        yield int(count)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--resident", action="store_true", help="keep the batches: no loader")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    step = steps(accelerator, arguments.resident)
    say = print if accelerator.is_main_process else lambda *words, **options: None
    assert next(step).isfinite()
    say("first_step", flush=True)
    for count in asked(accelerator):
        start = time.perf_counter()
        for _ in range(count):
            next(step)
        say("block", count, f"{(time.perf_counter() - start) / count * 1e6:.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
