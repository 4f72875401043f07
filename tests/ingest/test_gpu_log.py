from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.ingest import align, read_gpu_log, throttle_names
from tracelens.ingest.nvidia_smi import parse_decimal, parse_query_csv

SIMULATED = Path(__file__).resolve().parents[2] / ".." / "shared" / "traces" / "simulated"
DAY = 1_796_083_200_000_000_000  # 2026-12-01 00:00 UTC
HEADER = (
    "timestamp, index, uuid, utilization.gpu [%], utilization.memory [%], memory.used [MiB], "
    "memory.total [MiB], power.draw [W], clocks.sm [MHz], pcie.link.gen.current, clocks_event_reasons.active"
)
ROW = "2026/12/01 17:40:10.702, 0, GPU-aa, 89 %, 32 %, 1640 MiB, 40339 MiB, 294.03 W, 1410 MHz, 4, 0x0000000000000004"


def write(folder: Path, text: str | bytes, name: str = "gpu.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_query_csv_with_units(tmp_path: Path) -> None:
    log = read_gpu_log(write(tmp_path, f"{HEADER}\n{ROW}\n"))
    assert log.t_ns.tolist() == [DAY + (17 * 3600 + 40 * 60 + 10) * 10**9 + 702_000_000]
    assert log.index.tolist() == [0]
    assert log.uuid.tolist() == ["GPU-aa"]
    assert log.utilization_gpu.tolist() == [0.89]
    assert log.memory_used.tolist() == [1640 * 2**20]
    assert log.power_w.tolist() == [294.03]
    assert throttle_names(int(log.throttle_reasons[0])) == ("sw_power_cap",)
    assert np.isnan(log.pcie_width).all()
    assert log.clock == "local"


def test_missing_values_are_nan_never_zero(tmp_path: Path) -> None:
    cells = [
        "[N/A]",
        "[Not Supported]",
        "N/A",
        "[Unknown Error]",
        "[GPU is lost]",
        "[Insufficient Permissions]",
        "",
    ]
    lines = [f"2026/12/01 00:00:0{i}.000, 0, {cell}, {cell}, {cell}" for i, cell in enumerate(cells)]
    text = (
        "timestamp, index, utilization.gpu [%], memory.used [MiB], clocks_throttle_reasons.active\n"
        + "\n".join(lines)
    )
    log = read_gpu_log(write(tmp_path, text))
    assert len(log) == len(cells)
    assert np.isnan(log.utilization_gpu).all()
    assert np.isnan(log.memory_used).all()
    assert (log.throttle_reasons == -1).all()
    assert throttle_names(-1) == ()


def test_nounits_takes_units_from_the_header(tmp_path: Path) -> None:
    text = "memory.used [GiB], utilization.gpu [%], timestamp\n2, 50, 2026-12-01 00:00:00\n"
    log = read_gpu_log(write(tmp_path, text))
    assert log.memory_used.tolist() == [2 * 2**30]
    assert log.utilization_gpu.tolist() == [0.5]
    assert log.t_ns.tolist() == [DAY]


def test_localised_decimals_in_every_separator(tmp_path: Path) -> None:
    for name, line in {
        "comma": "2026/12/01 00:00:00.000, 0, 326,51 W, 7 %",
        "quoted": '2026/12/01 00:00:00.000, 0, "326,51 W", 7 %',
        "semicolon": "2026/12/01 00:00:00,000; 0; 326,51 W; 7 %",
        "tab": "2026/12/01 00:00:00,000\t0\t326,51\t7",
    }.items():
        mark = {"semicolon": ";", "tab": "\t"}.get(name, ",")
        head = mark.join(["timestamp", "index", "power.draw [W]", "utilization.gpu [%]"])
        log = read_gpu_log(write(tmp_path, f"{head}\n{line}\n"))
        assert log.power_w.tolist() == [326.51], name
        assert log.utilization_gpu.tolist() == [0.07], name


def test_several_gpus_and_rows_of_one(tmp_path: Path) -> None:
    rows = "\n".join(
        f"2026/12/01 00:00:0{second}.000, {gpu}, GPU-{gpu}, {10 * gpu + second} %"
        for second in range(3)
        for gpu in (0, 1)
    )
    log = read_gpu_log(write(tmp_path, f"timestamp, index, uuid, utilization.gpu [%]\n{rows}\n"))
    assert log.gpus == ("GPU-0", "GPU-1")
    assert log.of(1).utilization_gpu.tolist() == [0.10, 0.11, 0.12]
    assert log.of("GPU-0").t_ns.tolist() == [DAY, DAY + 10**9, DAY + 2 * 10**9]


def test_rows_are_sorted_by_time_and_repeated_headers_and_cut_lines_skipped(tmp_path: Path) -> None:
    head = "timestamp, index, utilization.gpu [%]"
    text = f"{head}\n2026/12/01 00:00:02, 0, 2 %\n{head}\n2026/12/01 00:00:01, 0, 1 %\n2026/12/01 00:00:03, 0"
    log = read_gpu_log(write(tmp_path, text))
    assert log.utilization_gpu.tolist() == [0.01, 0.02]
    assert any("number of columns" in note for note in log.notes)


def test_single_throttle_reason_columns_become_the_mask(tmp_path: Path) -> None:
    text = (
        "timestamp, clocks_throttle_reasons.sw_power_cap, clocks_throttle_reasons.hw_thermal_slowdown, utilization.gpu\n"
        "2026/12/01 00:00:00, Active, Active, 1 %\n2026/12/01 00:00:01, Not Active, Not Active, 1 %\n"
        "2026/12/01 00:00:02, [N/A], [N/A], 1 %\n"
    )
    assert read_gpu_log(write(tmp_path, text)).throttle_reasons.tolist() == [0x44, 0, -1]


def test_no_header_columns_are_taken_by_their_look_and_said(tmp_path: Path) -> None:
    log = read_gpu_log(write(tmp_path, f"{ROW}\n{ROW}\n"))
    assert log.utilization_gpu.tolist() == [0.89, 0.89]
    assert log.memory_total.tolist() == [40339 * 2**20] * 2
    assert log.throttle_reasons.tolist() == [4, 4]
    assert any("no header" in note for note in log.notes)


def test_other_encodings(tmp_path: Path) -> None:
    text = f"{HEADER}\n{ROW}\n"
    for data in (
        gzip.compress(text.encode()),
        text.encode("utf-16"),
        b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
    ):
        assert read_gpu_log(write(tmp_path, data)).power_w.tolist() == [294.03]


DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk  pviol  tviol     fb  rxpci  txpci
# Idx      W      C      C      %      %      %      %    MHz    MHz      %   bool     MB   MB/s   MB/s
    0    143     55      -     91     33      0      0   5001   1590     12      0   1640    100      7
    1     30     35      -      -      -      0      0   5001    300      0      0      3      0      0
# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec   mclk   pclk  pviol  tviol     fb  rxpci  txpci
# Idx      W      C      C      %      %      %      %    MHz    MHz      %   bool     MB   MB/s   MB/s
    0    144     56      -     92     34      0      0   5001   1590      0      1   1640    100      7
    1     30     35      -      0
"""


def test_dmon(tmp_path: Path) -> None:
    log = read_gpu_log(write(tmp_path, DMON))
    assert log.format == "dmon"
    assert log.clock == "relative"
    one = log.of(0)
    assert one.t_ns.tolist() == [0, 10**9]
    assert one.utilization_gpu.tolist() == [0.91, 0.92]
    assert one.memory_used.tolist() == [1640 * 2**20] * 2
    assert one.throttle_reasons.tolist() == [0x4, 0x20]
    assert one.pcie_rx_bytes_per_s.tolist() == [1e8, 1e8]
    assert np.isnan(log.of(1).utilization_gpu).all()
    assert any("incomplete" in note for note in log.notes)
    placed = align(log, DAY, DAY + 10**9)
    assert placed.log is log
    assert placed.overlap_ns == 0
    assert "no times" in placed.message


def test_dmon_with_date_spreads_samples_within_a_second(tmp_path: Path) -> None:
    text = "#Date       Time        gpu     sm\n#YYYYMMDD   HH:MM:SS    Idx      %\n" + "".join(
        f" 20261201   00:00:0{second}      0     {value}\n" for second, value in ((0, 1), (0, 2), (1, 3))
    )
    log = read_gpu_log(write(tmp_path, text))
    assert log.clock == "local"
    assert log.t_ns.tolist() == [DAY, DAY + 500_000_000, DAY + 10**9]


def test_dmon_with_time_only_finds_the_day_over_midnight(tmp_path: Path) -> None:
    text = "#Time        gpu     sm\n#HH:MM:SS    Idx      %\n" + "".join(
        f" {time}      0     {value}\n" for time, value in (("23:59:58", 1), ("23:59:59", 2), ("00:00:00", 3))
    )
    log = read_gpu_log(write(tmp_path, text))
    assert log.clock == "time_of_day"
    assert np.diff(log.t_ns).tolist() == [10**9, 10**9]
    placed = align(log, DAY - 2 * 10**9, DAY)
    assert placed.log is not None
    assert placed.log.t_ns.tolist() == [DAY - 2 * 10**9, DAY - 10**9, DAY]


def test_gpu_jsonl_of_a_bundle_with_a_cut_last_line(tmp_path: Path) -> None:
    text = (
        '{"ts": 1796083200000000000, "uuid": "GPU-a", "index": 0, "rank": 1, "utilization_gpu": 0.5, "memory_used": null, '
        '"throttle_reasons": 32, "gpm": {"sm_util": 0.25, "dram_bw": null}, "foreign_pids": [7, 8]}\n'
        '{"ts": 1796083201000000000, "uuid": "GPU-a", "index": 0, "utilization_gpu": null, "gpm": null, "foreign_pids": null}\n'
        '{"ts": 17960832'
    )
    log = read_gpu_log(write(tmp_path, text, "gpu.jsonl"))
    assert log.clock == "utc"
    assert log.utilization_gpu[0] == 0.5
    assert np.isnan(log.utilization_gpu[1])
    assert np.isnan(log.memory_used).all()
    assert log.throttle_reasons.tolist() == [32, -1]
    assert log.gpm_sm_util[0] == 0.25
    assert np.isnan(log.gpm_dram_bw).all()
    assert log.foreign_pids.tolist() == [2, -1]
    assert log.rank.tolist() == [1, -1]
    assert not log.notes


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"  \n\n", "is empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0", "binary"),
        (bytes(range(128, 256)) * 8, "binary"),
        (b"\x1f\x8b\x08\x00broken", "damaged gzip"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"epoch,loss\n1,2\n", "no GPU log"),
        (b"pid, process_name, used_gpu_memory [MiB]\n1, python, 3 MiB\n", "query-gpu"),
        (b"index, utilization.gpu [%]\n0, 3 %\n", "no timestamp"),
        (b"timestamp, index\n2026/12/01 00:00:00, 0\n", "no GPU measurement"),
        (b"timestamp, utilization.gpu [%]\n", "no complete row"),
        (b"timestamp, utilization.gpu [%]\nyesterday, 3 %\n", "no readable timestamp"),
        (b"# gpu sm\n# Idx %\n", "without a complete row"),
        (b'{"loss": 3}\n', "no GPU samples"),
        (
            b"# gpu        pid  type    sm   mem\n# Idx          #   C/G     %     %\n    0       1234     C    91    33\n",
            "pmon",
        ),
        (
            b"Tue Dec  1 00:00:00 2026\n+---+\n| NVIDIA-SMI 550.54 Driver Version: 550.54 |\n+---+\n",
            "one look",
        ),
        (b"==============NVSMI LOG==============\nTimestamp : x\n", "one look"),
    ],
)
def test_bad_input_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InputError) as error:
        read_gpu_log(write(tmp_path, content))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_gpu_log(tmp_path / "none.csv")
    with pytest.raises(InputError, match="folder"):
        read_gpu_log(tmp_path)


NUMBERS = st.one_of(st.none(), st.floats(0, 1e6, allow_nan=False).map(lambda value: round(value, 2)))


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(
        st.tuples(st.integers(0, 86_399_999), NUMBERS, NUMBERS, st.integers(0, 2**63 - 1)),
        min_size=1,
        max_size=8,
    ),
    order=st.permutations(["timestamp", "power", "utilization", "mask"]),
    units=st.booleans(),
)
def test_any_order_of_columns_reads_back(
    data: list[tuple[int, float | None, float | None, int]], order: list[str], units: bool
) -> None:
    names = {
        "timestamp": "timestamp",
        "power": "power.draw [W]",
        "utilization": "utilization.gpu [%]",
        "mask": "clocks_event_reasons.active",
    }
    lines = [", ".join(names[column] for column in order)]
    for milliseconds, power, utilization, mask in data:
        second, rest = divmod(milliseconds, 1000)
        cells = {
            "timestamp": f"2026/12/01 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.{rest:03d}",
            "power": "[N/A]" if power is None else f"{power:.2f}{' W' if units else ''}",
            "utilization": "[Not Supported]"
            if utilization is None
            else f"{utilization:.2f}{' %' if units else ''}",
            "mask": f"0x{mask:016X}",
        }
        lines.append(", ".join(cells[column] for column in order))
    log = parse_query_csv("\n".join(lines), "x")
    expected = sorted(data, key=lambda row: row[0])
    assert ((log.t_ns - DAY) // 1_000_000).tolist() == [row[0] for row in expected]
    for read, (_, power, utilization, mask) in zip(
        zip(log.power_w, log.utilization_gpu, log.throttle_reasons, strict=True), expected, strict=True
    ):
        assert np.isnan(read[0]) if power is None else read[0] == pytest.approx(power)
        assert np.isnan(read[1]) if utilization is None else read[1] == pytest.approx(utilization / 100)
        assert read[2] == mask


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        log = parse_query_csv(f"timestamp, utilization.gpu [%]\n{text}", "x")
    except InputError:
        return
    assert len(log) > 0


def test_decimals() -> None:
    values = {
        "326.51": 326.51,
        "326,51": 326.51,
        "1.234,5": 1234.5,
        "1,234.5": 1234.5,
        "12'345.5": 12345.5,
        "x": None,
        "": None,
    }
    assert {text: parse_decimal(text) for text in values} == values


@pytest.mark.skipif(not SIMULATED.is_dir(), reason="the handed traces are not here")
def test_handed_logs_fit_utc() -> None:
    files = sorted(SIMULATED.glob("**/gpu.csv"))
    assert files
    for file in files:
        log = read_gpu_log(file)
        assert not log.notes
        assert np.isfinite(log.utilization_gpu).all()
        assert (log.utilization_gpu <= 1).all()
        assert (log.memory_used < log.memory_total).all()
    throttled = read_gpu_log(SIMULATED / "throttle_half" / "gpu.csv")
    assert {name for bits in throttled.throttle_reasons for name in throttle_names(int(bits))} - {"gpu_idle"}


def test_numbers_that_no_gpu_reports_are_missing(tmp_path: Path) -> None:
    huge = ROW.replace("89 %", "1e308 %").replace("1410 MHz", "1e308 MHz").replace(" 4,", " 1e308,")
    log = read_gpu_log(write(tmp_path, f"{HEADER}\n{huge}\n{ROW}\n"))
    assert np.isnan([log.utilization_gpu[0], log.sm_clock_mhz[0], log.pcie_gen[0]]).all()
    assert (log.utilization_gpu[1], log.sm_clock_mhz[1], log.pcie_gen[1]) == (0.89, 1410, 4)
