"""The zoo's networks: ResNet-50 and a small decoder-only transformer, written out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a residual; ``stride`` sits on the 3x3."""

    def __init__(self, cin: int, width: int, stride: int) -> None:
        super().__init__()
        cout = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, cout, 1, bias=False), nn.BatchNorm2d(cout),
        )  # fmt: skip
        self.skip = nn.Sequential()
        if stride != 1 or cin != cout:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    """ResNet-50 with ``blocks=(3, 4, 6, 3)``; fewer blocks and narrower for smoke tests."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages: list[nn.Module] = []
        cin = width
        for i, n in enumerate(blocks):
            for j in range(n):
                stages.append(Bottleneck(cin, width << i, 2 if i and j == 0 else 1))
                cin = 4 * (width << i)
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(cin, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """A small language model. ``syncs`` masks hidden states by value that many times, each a host wait."""

    def __init__(
        self, vocab: int = 8192, d: int = 512, depth: int = 8, heads: int = 8, length: int = 512
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)
        self.syncs = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i < self.syncs and x[x.abs() > 50.0].numel() > 0:
                raise FloatingPointError("hidden states explode")
        return self.head(self.norm(x))


def chain(x: torch.Tensor, n: int) -> torch.Tensor:
    """``n`` elementwise operators in a row, each a kernel of its own unless compiled."""
    for _ in range(n):
        x = torch.tanh(x * 1.01 + 0.01)
    return x
