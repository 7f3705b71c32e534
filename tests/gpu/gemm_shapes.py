"""Shapes of `gemm` that the driver for one GPU runs, and what it knows of them without a GPU."""

from __future__ import annotations

import itertools
import random

from driver_kernel import Shape

VERIFY_SHAPES: list[Shape] = [
    *((64, 64, 64), (64, 64, 16384), (128, 256, 64), (256, 256, 256), (512, 512, 512)),
    *((1, 8, 8), (1, 4096, 4096), (64, 4096, 4096), (4096, 64, 4096), (1000, 1000, 1000)),
    *((1024, 768, 320), (130, 8, 8), (257, 136, 72), (2, 24, 40), (63, 264, 1032)),
    *((129, 67, 33), (1, 300, 64), (511, 513, 509), (257, 129, 1), (3, 1, 33), (776, 328, 200)),
    *((1024, 1024, 8192), (2048, 2048, 2048), (3000, 2056, 1048), (4096, 4096, 4096)),
    *((8192, 64, 16384), (64, 16384, 64), (12288, 512, 512)),
]
SPACE_SHAPES: list[Shape] = [(300, 520, 2056), (64, 256, 4096), (512, 1024, 1024)]
TIME_SHAPES: list[Shape] = [
    *((64, 64, 64), (64, 64, 1024), (64, 64, 16384), (64, 1024, 64), (256, 256, 256)),
    *((128, 512, 2048), (64, 4096, 4096), (256, 4096, 4096), (64, 16384, 64), (512, 512, 512)),
    *((512, 512, 8192), (1024, 1024, 1024), (1024, 1024, 16384), (16384, 64, 1024)),
    *((128, 128, 16384), (256, 12288, 2048), (1024, 64, 8192), (64, 8192, 8192)),
    *((16384, 64, 16384), (64, 16384, 16384), (512, 8192, 4096), (8192, 512, 2048)),
    *((2048, 2048, 2048), (2048, 2048, 256), (4096, 1024, 512), (4096, 4096, 1024)),
    *((2048, 12288, 4096), (4096, 4096, 4096), (16384, 16384, 64), (12288, 12288, 1024)),
    *((128, 16384, 12288), (8192, 8192, 8192), (16384, 16384, 4096), (16384, 16384, 16384)),
]
_TILE_SIZES = "64x64 128x64 64x128 128x128 128x192 192x64 192x128 64x192 128x256"
TILES = {
    number: (int(rows), int(columns))
    for number, (rows, _, columns) in enumerate((s.partition("x") for s in _TILE_SIZES.split()), 2)
}
"""Rows and columns of the split tiles of gemm_sm90.cu."""
FLOPS, BYTES = 790e12, 4.3e12
"""Rates that this kind of GPU reaches, per second: products of bf16 or fp16, and main memory."""


def candidates(shape: Shape) -> list[dict[str, int]]:
    """Values of the tile tunables that may be quick for a shape, as the kernel's rule has them."""
    m, n, k = shape
    found: list[dict[str, int]] = [{"TILE": 1}, {"TILE": 11}]
    steps = -(-k // 64)
    for tile, (rows, columns) in TILES.items():
        if (rows > 64 and m * 2 <= rows) or (columns > 64 and n * 2 <= columns):
            continue
        tiles = -(-m // rows) * -(-n // columns)
        if tiles > 600 and rows * columns < 1 << 14:
            continue
        for slices, parts, share in itertools.product((1, 2, 4, 8), (1, 2, 4, 8), (1, 2)):
            ranges = slices * parts
            if share > 1 and (columns % 128 or m <= rows or share * slices > 8):
                continue
            if ranges > 1 and (ranges > steps or tiles * ranges > 264):
                continue
            if parts > (8 if slices * share == 8 else 2):
                continue
            if -(-steps // ranges) > 8 and tiles * ranges * 2 < min(128, tiles * steps, tiles * 32):
                continue
            found.append({"TILE": tile, "SLICES": slices, "PARTS": parts, "SHARE": share})
    return found


def grid_shapes(count: int) -> list[Shape]:
    """Shapes of the grid, as many from every part of it when it is in the order of work."""
    sizes = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
    grid: list[Shape] = [(m, n, k) for m in sizes for n in sizes for k in sizes]
    shapes = sorted(grid, key=lambda s: (s[0] * s[1] * s[2], s))
    drawn = random.Random(7)
    return [
        drawn.choice(shapes[i * len(shapes) // count : (i + 1) * len(shapes) // count])
        for i in range(count)
    ]


def bound_us(shape: Shape) -> float:
    """The least time by arithmetic and by main memory."""
    m, n, k = shape
    return max(2 * m * n * k / FLOPS, 2 * (m * k + k * n + m * n) / BYTES) * 1e6
