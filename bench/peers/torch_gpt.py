#!/usr/bin/env python3
# SPDX-FileCopyrightText: The accel authors
# SPDX-License-Identifier: Apache-2.0
"""The step of bench_gpt as a user of PyTorch writes it, under DDP, FSDP1 or FSDP2, a unit a block.

The same model, constructed in the same order from the same seed, and the same batches: the losses
are to be those of bench_gpt. Protocol and start are those of accelerate_mlp.py.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

BLOCKS, WIDTH, HEADS, WORDS, TIME, BATCH = 6, 512, 8, 8000, 64, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, steps, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, steps, 3, HEADS, width // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, steps, width))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(TIME, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(step, rank):
    numbers = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, WORDS, (BATCH, TIME + 1), generator=numbers)


def distributed(model, strategy):
    """The model under a strategy of PyTorch's."""
    if strategy == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if strategy == "fsdp1":
        from functools import partial

        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
        return FullyShardedDataParallel(
            model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu")
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def steps_of(strategy):
    """A generator that takes one training step each time it is asked, and yields its loss."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = distributed(Gpt(), strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.01)
    step = 0
    while True:
        ids = tokens(step % 8, rank)
        loss = cross_entropy(model(ids[:, :-1]).reshape(-1, WORDS), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        yield step, loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--strategy", choices=["ddp", "fsdp1", "fsdp2"], default="fsdp2")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_main = dist.get_rank() == 0
    say = print if is_main else lambda *words, **options: None
    step = steps_of(arguments.strategy)
    number, loss = next(step)
    say("first_step", flush=True)
    while True:
        count = torch.zeros((), dtype=torch.int64)
        if is_main:
            words = sys.stdin.readline().split()
            while words[:1] == ["loss"]:
                print("loss", number, f"{loss:.6f}", flush=True)
                words = sys.stdin.readline().split()
            count.fill_(int(words[1]) if words[:1] == ["run"] else 0)
        dist.broadcast(count, 0)
        if count == 0:
            break
        start = time.perf_counter()
        for _ in range(int(count)):
            number, loss = next(step)
        say("block", int(count), f"{(time.perf_counter() - start) / int(count) * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
