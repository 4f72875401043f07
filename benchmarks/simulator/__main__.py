"""``python -m benchmarks.simulator``: families, generate, generate-all, fixtures, realism."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from pathlib import Path

from benchmarks.simulator import families, simulate, write_bundle, write_trace


def _one(job: tuple[str, int, str, str, bool, str]) -> tuple[str, int, int, str]:
    family, seed, split, out, bundle, dialect = job
    try:
        run = simulate(family, seed, split)
    except RuntimeError as error:
        return family, seed, -1, str(error)
    if bundle:
        write_bundle(run, out)
    else:
        write_trace(run, out, dialect)
    return family, seed, run.rejected, run.truth.cause


def _generate_all(a: argparse.Namespace) -> int:
    names = families(a.split)
    jobs = []
    for i in range(a.n):
        name, seed = names[i % len(names)], a.seed * 100003 + i // len(names)
        # every tenth trace speaks the old dialect
        dialect = (
            "old" if a.dialect == "mixed" and i % 10 == 9 else "new" if a.dialect == "mixed" else a.dialect
        )
        jobs.append((name, seed, a.split, str(Path(a.out) / f"{name}-{seed}"), a.bundle, dialect))
    began = time.perf_counter()
    rejected: dict[str, list[int]] = {}
    failed = []
    with multiprocessing.get_context("fork").Pool(a.jobs) as pool:
        for name, seed, n, cause in pool.imap_unordered(_one, jobs, chunksize=4):
            rejected.setdefault(name, []).append(max(n, 0))
            if n < 0:
                failed.append((name, seed, cause))
    took = time.perf_counter() - began
    report = {
        n: {"runs": len(v), "rejected_draws": sum(v), "rejection_rate": round(sum(v) / (sum(v) + len(v)), 3)}
        for n, v in sorted(rejected.items())
    }
    summary = {
        "n": a.n,
        "seed": a.seed,
        "split": a.split,
        "seconds": round(took, 1),
        "families": report,
        "failed": failed,
    }
    Path(a.out, "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    for name, row in report.items():
        print(
            f"{name:32s} {row['runs']:4d} runs  {row['rejected_draws']:5d} draws rejected "
            f"({100 * row['rejection_rate']:.0f} %)"
        )
    print(f"{a.n - len(failed)} runs in {took:.1f} s, {len(failed)} without a draw that fits")
    return 1 if failed else 0


def main(argv: list[str] | None = None) -> int:
    """Parse ``argv`` and run one command; 0 when all is well."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__)
    sub = parser.add_subparsers(dest="command", required=True)
    one = sub.add_parser("generate", help="one run of a family")
    one.add_argument("--family", required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--split", choices=("train", "test"), default="test")
    one.add_argument("--out", required=True)
    one.add_argument("--bundle", action="store_true", help="write a bundle instead of traces with side files")
    one.add_argument("--dialect", choices=("new", "old"), default="new")
    many = sub.add_parser("generate-all", help="all families in turn")
    many.add_argument("--n", type=int, default=1000)
    many.add_argument("--seed", type=int, default=0)
    many.add_argument("--split", choices=("train", "test"), default="test")
    many.add_argument("--out", required=True)
    many.add_argument("--bundle", action="store_true")
    many.add_argument("--dialect", choices=("new", "old", "mixed"), default="mixed")
    many.add_argument("--jobs", type=int, default=2)
    listing = sub.add_parser("families", help="list the families")
    listing.add_argument("--split", choices=("train", "test"), default="test")
    sub.add_parser("fixtures", help="rewrite the small fixtures of the tests").add_argument(
        "--out", default=None
    )
    real = sub.add_parser("realism", help="compare simulated with real traces")
    real.add_argument("folder")
    a = parser.parse_args(argv)
    if a.command == "generate":
        try:
            run = simulate(a.family, a.seed, a.split)
        except (ValueError, RuntimeError) as error:
            print(error, file=sys.stderr)
            return 2
        where = write_bundle(run, a.out) if a.bundle else write_trace(run, a.out, a.dialect)
        t = run.truth
        print(
            f"{where}: {t.bottleneck} {t.cause}, {t.base_us / 1e3:.1f} ms a step, "
            f"{run.rejected} draws rejected"
        )
        return 0
    if a.command == "generate-all":
        Path(a.out).mkdir(parents=True, exist_ok=True)
        return _generate_all(a)
    if a.command == "families":
        from benchmarks.simulator.families import family

        for name in families(a.split):
            f = family(name)
            print(f"{name:32s} {'decoy  ' if f.decoy else ''}{f.note}")
        return 0
    if a.command == "fixtures":
        from benchmarks.simulator.fixtures import write_fixtures

        for path, size in write_fixtures(Path(a.out) if a.out else None):
            print(f"{size:8d} {path}")
        return 0
    from benchmarks.simulator.realism import report

    return report(Path(a.folder))


if __name__ == "__main__":
    sys.exit(main())
