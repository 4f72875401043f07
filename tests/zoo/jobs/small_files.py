"""Each sample is many small files, and none of them is in the page cache: the disk is the limit."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import convolutions, options, train
from torch.utils.data import DataLoader, Dataset

PARTS, BYTES = 24, 4096  # files a sample, bytes a file


class Folder(Dataset):
    """Samples in pieces on disk; ``cold`` drops each piece from the cache, as a data set larger than RAM does."""

    def __init__(self, folder: Path, length: int, cold: bool) -> None:
        self.folder, self.length, self.cold = folder, length, cold

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        parts = []
        for part in range(PARTS):
            handle = os.open(self.folder / f"{index % 64}-{part}.bin", os.O_RDONLY)
            try:
                if self.cold:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                parts.append(os.read(handle, BYTES))
            finally:
                os.close(handle)
        values = np.frombuffer(b"".join(parts), dtype=np.uint8)[: 3 * 64 * 64].astype(np.float32)
        return torch.from_numpy(values.reshape(3, 64, 64)), index % 10


args = options(__doc__, warm="the files fit into RAM and stay in the page cache")
torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    for sample in range(64):
        for part in range(PARTS):
            (folder / f"{sample}-{part}.bin").write_bytes(os.urandom(BYTES))
    os.sync()
    data = Folder(folder, 8 * args.steps, cold=not args.warm)
    loader = DataLoader(data, batch_size=8, num_workers=1 if args.workers is None else args.workers)
    train(loader, convolutions(4), args.steps)
