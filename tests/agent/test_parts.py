"""Batches, redaction, the windows' plan, sharding, and what the launcher hands over."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.agent.batch import describe
from tracelens.agent.config import Config, Setting, encode, from_environment
from tracelens.agent.redact import Redactor
from tracelens.agent.runtime import distributed_rank
from tracelens.agent.schedule import plan
from tracelens.agent.sharding import shards

torch = pytest.importorskip("torch")


# -- batches ------------------------------------------------------------------------------------------


def test_batches_of_any_shape() -> None:
    image, label = torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.int64)
    expected = (8, 8 * 48 * 4 + 64, {"float32": 1536, "int64": 64})
    assert describe((image, label)) == expected
    assert describe({"image": image, "more": [label]}) == expected
    assert describe([image.numpy(), label.numpy()]) == expected


def test_odd_batches() -> None:
    class Sample:
        def __init__(self) -> None:
            self.x = torch.zeros(5, 2, dtype=torch.float16)
            self.note = "text"

    assert describe(Sample()) == (5, 20, {"float16": 20})
    assert describe(torch.zeros(())) == (None, 4, {"float32": 4})
    assert describe("text") == (None, 0, {})
    assert describe(["a", "b"]) == (2, 0, {})
    assert describe([b"1234", b"12"]) == (2, 6, {"bytes": 6})
    assert describe(None) == (None, 0, {})


def test_a_batch_that_holds_itself() -> None:
    batch: list[Any] = [torch.zeros(2)]
    batch.append(batch)
    samples, size, _ = describe(batch)
    assert samples == 2
    assert size > 0


def test_thousands_of_small_tensors_are_scaled_up() -> None:
    samples, size, dtypes = describe([torch.zeros(3) for _ in range(2000)])
    assert samples == 3
    assert abs(size - 24_000) < 400
    assert abs(dtypes["float32"] - 24_000) < 400


# -- redaction ----------------------------------------------------------------------------------------

REDACTOR = Redactor("/home/ada", "node17.cluster.example", "ada")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ada/code/train.py", "~/code/train.py"),
        ("/home/adamant/x", "/home/adamant/x"),
        ("node17.cluster.example: no route", "<host>: no route"),
        ("on node17", "on <host>"),
        ("/scratch/ada/run", "/scratch/<user>/run"),
        ("adagrad", "adagrad"),
    ],
)
def test_names_are_taken_out(text: str, expected: str) -> None:
    assert REDACTOR.text(text) == expected
    pairs = REDACTOR.byte_pairs
    data = text.encode()
    for pattern, word in pairs:
        data = pattern.sub(word, data)
    assert data.decode() == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            "python train.py --lr 1e-3 --data /data/x --epochs 3",
            "python train.py --lr 1e-3 --data <value> --epochs 3",
        ),
        (
            "/usr/bin/python3 -m pkg.train --name=secret --amp=true",
            "python3 -m pkg.train --name=<value> --amp=true",
        ),
        ("torchrun --nproc-per-node 2 /home/ada/t.py run7", "torchrun --nproc-per-node 2 t.py <value>"),
        ("env TOKEN=abc python t.py", "env TOKEN=<value> python t.py"),
        ("python t.py optimizer.lr=0.1 -1", "python t.py optimizer.lr=0.1 -1"),
    ],
)
def test_commands_keep_their_shape(argv: str, expected: str) -> None:
    assert " ".join(REDACTOR.command(argv.split())) == expected


@given(st.text(min_size=1), st.lists(st.text(alphabet=st.characters(codec="ascii"), max_size=12), max_size=5))
def test_no_secret_value_survives(secret: str, words: list[str]) -> None:
    marked = f"zq{secret.encode().hex()}zq"
    kept = REDACTOR.command(["python", "train.py", *words, "--key", marked, f"--other={marked}"])
    assert not any(marked in word for word in kept)


def test_the_environment_is_an_allow_list() -> None:
    variables = {"OMP_NUM_THREADS": "4", "AWS_SECRET_ACCESS_KEY": "x", "WANDB_API_KEY": "y"}
    assert REDACTOR.environment(variables) == {"OMP_NUM_THREADS": "4"}
    assert Redactor("/home/ada", off=True).environment(variables) == variables
    assert Redactor("/home/ada", off=True).text("/home/ada") == "/home/ada"


def test_paths_keep_their_last_two_parts() -> None:
    assert REDACTOR.path("/home/ada/project/pkg/train.py") == "pkg/train.py"
    assert REDACTOR.path("train.py") == "train.py"


# -- windows ------------------------------------------------------------------------------------------


def test_the_plan_of_a_long_run() -> None:
    planned = plan(None, True)
    assert [(window.kind, window.start) for window in planned[:3]] == [
        ("lean", 12),
        ("shapes", 32),
        ("stacks", 42),
    ]
    assert {window.kind for window in planned[3:]} == {"lean"}
    assert all(window.kind != "stacks" for window in plan(None, False))


@given(st.integers(1, 500), st.booleans())
def test_windows_fit_and_never_overlap(stop_after: int, stacks: bool) -> None:
    planned = plan(stop_after, stacks)
    assert planned == plan(stop_after, stacks)
    for window in planned:
        assert window.start >= 1
        assert window.start + window.least < stop_after
    for before, after in pairwise(planned):
        assert before.start + before.most < after.start
    if stop_after >= 8:
        assert planned[0].kind == "lean"


# -- sharding -----------------------------------------------------------------------------------------


class Blind(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __iter__(self) -> Any:
        return iter(range(4))


class Asking(Blind):
    def _part(self) -> Any:
        from torch.utils.data import get_worker_info

        return [get_worker_info() for _ in range(1)]


class Around(torch.utils.data.IterableDataset):  # type: ignore[misc]
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        return iter(self.inner)


def split(number: int) -> None:
    torch.utils.data.get_worker_info()


def test_sharding_is_believed_only_where_it_shows() -> None:
    assert shards(torch.utils.data.TensorDataset(torch.zeros(2)), None, 2) is None
    assert shards(Blind(), None, 2) is False
    assert shards(Asking(), None, 2) is True
    assert shards(Around(Asking()), None, 2) is True
    assert shards(Around([Blind()]), None, 2) is False
    assert shards(Blind(), split, 2) is True
    assert shards(Blind(), print, 2) is False


# -- what is handed over --------------------------------------------------------------------------------


def test_options_travel_through_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = [Setting(None, "num_workers", 3), Setting("Data", "pin_memory", True)]
    config = Config(str(tmp_path), settings, 7, False, sampler=["python", "-m", "x"])
    for name, value in encode(config).items():
        monkeypatch.setenv(name, value)
    assert from_environment() == config
    monkeypatch.delenv("TRACELENS_BUNDLE")
    assert from_environment() is None


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, (3, 1, 8)),
        ({"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (2, 0, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (None, None, None)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (1, None, 2)),
        ({}, (None, None, None)),
    ],
)
def test_ranks_from_the_environment(
    variables: dict[str, str], expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "PMI_")) or name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert distributed_rank(torch) == expected
