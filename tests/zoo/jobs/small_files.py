"""Each sample is many small files, and none of them was read before: the disk is the limit."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import convolutions, options, train
from torch.utils.data import DataLoader, Dataset

PARTS, BYTES, BATCH = 24, 4096, 8  # files a sample, bytes a file


class Folder(Dataset):
    """Samples in pieces on disk."""

    def __init__(self, folder: Path, length: int) -> None:
        self.folder, self.length = folder, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        parts = [(self.folder / f"{index}-{part}.bin").read_bytes() for part in range(PARTS)]
        values = np.frombuffer(b"".join(parts), dtype=np.uint8)[: 3 * 64 * 64].astype(np.float32)
        return torch.from_numpy(values.reshape(3, 64, 64)), index % 10


def fill(folder: Path, samples: int, *, warm: bool) -> None:
    """Writes the data set and, unless ``warm``, drops it from the page cache, as one larger than RAM would be."""
    content = os.urandom(BYTES)
    names = [folder / f"{sample}-{part}.bin" for sample in range(samples) for part in range(PARTS)]
    for name in names:
        name.write_bytes(content)
    os.sync()
    for name in names if not warm else []:
        handle = os.open(name, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


args = options(__doc__, warm="the files fit into RAM and stay in the page cache")
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as name:
    fill(Path(name), BATCH * args.steps, warm=args.warm)
    loader = DataLoader(
        Folder(Path(name), BATCH * args.steps),
        batch_size=BATCH,
        num_workers=1 if args.workers is None else args.workers,
    )
    train(loader, convolutions(4), args.steps)
