"""Changes to the training code: precision, compilation, synchronisations and the like, each with a replayed bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tracelens.diagnose.advice.case import Case, Change, Proposal, widened
from tracelens.model import Recommendation
from tracelens.signals import kernels
from tracelens.whatif import graph as g
from tracelens.whatif.replay import Scenario


def code_proposals(case: Case) -> list[Proposal]:
    """One proposal for each fired rule whose remedy is a code change, largest saving first."""
    fired = [e for e in case.evaluations.values() if e.outcome == "fired" and e.rule.id in _REMEDIES]
    fired.sort(key=lambda e: -(e.saving_ms or 0.0))
    found = []
    for evaluation in fired:
        proposal = _REMEDIES[evaluation.rule.id](case, evaluation.rule.id)
        if proposal is not None:
            found.append(proposal)
    return found


Remedy = Callable[[Case, str], Proposal | None]


def _replayed(
    case: Case,
    rule: str,
    parameter: str,
    current: object,
    suggested: object,
    snippet: str,
    why: str,
    change: Change,
) -> Proposal | None:
    gains = case.speedups([change.likely, change.low, change.high])
    if gains is None:
        stated, interval, following = None, None, None
        why = f"{_evidence(why)}This recording could not be replayed, so no number is given."
    else:
        gain = gains[0]
        if gain < 1.02:
            return None
        stated, interval = case.stated(gain, widened(min(gains), gain, max(gains), case.noise))
        following = case.next_bottleneck(change.likely)
        if stated is None:
            why = f"{_evidence(why)}The gain is within this run's noise or beyond what the replay can tell: no number is given."
    return Proposal(
        Recommendation(
            parameter=parameter,
            current=current,
            suggested=suggested,
            predicted_speedup=stated,
            interval=interval,
            next_bottleneck=following,
            rule=rule,
            snippet=snippet,
            basis=change.basis if stated is not None else None,
            why=why,
        ),
        change,
        in_plan=False,
    )


def _evidence(why: str) -> str:
    """What is left to say of a change without a number: how it was replayed no longer matters."""
    first, _, rest = why.partition("; ")
    return f"{rest[:1].upper()}{rest[1:]} " if first.startswith("Replayed") and rest else ""


def _dispatch(factor: float) -> Scenario:
    return Scenario(f"dispatch*{factor}", host=((g.DISPATCH, factor), (g.OPTIMIZER, factor)))


def _compile(case: Case, rule: str) -> Proposal | None:
    if case.fired("host.startup"):
        # first uses look like slow dispatch, and compiling would make the start longer still
        return None
    return _replayed(
        case,
        rule,
        "torch.compile",
        None,
        "reduce-overhead",
        'model = torch.compile(model, mode="reduce-overhead")',
        "Replayed with a third of today's dispatch time left; CUDA graphs leave about a tenth, Inductor alone about half "
        "(facebookresearch/sam2#768: 4.5x, awslabs/keys_values#105: 1.1x).",
        Change(_dispatch(0.33), _dispatch(0.7), _dispatch(0.1), "replay"),
    )


def _fused(case: Case, rule: str) -> Proposal | None:
    def left(factor: float) -> Scenario:
        return Scenario(f"optimizer*{factor}", host=((g.OPTIMIZER, factor),))

    return _replayed(
        case,
        rule,
        "fused",
        False,
        True,
        "optimizer = torch.optim.AdamW(model.parameters(), fused=True)",
        "Replayed with a fifth of the optimizer's launches left: one fused kernel per group of tensors.",
        Change(left(0.2), left(0.5), left(0.05), "replay"),
    )


def _sync(case: Case, rule: str) -> Proposal | None:
    free = Scenario("no sync", sync=False)
    return _replayed(
        case,
        rule,
        "synchronisation",
        "every step",
        "none in the loop",
        "total += loss.detach()   # and total.item() every 100 steps",
        "Replayed without the waits; what the host then does ahead of the GPU comes out of the dependencies.",
        Change(free, Scenario("base"), free, "replay"),
    )


def _python(case: Case, rule: str) -> Proposal | None:
    def left(factor: float) -> Scenario:
        return Scenario(f"python*{factor}", host=((g.PYTHON, factor),))

    return _replayed(
        case,
        rule,
        "python_in_loop",
        None,
        "move out of the loop",
        "# compute metrics and log every N steps, or in a thread",
        "Replayed without the long pauses between operators; half of them kept is the lower end.",
        Change(left(0.0), left(0.5), left(0.0), "replay"),
    )


def _custom(case: Case, rule: str) -> Proposal | None:
    def left(factor: float) -> Scenario:
        return Scenario(f"before*{factor}", host=((g.PYTHON, factor), (g.CAST, factor)))

    return _replayed(
        case,
        rule,
        "num_workers",
        None,
        "a DataLoader with workers",
        "loader = DataLoader(dataset, num_workers=4, pin_memory=True)",
        "Replayed as if the work before the first kernel were done ahead, in workers.",
        Change(left(0.0), left(0.5), left(0.0), "replay"),
    )


def _allocator(case: Case, rule: str) -> Proposal | None:
    free = Scenario("no allocation", host=((g.ALLOCATION, 0.0),))
    return _replayed(
        case,
        rule,
        "PYTORCH_CUDA_ALLOC_CONF",
        None,
        "expandable_segments:True",
        "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   # and no torch.cuda.empty_cache() in the loop",
        "Replayed without allocation calls.",
        Change(free, Scenario("half", host=((g.ALLOCATION, 0.5),)), free, "replay"),
    )


def _cast(case: Case, rule: str) -> Proposal | None:
    free = Scenario("cast on gpu", host=((g.CAST, 0.1),))
    return _replayed(
        case,
        rule,
        "dtype_on_gpu",
        "host",
        "device",
        "x = x.to(device, non_blocking=True).to(torch.float32)",
        "Replayed with the conversion on the GPU; the copy also moves fewer bytes, which is not counted.",
        Change(free, Scenario("half", host=((g.CAST, 0.5),)), free, "replay"),
    )


def _precision(case: Case, rule: str) -> Proposal | None:
    capability = case.signals.number("gpu.capability") or 0.0
    if capability >= 8.0:
        parameter, value = "float32_matmul_precision", "high"
        snippet = (
            'torch.set_float32_matmul_precision("high")   # or torch.autocast("cuda", dtype=torch.bfloat16)'
        )
    else:
        parameter, value = "autocast", "float16"
        snippet = 'with torch.autocast("cuda", dtype=torch.float16):   # with torch.amp.GradScaler'
    change = _faster_matmul(case)
    if change is None:
        return None
    return _replayed(
        case,
        rule,
        parameter,
        "fp32",
        value,
        snippet,
        "Replayed with the fp32 matrix kernels 2.2 times as fast; published runs gained 1.2 to 3.5 on them "
        "(huggingface/transformers#14608, NVIDIA mixed-precision guide).",
        change,
    )


def _faster_matmul(case: Case) -> Change | None:
    if case.replayed is None:
        return None
    graph = case.replayed.graph
    names = case.analysis.tables.names
    order = case.replayed.graph.names
    single = np.array([kernels.precision(names[code]) == "fp32" for code in order.tolist()], dtype=bool)
    if not single.any():
        return None

    def faster(factor: float) -> Scenario:
        durations = graph.duration.copy()
        durations[single] /= factor
        return Scenario(f"matmul/{factor}", durations=durations)

    return Change(faster(2.2), faster(1.2), faster(3.5), "literature")


def _fuse(case: Case, rule: str) -> Proposal | None:
    def left(factor: float) -> Scenario:
        return Scenario(f"memory*{factor}", device=((g.MEMORY, factor),))

    return _replayed(
        case,
        rule,
        "torch.compile",
        None,
        "default",
        "model = torch.compile(model)",
        "Replayed with 70 % of the time of memory-bound kernels left: fusing removes reads and writes between them "
        "(Nerogar/OneTrainer#1114: 25-35 % less time).",
        Change(left(0.7), left(0.95), left(0.5), "literature"),
    )


def _communication(case: Case, rule: str) -> Proposal | None:
    def left(factor: float) -> Scenario:
        return Scenario(f"communication*{factor}", device=((g.COMMUNICATION, factor),))

    return _replayed(
        case,
        rule,
        "ddp_comm_hook",
        None,
        "bf16_compress_hook",
        "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
        "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
        "Replayed with half the bytes; only true where the link and not a late rank is the limit.",
        Change(left(0.5), left(0.9), left(0.4), "replay"),
    )


def _link(case: Case, rule: str) -> Proposal | None:
    def left(factor: float) -> Scenario:
        return Scenario(f"bytes*{factor}", device=((g.H2D, factor),))

    return _replayed(
        case,
        rule,
        "input_dtype",
        "float32",
        "uint8",
        "x = x.to(device, non_blocking=True).float().div_(255)   # the dataset returns uint8",
        "Replayed with a quarter of the bytes (uint8 instead of float32); half of them (fp16) is the lower end.",
        Change(left(0.25), left(0.5), left(0.25), "replay"),
    )


def _merge_copies(case: Case, rule: str) -> Proposal | None:
    free = Scenario("merged", device=((g.H2D, 0.2),), copy_wait=False)
    return _replayed(
        case,
        rule,
        "merged_copies",
        None,
        "one tensor a batch",
        "packed = torch.cat([t.flatten() for t in tensors]).to(device)   # then split",
        "Replayed with a fifth of the copy time left.",
        Change(free, Scenario("half", device=((g.H2D, 0.6),)), free, "replay"),
    )


def _threads(case: Case, rule: str) -> Proposal | None:
    usable = case.signals.number("machine.usable_cores")
    threads = max(int(usable), 1) if usable and case.signals.value("host.crowded") else 1
    log = case.analysis.run_log
    return Proposal(
        Recommendation(
            parameter="num_threads",
            current=log.intraop_threads if log is not None else None,
            suggested=threads,
            predicted_speedup=None,
            interval=None,
            next_bottleneck=None,
            rule=rule,
            snippet=f"torch.set_num_threads({threads})   # and OMP_NUM_THREADS={threads}, cv2.setNumThreads(0)",
            basis=None,
            why="How much faster fewer threads are cannot be told from this recording: try it, it costs one run.",
            set_flag=f"--set num_threads={threads}",
        ),
        in_plan=False,
    )


def _storage(case: Case, rule: str) -> Proposal | None:
    share = case.signals.number("load.io_share")
    free = Scenario(
        "storage",
        loader=1 - (share if share is not None else 0.7),
        host=((g.LOAD, 1 - (share if share is not None else 0.7)),),
    )
    gains = case.speedups([free])
    stated, interval = (
        case.stated(gains[0], widened(1.0, gains[0], gains[0], case.noise))
        if gains and share is not None
        else (None, None)
    )
    return Proposal(
        Recommendation(
            parameter="storage",
            current=None,
            suggested="local disk or shards",
            predicted_speedup=stated,
            interval=interval,
            next_bottleneck=None,
            rule=rule,
            snippet="rsync -a /network/dataset /local/nvme/   # or tar shards (webdataset), LMDB",
            basis="replay" if stated else None,
            why="Replayed without the time that fetches wait for storage."
            if stated
            else "How fast the data could be read was not recorded.",
        ),
        in_plan=False,
    )


def _throttle(case: Case, rule: str) -> Proposal | None:
    loss = case.signals.number("gpu.throttle_saving_ms")
    gain = case.step_ms / max(case.step_ms - (loss or 0.0), 1e-9)
    stated, interval = case.stated(gain, widened(1.0, gain, gain, case.noise)) if loss else (None, None)
    return Proposal(
        Recommendation(
            parameter="power_limit",
            current=None,
            suggested="cooling, power limit",
            predicted_speedup=stated,
            interval=interval,
            next_bottleneck=None,
            rule=rule,
            snippet="nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",
            basis="bound",
            why="If all kernels slowed down with the clock; memory-bound ones do less.",
        ),
        in_plan=False,
    )


_REMEDIES: dict[str, Remedy] = {
    "host.launch_bound": _compile,
    "host.optimizer": _fused,
    "host.sync": _sync,
    "host.python": _python,
    "load.custom": _custom,
    "host.allocator": _allocator,
    "host.cast": _cast,
    "compute.precision": _precision,
    "memory.bandwidth": _fuse,
    "communication.bandwidth": _communication,
    "transfer.link": _link,
    "transfer.many_small": _merge_copies,
    "load.oversubscribed_threads": _threads,
    "load.storage": _storage,
    "compute.throttled": _throttle,
}
