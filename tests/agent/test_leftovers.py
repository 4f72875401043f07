"""What the agent says beside steps and batches: collections, the sampler, reads, torch's switches, the data set's source."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracelens.agent import environment
from tracelens.agent.collector import Collections
from tracelens.agent.fetch import DelayFile, ProcFiles
from tracelens.agent.indices import Indices
from tracelens.agent.portrait import _source

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, Sampler, Subset  # noqa: E402
from torch.utils.data import dataloader as module  # noqa: E402


def test_a_collection_is_timed_and_taken_once() -> None:
    collections = Collections()
    assert collections.take() is None  # nobody counts: unknown, not zero
    collections.start()
    collections.start()
    collections.take()
    gc.collect()
    found = collections.take()
    assert found is not None
    assert found[0] > 0
    assert found[1] >= 1
    assert collections.take() == (0.0, 0) or gc.isenabled()
    collections.stop()
    assert collections.take() is None
    assert not [call for call in gc.callbacks if getattr(call, "__self__", None) is collections]


class Slow(Sampler):  # type: ignore[misc]
    """20 ms to begin, 2 ms an index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        time.sleep(0.02)
        for index in range(self.count):
            time.sleep(0.002)
            yield index


class Numbers(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


class Agent:
    on = True
    worker = False


@pytest.mark.parametrize("workers", [0, 1])
def test_the_samplers_time_is_told_apart(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = module._BaseDataLoaderIter
    monkeypatch.setattr(kind, "_next_index", kind._next_index)
    indices = Indices(Agent())  # type: ignore[arg-type]
    indices.install(kind)
    iterator = iter(DataLoader(Numbers(), batch_size=3, sampler=Slow(12), num_workers=workers))
    before = indices.take(iterator)
    # workers get their first indices while the iterator is made
    assert bool(before) == bool(workers)
    first = next(iterator)
    assert first.tolist() == [0, 1, 2]
    after = indices.take(iterator)
    begun = before or after
    assert begun["sampler_ms"] >= 20
    assert begun["sampler_bytes"] is None or begun["sampler_bytes"] >= 0
    assert [batch.tolist() for batch in iterator] == [[3, 4, 5], [6, 7, 8], [9, 10, 11]]
    rest = indices.take(iterator)
    assert "sampler_bytes" not in rest
    assert rest["sampler_ms"] >= (0 if workers else 18)


def test_a_new_pass_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = module._BaseDataLoaderIter
    monkeypatch.setattr(kind, "_next_index", kind._next_index)
    indices = Indices(Agent())  # type: ignore[arg-type]
    indices.install(kind)
    loader = DataLoader(Numbers(), batch_size=6, num_workers=1, persistent_workers=True)
    for _ in range(2):
        iterator = iter(loader)
        assert "sampler_bytes" in indices.take(iterator)
        assert len(list(iterator)) == 2
        assert "sampler_bytes" not in indices.take(iterator)


def test_reads_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 10_000)
    for files in (ProcFiles(), DelayFile()):
        before = files.read()
        if before["rchar"] is None:
            pytest.skip("this kernel does not count reads")
        with path.open("rb", buffering=0) as file:
            for _ in range(5):
                file.read(1000)
        after = files.read()
        # the reader's own reads are not the job's
        assert after["rchar"] - before["rchar"] == 5000  # type: ignore[operator]
        assert after["syscr"] - before["syscr"] == 5  # type: ignore[operator]
        assert files.read()["syscr"] == after["syscr"]


def test_the_training_thread_counts_reads_now_and_then() -> None:
    files = DelayFile()
    assert ["syscr" in files.read(turn) for turn in range(9)] == [True, False, False, False] * 2 + [True]


def test_switches_as_they_are_now() -> None:
    assert environment.flags(torch)["anomaly"] is False
    with torch.autograd.set_detect_anomaly(True):
        assert environment.flags(torch)["anomaly"] is True
    assert environment.flags(torch)["cudnn_benchmark"] is torch.backends.cudnn.benchmark


def test_a_switch_that_torch_refuses_to_tell_is_unknown() -> None:
    class Refusing:
        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        class backends:  # noqa: N801
            class cuda:  # noqa: N801
                matmul = Refusing()

            cudnn = torch.backends.cudnn

    found = environment.flags(Torch())
    assert found["tf32"] is None
    assert found["anomaly"] is False


def test_a_data_set_below_its_wrappers() -> None:
    assert _source(Subset(Subset(Numbers(), [1]), [0]))["dataset_module"] == Numbers.__module__
    assert _source(Subset(Numbers(), [1]))["getitems"] is hasattr(Subset, "__getitems__")
    assert _source(Numbers()) == {"dataset_module": Numbers.__module__, "getitems": False}


@pytest.mark.parametrize(("kind", "expected"), [(None, "python"), ("numpy", "numpy")])
def test_the_format_of_a_table(kind: str | None, expected: str) -> None:
    class Table:
        format = {"type": kind}  # noqa: RUF012

    Table.__module__ = "datasets.arrow_dataset"
    assert _source(Table())["dataset_format"] == expected
    Table.format = property(lambda self: 1 / 0)  # type: ignore[assignment]
    assert _source(Table())["dataset_format"] is None
