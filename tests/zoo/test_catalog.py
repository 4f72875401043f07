from __future__ import annotations

import ast

import pytest

from tests.zoo.catalog import JOBS, ZOO, Job
from tracelens.diagnose.rules import load_rules
from tracelens.record.options import parse_settings


def test_at_least_sixteen_jobs_and_half_of_them_burn_cpu_or_disk() -> None:
    assert len(ZOO) >= 16
    assert sum(job.real for job in ZOO) * 2 >= len(ZOO)
    assert {path.stem for path in JOBS.glob("*.py")} - {"common"} == {job.name for job in ZOO}


@pytest.mark.parametrize("job", ZOO, ids=lambda job: job.name)
def test_a_job_names_rules_that_exist_and_a_repair_that_can_be_made(job: Job) -> None:
    assert set(job.causes) <= set(load_rules(()))
    assert bool(job.sets) + bool(job.switch) == (0 if job.name == "healthy" else 1)
    parse_settings(job.sets)
    for text in job.sweep:
        assert parse_settings((text,))[0].key == job.parameter
    source = job.script.read_text("utf-8")
    assert ast.get_docstring(ast.parse(source))
    if job.switch:
        assert f"{job.switch.removeprefix('--').replace('-', '_')}=" in source
