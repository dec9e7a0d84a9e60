"""`swarmd doctor`: what it finds, that each failing line says what to do, and a real dry step."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import FakeDaemon, swarmd
from corpus_helpers import write_texts

from swarmd.cli import bench_device
from swarmd.cli.doctor import fit, machine
from swarmd.devices import DeviceTable, SystemDevice, TorchDevice
from swarmd.home import Home
from swarmd.identity import backup, load_or_create
from swarmd.peer_config import effective_config
from swarmd.store import write_bytes

GB = 10**9
CPU = DeviceTable(torch_version="2.13.0+cpu", cpu_name="a processor, 2 threads")
GPU = SystemDevice(
    vendor="nvidia", index=0, name="NVIDIA RTX 4090", uuid="GPU-1a2b", pci="00000000:01:00.0",
    memory_total_bytes=24 * GB, memory_free_bytes=22 * GB,
)  # fmt: skip
SEEN = TorchDevice(number=0, name=GPU.name, uuid=GPU.uuid, memory_total_bytes=24 * GB)
USABLE = replace(
    CPU, torch_version="2.13.0+cu126", build="cuda", system=(GPU,), usable=(SEEN,)
)  # fmt: skip
RUN_FILE = '[run]\nname = "demo"\npreset = "tiny"\nstages = 2\n'


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    file = tmp_path / "run.toml"
    file.write_text(RUN_FILE)
    return file


def with_devices(
    monkeypatch: pytest.MonkeyPatch, table: DeviceTable, measured: dict[str, Any] | None = None
) -> None:
    monkeypatch.setattr("swarmd.device_probe.probe_devices", lambda: table)
    if measured is not None:
        monkeypatch.setattr(fit, "ask_dry_step", lambda *given: measured)


def found_by(name: str, found: dict[str, Any]) -> dict[str, Any]:
    (finding,) = (one for one in found["findings"] if one["check"] == name)
    return finding  # type: ignore[no-any-return]


def test_everything_that_is_wrong_says_what_to_do(
    home: Home, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, replace(CPU, system=(GPU,)), {"error": "out_of_memory", "text": "x"})
    monkeypatch.setattr(machine, "memory_free_bytes", lambda: 10**8)
    found = swarmd("doctor", "--run", run_file, "--json", home=home)
    report = found.object
    wrong = [one for one in report["findings"] if one["severity"] != "ok"]
    assert {"memory", "gpu"} <= {one["check"] for one in wrong}
    assert all(one["fix"] for one in wrong)


def test_fresh_home_on_a_machine_without_a_gpu_is_well_and_untouched(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_devices(monkeypatch, CPU)
    found = swarmd("doctor", home=home)
    assert found.code == 0
    assert "ERROR" not in found.out
    assert list(tmp_path.iterdir()) == []


def test_gpu_that_the_installed_torch_cannot_use_is_one_line_with_the_remedy(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, replace(CPU, system=(GPU,)))
    finding = found_by("gpu", swarmd("doctor", "--json", home=home).object)
    assert finding["severity"] == "warn"
    assert "RTX 4090" in finding["text"]
    assert "install a torch build" in finding["fix"]


@pytest.mark.parametrize(("gpu", "code"), [("0", 0), ("GPU-1a2b", 0), ("01:00.0", 0), ("3", 1)])
def test_gpu_is_named_by_index_uuid_or_pci_and_a_missing_one_is_an_error(
    home: Home, monkeypatch: pytest.MonkeyPatch, gpu: str, code: int
) -> None:
    with_devices(monkeypatch, USABLE)
    found = swarmd("doctor", "--gpu", gpu, "--json", home=home)
    device = found_by("device", found.object)
    assert found.code == code
    assert device["severity"] == ("error" if code else "ok")
    assert ("22.0 GB free" in device["text"]) == (code == 0)


def test_torch_that_cannot_be_imported_is_an_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, DeviceTable(torch_error="ImportError: libcudart.so.12"))
    found = swarmd("doctor", "--json", home=home)
    assert found.code == 1
    assert "libcudart" in found_by("torch", found.object)["text"]


def test_verdict_names_stages_speed_and_what_the_line_must_carry(
    home: Home, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = {
        "stage": 1, "micro_batch_s": 0.02, "tokens_per_s": 1800.0, "sent_bytes_per_token": 400.0,
        "micro_batch": 2,
    }  # fmt: skip
    with_devices(monkeypatch, USABLE, measured)
    found = swarmd("doctor", "--run", run_file, "--json", home=home).object
    assert found["verdict"] == {
        "stages": 1,
        "tokens_per_s": 1800.0,
        "needs_up_bytes_per_s": 720_000.0,
        "text": "this machine can hold any stage of demo, about 1.80 k tok/s; needs 5.8 Mbit/s up",
    }
    assert found["fit"]["stages_possible"] > 1


def test_verdict_leaves_out_the_first_stage_where_its_data_are_missing(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, USABLE)
    texts, file = write_texts(tmp_path / "in"), tmp_path / "own.toml"
    file.write_text(
        f'[run]\nname = "own"\npreset = "tiny"\nstages = 2\ndata = "{texts}"\n'
        "sequence_tokens = 16\n[data]\nheld_out_sequences = 3\n"
    )
    assert swarmd("run", "create", file, home=home).code == 0
    (tmp_path / "in").rename(tmp_path / "moved")
    shutil.rmtree(home.cache)
    look = ("doctor", "--run", "own", "--no-step", "--json")
    found = swarmd(*look, home=home).object
    assert found_by("data", found)["severity"] == "warn"
    assert found["verdict"]["text"] == "this machine can hold stage 1 of own"
    moved = ("device.data_source", f"text:{tmp_path}/moved/*.txt")
    assert swarmd("config", "set", *moved, home=home).code == 0
    found = swarmd(*look, home=home).object
    assert found_by("data", found)["severity"] == "ok"
    assert found["verdict"]["text"] == "this machine can hold any stage of own"


def test_every_gpu_that_is_named_is_looked_at(
    home: Home, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = {"uuid": "GPU-2b3c", "name": "NVIDIA RTX 3060"}
    small = replace(GPU, index=1, pci="00000000:02:00.0", memory_free_bytes=10**6, **second)
    table = replace(
        USABLE,
        system=(GPU, small),
        usable=(SEEN, replace(SEEN, number=1, memory_total_bytes=12 * GB, **second)),
    )
    measured = {
        "stage": 1, "micro_batch_s": 0.02, "tokens_per_s": 1800.0, "sent_bytes_per_token": 400.0,
        "micro_batch": 2,
    }  # fmt: skip
    with_devices(monkeypatch, table, measured)
    line = ("doctor", "--gpu", "0", "--gpu", "GPU-2b3c", "--run", run_file, "--json")
    found = swarmd(*line, home=home).object
    devices = [one["text"] for one in found["findings"] if one["check"] == "device"]
    assert ["4090" in devices[0], "3060" in devices[1]] == [True, True]
    verdict = found["verdict"]
    assert (verdict["stages"], verdict["tokens_per_s"]) == (1, 1800.0), "one of them is too small"
    assert "cuda:1 (NVIDIA RTX 3060) can hold no stage" in verdict["text"]
    assert found["fit"]["device_bytes"] == 10**6


def test_power_limit_says_who_may_set_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, USABLE)
    monkeypatch.setenv("SWARMD_SCHEDULE_POWER_LIMIT", "200")
    finding = found_by("power", swarmd("doctor", "--json", home=home).object)
    assert finding["severity"] == "warn"
    assert "sudo nvidia-smi -i GPU-1a2b -pl 200" in finding["fix"]


def test_model_that_does_not_fit_is_an_error_with_a_verdict(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "large.toml"
    file.write_text('[run]\nname = "large"\npreset = "8b"\n')
    with_devices(monkeypatch, USABLE)
    found = swarmd("doctor", "--run", file, "--json", home=home)
    assert found.code == 1
    assert found_by("fit", found.object)["severity"] == "error"
    assert found.object["verdict"]["stages"] == 0


def test_bench_device_says_how_the_peak_is_made_known(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_device, "probe_devices", lambda: USABLE)
    answer = {"dtype": "bfloat16", "threads": 2, "flops_per_s": 151_234_000_000_000.0}
    monkeypatch.setattr(bench_device, "ask_device", lambda *given: answer)
    found = swarmd("bench", "device", "--gpu", "0", home=home)
    assert found.lines == [
        "cuda:0  NVIDIA RTX 4090: 151T operations a second in bfloat16",
        "for the MFU: `swarmd config set device.peak_flops 151T`",
    ]
    assert swarmd("config", "set", "device.peak_flops", "151T", home=home).code == 0
    assert effective_config(home).config.peak_flops == 151e12
    row = swarmd("bench", "device", "--gpu", "0", "--json", home=home).object["rows"][0]
    assert (row["flops_per_s"], row["threads"]) == (151_234_000_000_000.0, None)


def test_port_in_use_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, CPU)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("SWARMD_NET_LISTEN", f"127.0.0.1:{port}")
        finding = found_by("port", swarmd("doctor", "--json", home=home).object)
    assert (finding["severity"], str(port) in finding["text"]) == ("warn", True)


def test_neighbours_that_could_not_dial_a_running_peer_are_an_error(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, CPU)
    daemon = FakeDaemon(home)
    daemon.status["peer"]["reachable"] = "no"
    with daemon.running():
        found = swarmd("doctor", "--json", home=home)
    assert (found.code, found_by("port", found.object)["severity"]) == (1, "error")


def test_identity_is_shown_with_its_backup_and_open_files_are_found(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_devices(monkeypatch, CPU)
    home.create()
    load_or_create(home)
    assert "never backed up" in swarmd("doctor", home=home).out
    backup(home, tmp_path / "key")
    write_bytes(home.log_file, b"", mode=0o644)
    found = swarmd("doctor", "--json", home=home).object
    assert "backed up" in found_by("identity", found)["text"]
    assert found_by("identity", found)["severity"] == "ok"
    assert str(home.log_file) in found_by("files", found)["fix"]


def test_at_60_columns_every_line_can_be_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, replace(CPU, system=(GPU,)))
    lines = swarmd("doctor", "--no-color", home=home, width=60).lines
    assert all(len(line) <= 60 or len(line.split()[-1]) > 30 for line in lines)


def test_link_of_a_run_nobody_here_knows_is_a_usage_error(home: Home) -> None:
    found = swarmd("doctor", "--run", "swarmd://" + "ab" * 32, "--json", home=home)
    assert (found.code, found.error["code"]) == (2, "unknown_run")


@pytest.mark.process
@pytest.mark.slow
def test_a_stage_of_the_run_is_really_trained(
    home: Home, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "DRY_STEP_S", 0.05)
    monkeypatch.setenv("SWARMD_DEVICE_THREADS", "1")
    monkeypatch.setenv("SWARMD_DEVICE_DEVICE", "cpu")
    found = swarmd("doctor", "--run", run_file, "--json", home=home)
    step = found_by("step", found.object)
    assert found.code == 0, found.out
    assert step["data"]["micro_batches"] >= 3
    assert step["data"]["tokens_per_s"] > 0
    assert step["data"]["sent_bytes_per_token"] > 8, "a gradient goes back"
    assert found.object["verdict"]["tokens_per_s"] == step["data"]["tokens_per_s"]
