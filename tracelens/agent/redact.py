"""Takes the user's name, home and host out of what is kept; see ``--include-sensitive``."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Mapping, Pattern, Sequence, Tuple

ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_INJECTION64_PATH", "NVIDIA_TF32_OVERRIDE", "TEARDOWN_CUPTI",
    "DISABLE_CUPTI_LAZY_REINIT", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CUDNN_V8_API_DISABLED", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_SHOW_CPP_STACKTRACES", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_SHM_DISABLE", "NCCL_ALGO", "NCCL_PROTO",
    "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_LAUNCH_MODE",
    "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "KMP_AFFINITY", "KMP_BLOCKTIME",
    "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS", "MKL_DYNAMIC", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS", "RAYON_NUM_THREADS", "TOKENIZERS_PARALLELISM", "MALLOC_ARENA_MAX", "MALLOC_CONF",
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE",
    "SLURM_GPUS_ON_NODE", "SLURM_MEM_PER_NODE", "SLURM_CPU_BIND_TYPE", "PYTHONHASHSEED", "PYTHONUNBUFFERED",
    "PYTHONMALLOC", "PYTHONFAULTHANDLER",
)  # fmt: skip

_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?[kKmMgG]?")
_PLAIN = {"true", "false", "yes", "no", "on", "off", "none", "null", "auto", "cpu", "cuda", "mps", "gloo", "nccl",
          "fp16", "bf16", "fp32", "tf32", "float16", "bfloat16", "float32", "int8", "adam", "adamw", "sgd"}  # fmt: skip
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*|[A-Za-z_][\w.]*)=(.*)", re.S)


class Redactor:
    """Replaces the home folder, the host's and the user's name; with ``off`` it changes nothing."""

    def __init__(self, home: str = "", host: str = "", user: str = "", off: bool = False) -> None:
        self.off = off
        self._pairs: List[Tuple[Pattern[str], str]] = []
        home = home.rstrip("/")
        if home:
            self._pairs.append((re.compile(re.escape(home) + r"(?![\w.-])"), "~"))
        for name, word in ((host, "<host>"), (host.split(".")[0], "<host>")):
            if len(name) > 2 and name != "localhost":
                self._pairs.append((re.compile(r"(?<![\w.-])" + re.escape(name) + r"(?![\w-])"), word))
        if user and user != "root":
            self._pairs.append((re.compile(r"(?<![\w.-])" + re.escape(user) + r"(?![\w.-])"), "<user>"))

        # The same for blocks of a trace file.
        self.byte_pairs = [
            (re.compile(pattern.pattern.encode("utf-8")), word.encode("ascii"))
            for pattern, word in self._pairs
        ]

    def text(self, value: str) -> str:
        """``value`` without names."""
        if self.off:
            return value
        for pattern, word in self._pairs:
            value = pattern.sub(word, value)
        return value

    def path(self, value: str) -> str:
        """A path as it may be kept: its last two parts where it is absolute."""
        if self.off:
            return value
        parts = value.split(os.sep)
        return self.text(os.sep.join(parts[-2:]) if os.path.isabs(value) and len(parts) > 3 else value)

    def command(self, argv: Sequence[str]) -> List[str]:
        """The command with its program, script, options and numbers; any other value is left out."""
        if self.off:
            return list(argv)
        kept: List[str] = []
        previous = ""
        program_known = False
        for word in argv:
            match = _OPTION.fullmatch(word)
            if not kept:
                kept.append(os.path.basename(word))
            elif match and not word.startswith("/"):
                kept.append("{}={}".format(match.group(1), self._value(match.group(2))))
            elif word.startswith("-") and not _NUMBER.fullmatch(word):
                kept.append(word if re.fullmatch(r"--?[A-Za-z][\w.-]*|--?", word) else "<value>")
            elif previous == "-m" or (not program_known and _is_program(word)):
                program_known = program_known or previous == "-m" or _is_script(word)
                kept.append(os.path.basename(word))
            else:
                kept.append(self._value(word))
            previous = word
        return kept

    @staticmethod
    def _value(word: str) -> str:
        return word if _NUMBER.fullmatch(word) or word.lower() in _PLAIN else "<value>"

    def environment(self, variables: Mapping[str, str]) -> Dict[str, str]:
        """The variables that matter for speed; all others are left out unless sensitive values are wanted."""
        if self.off:
            return dict(variables)
        return {name: self.text(variables[name]) for name in ENVIRONMENT if name in variables}


def _is_script(word: str) -> bool:
    return word.endswith((".py", ".sh", ".pyz", ".sbatch", ".slurm"))


def _is_program(word: str) -> bool:
    name = os.path.basename(word)
    launchers = {"torchrun", "accelerate", "launch", "srun", "mpirun", "mpiexec", "deepspeed", "uv", "poetry", "run",
                 "bash", "sh", "env", "nice", "numactl", "taskset", "time", "lightning", "fabric", "fit", "python"}  # fmt: skip
    return _is_script(word) or name in launchers or re.fullmatch(r"python[\d.]*", name) is not None
