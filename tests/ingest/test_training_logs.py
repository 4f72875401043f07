# ruff: noqa: E501  (log lines are quoted as they come)
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tracelens.errors import InputError
from tracelens.ingest import TrainingLog, read_training_log


def read(folder: Path, text: str | bytes, name: str = "train.log") -> TrainingLog:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_training_log(path)


# one line of each trainer: text, framework, step, epoch, seconds a step, seconds of data wait, averaged
LINES = [
    ("2023/03/01 12:00:00 - mmengine - INFO - Epoch(train)  [1][ 50/391]  lr: 1.0000e-01  eta: 0:10:00  time: 0.2345  data_time: 0.0123  memory: 1234  loss: 2.1", "mmengine", 50, 1, 0.2345, 0.0123, True),
    ("2023/03/01 12:00:00 - mmengine - INFO - Iter(train) [  100/160000]  base_lr: 1e-4 lr: 1e-4  eta: 1 day, 2:00:00  time: 0.5  data_time: 0.25  memory: 1 loss: 1", "mmengine", 100, None, 0.5, 0.25, True),
    ("2021-05-05 10:00:00,123 - mmdet - INFO - Epoch [3][50/7330]\tlr: 2.000e-03, eta: 10:00:00, time: 0.512, data_time: 0.050, memory: 4000, loss: 1.2", "mmengine", 50, 3, 0.512, 0.050, True),
    ("[05/01 12:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 2.3  loss_cls: 0.3    time: 0.3456  last_time: 0.3  data_time: 0.0123  last_data_time: 0.01   lr: 0.001  max_mem: 3456M", "detectron2", 19, None, 0.3456, 0.0123, True),
    ("Train: 4 [  50/1251 (  4%)]  Loss: 6.9 (6.9)  Time: 0.345s,  741.20/s  (0.512s,  500.10/s)  LR: 1.000e-06  Data: 0.012 (0.120)", "timm", 50, 4, 0.345, 0.012, False),
    ("Epoch: [0]  [  10/5005]  eta: 1:00:00  lr: 0.1  loss: 6.9 (6.9)  acc1: 0.0 (0.1)  time: 0.5120  data: 0.0123  max mem: 4000", "torchvision", 10, 0, 0.512, 0.0123, True),
    ("Epoch: [0][  10/5005]\tTime  0.345 ( 0.412)\tData  0.123 ( 0.210)\tLoss 6.9 (6.9)", "imagenet example", 10, 0, 0.345, 0.123, False),
    (" iteration       10/  500000 | consumed samples: 2560 | elapsed time per iteration (ms): 345.6 | learning rate: 1.5E-06 |", "megatron", 10, None, 0.3456, None, True),
    ("iter 10: loss 3.2145, time 345.67ms, mfu 12.34%", "nanogpt", 10, None, 0.34567, None, False),
    ("{'train_runtime': 123.4, 'train_samples_per_second': 81.0, 'train_steps_per_second': 2.5, 'train_loss': 0.3, 'epoch': 3.0}", "hf trainer", None, None, 0.4, None, True),
    ("Epoch 3:  10%|█         | 50/500 [00:25<03:45,  2.00it/s, v_num=0, loss=2.1]", "progress bar", 50, 3, 0.5, None, True),
    (" 10%|█         | 50/500 [02:05<18:45,  2.50s/it]", "progress bar", 50, None, 2.5, None, True),
    ("Epoch 1/9  ━━━━━━━━━━━━ 50/500 0:00:25 • 0:03:45 2.00it/s v_num: 0", "progress bar", 50, 1, 0.5, None, True),
    ("938/938 [==============================] - 12s 13ms/step - loss: 0.2", "keras", 938, None, 0.013, None, True),
    ("step 7: data_time: 0.12 time: 0.45", "generic", 7, None, 0.45, 0.12, False),
    ("epoch=2 step=40 loss=0.3 step_time=400ms data_time=100ms 640.0 samples/s", "generic", 40, 2, 0.4, 0.1, False),
    ("[2024-01-01 10:00:00] iter 3 | batch time 0.5: batch_time: 0.5s load_time: 0.2s", "generic", 3, None, 0.5, 0.2, False),
]  # fmt: skip


@pytest.mark.parametrize(("line", "framework", "step", "epoch", "step_s", "data_s", "averaged"), LINES)
def test_lines_of_common_trainers(
    tmp_path: Path, line: str, framework: str, step: int | None, epoch: int | None, step_s: float, data_s: float | None, averaged: bool
) -> None:  # fmt: skip
    log = read(tmp_path, f"loading checkpoint\n{line}\ndone in 3 s\n")
    assert len(log) == 1
    assert log.framework == framework
    assert log.step.tolist() == [-1 if step is None else step]
    assert log.epoch.tolist() == [-1 if epoch is None else epoch]
    assert log.step_s[0] == pytest.approx(step_s)
    assert np.isnan(log.data_s[0]) if data_s is None else log.data_s[0] == pytest.approx(data_s)
    assert log.averaged is averaged


