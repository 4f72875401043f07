"""Stands for srun: starts two tasks of one step with Slurm's variables."""

import os
import subprocess
import sys

tasks = []
for task in range(2):
    env = dict(os.environ, SLURM_JOB_ID="4711", SLURM_STEP_ID="0", SLURM_NTASKS="2", SLURM_NNODES="1")
    env.update(SLURM_PROCID=str(task), SLURM_LOCALID=str(task), SLURM_CPUS_PER_TASK="1")
    tasks.append(subprocess.Popen(sys.argv[1:], env=env))
sys.exit(max(task.wait() for task in tasks))
