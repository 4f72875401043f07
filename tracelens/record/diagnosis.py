"""What the user is told when the job has ended: what was recorded, or why nothing was."""

from __future__ import annotations

import re
from pathlib import Path

from tracelens.bundle import Bundle
from tracelens.record.options import RecordOptions

_CONTAINERS = {
    "docker",
    "podman",
    "singularity",
    "apptainer",
    "enroot",
    "nerdctl",
    "shifter",
    "charliecloud",
    "kubectl",
}


def outcome_messages(bundle: Bundle, options: RecordOptions, seconds: float) -> list[tuple[bool, str]]:
    """(loud, message) lines. Loud ones are warnings that belong into the bundle."""
    messages: list[tuple[bool, str]] = []
    agents = bundle.events_of("agent")
    steps = {rank.rank: len(rank.steps) for rank in bundle.ranks}
    windows = sum(bool(window.get("file")) for rank in bundle.ranks for window in rank.windows)
    rejected = bool(bundle.events_of("rejected"))
    if rejected:
        return messages
    if not agents:
        messages.append(
            (True, f"NOTHING WAS RECORDED: no training process was seen; {why_no_agent(bundle, options)}")
        )
    elif not any(steps.values()):
        messages.append(
            (
                True,
                "NO STEP WAS RECORDED: the job used torch, but no optimizer stepped and no DataLoader gave a batch; "
                "call tracelens.step() at the end of every iteration, or run it for longer",
            )
        )
    else:
        ranks = len(steps)
        text = f"{max(steps.values())} steps of {ranks} rank{'s' * (ranks != 1)}, {windows} traced windows"
        messages.append((False, f"{text} in {seconds:.0f} s: tracelens report {bundle.path}"))
    messages += [(True, message) for message in unapplied(bundle, options)]
    return messages


def unapplied(bundle: Bundle, options: RecordOptions) -> list[str]:
    """A line for every ``--set`` that no loader took."""
    taken = {str(event.get("setting")) for event in bundle.events_of("set") if event.get("applied")}
    tried = {
        str(event.get("setting")): event.get("reason")
        for event in bundle.events_of("set")
        if not event.get("applied")
    }
    found = []
    for text in options.set:
        name, _, value = text.partition("=")
        key = name.rpartition(".")[2]
        if any(done.partition("=")[0] == name for done in taken):
            continue
        reason = next((why for done, why in tried.items() if done.partition("=")[0] == name), None)
        if reason is None:
            reason = (
                "torch was not imported" if key == "num_threads" else "no DataLoader that it names was built"
            )
        found.append(f"--set {name}={value} was not applied: {reason}")
    return found


def why_no_agent(bundle: Bundle, options: RecordOptions) -> str:
    """The likely reason, from the command and from what the processes left behind."""
    words = [Path(word).name for word in options.command]
    container = next((word for word in words if word in _CONTAINERS), None)
    if container is None and any(word.startswith("--container-image") for word in options.command):
        container = "the container of srun --container-image"
    if bundle.events_of("torch"):
        return (
            "torch was imported, but nothing trained: no DataLoader was iterated and no optimizer stepped; "
            "call tracelens.step() in the training loop"
        )
    if (bundle.path / ".python-seen").exists() and container is None:
        return "Python ran, but never imported torch (did it fail early, or does another interpreter train?)"
    if container is not None:
        return (
            f"{container} starts the job with its own environment: pass PYTHONPATH, TRACELENS_BUNDLE and "
            "TRACELENS_OPTIONS into it and mount the bundle's and tracelens's folders, or run tracelens record inside it"
        )
    python = next((index for index, word in enumerate(words) if re.fullmatch(r"python[\d.]*", word)), None)
    if python is not None:
        flags = [word for word in options.command[python + 1 :] if re.fullmatch(r"-[A-Za-z]+", word)]
        isolated = next((flag for flag in flags if flag != "-m" and set(flag[1:]) & set("IES")), None)
        if isolated is not None:
            return (
                f"python {isolated} ignores PYTHONPATH or sitecustomize: leave {isolated} out while recording"
            )
    if "env" in words and "-i" in options.command:
        return "env -i empties the environment: keep PYTHONPATH, TRACELENS_BUNDLE and TRACELENS_OPTIONS"
    if "sudo" in words:
        return "sudo empties the environment: use sudo --preserve-env=PYTHONPATH,TRACELENS_BUNDLE,TRACELENS_OPTIONS"
    return (
        "no Python process of the command had our PYTHONPATH: is it reset (a container, sudo, env -i, python -I), is "
        "the command not Python, or did it end before it began?"
    )