def test_data_share_mean_and_times(tmp_path: Path) -> None:
    text = "".join(
        f"2023-03-01 12:00:0{i},500 INFO step {i} time: 0.4 data_time: {data}\n"
        for i, data in enumerate((0.1, 0.3))
    )
    log = read(tmp_path, text)
    assert log.data_share == pytest.approx(0.5)
    assert log.mean_step_s == pytest.approx(0.4)
    assert log.clock == "local"
    assert np.diff(log.t_ns).tolist() == [10**9]


def test_unknown_data_time_is_unknown(tmp_path: Path) -> None:
    log = read(tmp_path, "iter 10: loss 3.2145, time 345.67ms, mfu 12.34%\n")
    assert log.data_share is None
    assert log.clock == "relative"


def test_progress_bars_overwritten_with_carriage_returns_and_colours(tmp_path: Path) -> None:
    bar = "\x1b[32m 10%|█   | {n}/500 [00:25<03:45,  {rate}it/s]\x1b[0m"
    text = "\r".join(bar.format(n=n, rate=rate) for n, rate in ((1, "2.00"), (2, "4.00")))
    log = read(tmp_path, text)
    assert log.step.tolist() == [1, 2]
    assert log.step_s.tolist() == [0.5, 0.25]


def test_validation_and_downloads_are_not_training(tmp_path: Path) -> None:
    text = (
        "Downloading: 10%|█ | 5/50 [00:01<00:09,  5.00it/s]\nValidation DataLoader 0: 10%|█ | 5/50 [00:01<00:09,  9.00it/s]\n"
        "Epoch(val)  [1][50/79]  eta: 0:00:01  time: 0.01  data_time: 0.001\nEpoch 0: 10%|█ | 5/50 [00:01<00:09,  2.00it/s]\n"
    )
    log = read(tmp_path, text)
    assert log.step_s.tolist() == [0.5]


def test_lines_with_data_times_win_over_the_bar(tmp_path: Path) -> None:
    text = " 10%|█ | 50/500 [00:25<03:45,  2.00it/s]\n 11%|█ | 51/500 [00:25<03:45,  2.00it/s]\nstep 7: data_time: 0.12 time: 0.45\n"
    assert read(tmp_path, text).framework == "generic"


def test_simple_profiler_of_lightning(tmp_path: Path) -> None:
    text = """FIT Profiler Report
----------------------------------------------------------------------------------------------------
|  Action                                        |  Mean duration (s) |  Num calls |  Total time (s) |  Percentage %  |
|  Total                                         |  -                 |  270       |  14.102         |  100 %         |
|  run_training_epoch                            |  13.5              |  1         |  13.5           |  95.7          |
|  [_TrainingEpochLoop].train_dataloader_next    |  0.08              |  101       |  8.08           |  57.3          |
|  run_training_batch                            |  0.02              |  100       |  2.0            |  14.2          |
|  [_EvaluationLoop].val_next                    |  0.5               |  10        |  5.0            |  35.0          |
"""
    log = read(tmp_path, text)
    assert log.framework == "lightning profiler"
    assert log.step_s.tolist() == [pytest.approx(0.1)]
    assert log.data_share == pytest.approx(0.8)


def test_json_lines_of_mmengine(tmp_path: Path) -> None:
    text = (
        '{"lr": 0.1, "data_time": 0.05, "loss": 2.0, "time": 0.2, "epoch": 1, "iter": 50, "memory": 12, "step": 50}\n'
        '{"mode": "val", "time": 9.0, "data_time": 8.0, "step": 1}\n'
    )
    log = read(tmp_path, text, "scalars.json")
    assert log.framework == "mmengine"
    assert log.step_s.tolist() == [0.2]
    assert log.data_s.tolist() == [0.05]


def test_wandb_history(tmp_path: Path) -> None:
    text = "".join(
        f'{{"_step": {step}, "_runtime": {step * 2.0}, "_timestamp": {1_796_083_200 + step * 2}, "train/loss": 0.1}}\n'
        for step in (0, 10, 20)
    )
    log = read(tmp_path, text, "wandb-history.jsonl")
    assert log.framework == "wandb"
    assert log.step_s.tolist() == [2.0, 2.0]
    assert log.clock == "utc"
    assert log.notes


def test_wandb_export_as_csv(tmp_path: Path) -> None:
    text = (
        '"Step","happy-sun-7 - train/data_time","happy-sun-7 - train/data_time__MIN","happy-sun-7 - perf/step_time_ms"\n'
        '"10","0.1","9","400"\n"20","","9","200"\n'
    )
    log = read(tmp_path, text, "export.csv")
    assert log.step.tolist() == [10, 20]
    assert log.step_s.tolist() == [0.4, 0.2]
    assert log.data_s[0] == 0.1
    assert np.isnan(log.data_s[1])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0\0", "binary"),
        (b"hello\nworld\n", "names no step time"),
        (b"total time: 30 s\nelapsed time: 12.5 s\nETA 0:10:00\n", "names no step time"),
        (b'{"loss": 1.0}\n', "names no step time"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, content)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
