"""Images of digits like MNIST's, made from a seed: the examples need no download. A row of pixels
in [0, 1] for each image."""

import torch

# 5 x 7 pixels of each digit, a number a row.
FONT = [
    "0e1113151911 0e",
    "040c04040404 0e",
    "0e1101020408 1f",
    "1f0204020111 0e",
    "02060a121f02 02",
    "1f101e010111 0e",
    "0608101e1111 0e",
    "1f0102040808 08",
    "0e11110e1111 0e",
    "0e11110f0102 0c",
]
SIDE, SCALE = 28, 3


def glyph(digit):
    rows = bytes.fromhex(FONT[digit])
    bits = torch.tensor(
        [[row >> (4 - x) & 1 for x in range(5)] for row in rows], dtype=torch.float32
    )
    return bits.repeat_interleave(SCALE, 0).repeat_interleave(SCALE, 1)


def make(count, seed=0):
    """Returns (images, labels): digits that are shifted, of different brightness, under noise."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=draw)
    images = torch.rand(count, SIDE, SIDE, generator=draw) * 0.5
    glyphs = [glyph(digit) for digit in range(10)]
    height, width = glyphs[0].shape
    tops = torch.randint(SIDE - height + 1, (count,), generator=draw)
    lefts = torch.randint(SIDE - width + 1, (count,), generator=draw)
    bright = torch.rand(count, generator=draw) * 0.5 + 0.3
    for i in range(count):
        top, left = int(tops[i]), int(lefts[i])
        images[i, top : top + height, left : left + width] += bright[i] * glyphs[int(labels[i])]
    return images.clamp(0, 1).reshape(count, SIDE * SIDE), labels


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(SIDE * SIDE, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
