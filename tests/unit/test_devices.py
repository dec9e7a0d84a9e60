"""Which device is taken, and what is said when none can be: on made-up machines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from swarmd.device_probe import make_table, parse_nvidia_smi, parse_rocm_smi, thread_count
from swarmd.devices import (
    DeviceTable,
    SystemDevice,
    TorchDevice,
    choose_devices,
    describe_usable,
    visible_entries,
)
from swarmd.errors import UserError

GIB = 1 << 30
UUIDS = [
    "GPU-11111111-aaaa-4444-8888-000000000000",
    "GPU-22222222-bbbb-4444-8888-000000000000",
    "GPU-33333333-cccc-4444-8888-000000000000",
]
PCIS = ["00000000:19:00.0", "00000000:3B:00.0", "00000000:D8:00.0"]
NAMES = ["RTX 3060", "RTX 4090", "A100"]
MIG = "MIG-dddddddd-5678-5abc-8def-000000000000"

SYSTEM = tuple(
    SystemDevice(
        vendor="nvidia",
        index=index,
        name=f"NVIDIA {NAMES[index]}",
        uuid=UUIDS[index],
        pci=PCIS[index],
        memory_total_bytes=24 * GIB,
        memory_free_bytes=free * GIB,
    )
    for index, free in enumerate((8, 20, 12))
)


def torch_device(number: int, index: int, **changes: Any) -> TorchDevice:
    """torch's number `number` is the system's `index`. As torch writes UUIDs and addresses."""
    values: dict[str, Any] = {
        "number": number,
        "name": SYSTEM[index].name,
        "uuid": UUIDS[index].removeprefix("GPU-"),
        "pci": PCIS[index].lower().removeprefix("0000"),
        "memory_total_bytes": 24 * GIB,
        "memory_free_bytes": GIB,
    }
    return TorchDevice(**{**values, **changes})


# torch counts fastest first, the system by PCI address
CUDA = DeviceTable(
    torch_version="2.13.0+cu130",
    build="cuda",
    usable=(torch_device(0, 1), torch_device(1, 2), torch_device(2, 0)),
    system=SYSTEM,
    cpu_name="Some CPU, 16 threads",
)
NO_GPU = replace(CUDA, torch_version="2.13.0+cpu", build="cpu", usable=(), system=())


def chosen(table: DeviceTable, gpu: str = "", device: str = "auto") -> tuple[str, str]:
    """(what torch calls it, why)."""
    ((choice, reason),) = choose_devices(table, [gpu] if gpu else [], device)
    return choice.device, reason


def refused(table: DeviceTable, *gpus: str, device: str = "auto") -> UserError:
    with pytest.raises(UserError) as caught:
        choose_devices(table, gpus, device)
    assert caught.value.exit_code == 2
    return caught.value


# ------------------------------------------------------------------------------------------- --gpu


def test_an_index_counts_as_the_system_does_not_as_torch_does() -> None:
    assert [chosen(CUDA, str(index))[0] for index in range(3)] == ["cuda:2", "cuda:0", "cuda:1"]


@pytest.mark.parametrize("text", [UUIDS[2], UUIDS[2].removeprefix("GPU-"), "GPU-3333", "gpu-33333"])
def test_a_uuid_or_its_beginning_names_a_gpu(text: str) -> None:
    assert chosen(CUDA, text) == ("cuda:1", "asked for by its UUID")


@pytest.mark.parametrize("text", ["00000000:3B:00.0", "0000:3b:00.0", "3b:00.0", "3B:00"])
def test_a_pci_address_names_a_gpu_in_each_of_its_forms(text: str) -> None:
    assert chosen(CUDA, text) == ("cuda:0", "asked for by its PCI address")


def test_several_gpus_are_several_choices_and_one_twice_is_refused() -> None:
    choices = choose_devices(CUDA, ["2", "0"])
    assert [choice.device for choice, _ in choices] == ["cuda:1", "cuda:2"]
    assert refused(CUDA, "0", UUIDS[0]).code == "usage"


def test_what_does_not_exist_is_told_with_what_does() -> None:
    for text in ("3", "GPU-99999999", "00:00.0"):
        error = refused(CUDA, text)
        assert error.code == "device_missing"
        assert "does not exist" in str(error)
        assert "--gpu 1: NVIDIA RTX 4090" in error.hint
        assert "--device cpu: Some CPU" in error.hint


def test_nonsense_and_ambiguity_are_told_apart_from_absence() -> None:
    assert "not an index" in str(refused(CUDA, "fast one"))
    twins = replace(
        CUDA, usable=(torch_device(0, 0, uuid="abcd-1"), torch_device(1, 1, uuid="abcd-2")),
        system=(),
    )  # fmt: skip
    assert "fits 2" in str(refused(twins, "GPU-abcd"))
    assert refused(CUDA, "0", device="cpu").code == "usage"


# ------------------------------------------------------------------------ what torch cannot use


def test_a_cpu_only_torch_beside_a_real_gpu_is_the_torch_s_fault() -> None:
    table = replace(CUDA, torch_version="2.13.0+cpu", build="cpu", usable=())
    error = refused(table, "1")
    assert error.code == "device_unusable"
    assert "GPU 1 (NVIDIA RTX 4090) exists" in str(error)
    assert "2.13.0+cpu is built without GPU support" in str(error)
    assert error.hint == "these work: --device cpu: Some CPU, 16 threads"
    device, reason = chosen(table)
    assert device == "cpu"
    assert "is there, but" in reason


def test_a_gpu_of_the_other_vendor_needs_another_build() -> None:
    amd = SystemDevice(vendor="amd", index=0, name="AMD Instinct MI300X", pci="0000:03:00.0")
    table = replace(CUDA, system=(amd,), usable=())
    assert "is built for NVIDIA GPUs" in str(refused(table, "0"))
    table = replace(CUDA, build="rocm", usable=())
    assert "is built for AMD GPUs" in str(refused(table, "0"))


def test_a_driver_that_torch_cannot_use_is_named() -> None:
    assert "driver" in str(refused(replace(CUDA, usable=()), "0"))


def test_without_torch_nothing_works_and_the_reason_is_torch_s_own() -> None:
    table = DeviceTable(torch_error="ImportError: libcudart.so.13", system=SYSTEM)
    error = refused(table)
    assert "libcudart.so.13" in str(error)
    assert error.hint == "no device works"


# --------------------------------------------------------------------------- CUDA_VISIBLE_DEVICES


def test_a_gpu_that_the_environment_hides_exists_but_cannot_be_used() -> None:
    table = replace(CUDA, visible="2", usable=(torch_device(0, 2),))
    assert chosen(table, "2")[0] == "cuda:0"
    error = refused(table, "1")
    assert error.code == "device_unusable"
    assert "CUDA_VISIBLE_DEVICES=2 hides it" in str(error)
    assert "--gpu 2: NVIDIA A100" in error.hint
    assert chosen(table) == ("cuda:0", "the only GPU")


def test_the_environment_may_name_uuids() -> None:
    table = replace(CUDA, visible=f"{UUIDS[1]},{UUIDS[0]}")
    table = replace(table, usable=(torch_device(0, 1), torch_device(1, 0)))
    assert chosen(table, "0")[0] == "cuda:1"
    assert chosen(table, UUIDS[1])[0] == "cuda:0"


def test_without_the_system_s_tool_indexes_come_from_the_environment() -> None:
    usable = (torch_device(0, 2), torch_device(1, 0))
    table = replace(CUDA, system=(), visible="2,0", usable=usable)
    assert chosen(table, "2")[0] == "cuda:0"
    assert chosen(table, "0")[0] == "cuda:1"
    assert refused(table, "1").code == "device_missing"
    table = replace(table, visible=f"{UUIDS[2]},{UUIDS[0]}")
    assert chosen(table, UUIDS[2])[0] == "cuda:0"
    assert refused(table, "0").code == "device_missing"  # nobody knows its index
    assert chosen(replace(table, visible=None), "1")[0] == "cuda:1"


def test_an_empty_environment_hides_everything() -> None:
    table = replace(CUDA, visible="", usable=())
    assert "hides it" in str(refused(table, "0"))
    assert chosen(table)[0] == "cpu"


@pytest.mark.parametrize(
    ("value", "entries"),
    [
        (None, ()),
        ("", ()),
        ("0,2", ("0", "2")),
        (" 1 , GPU-ab ", ("1", "GPU-ab")),
        ("0,-1,2", ("0",)),
        ("NoDevFiles", ()),
        (MIG, (MIG,)),
    ],
)
def test_what_follows_an_invalid_entry_is_invisible(value: str, entries: tuple[str, ...]) -> None:
    assert visible_entries(value) == entries


# -------------------------------------------------------------------------------- MIG, ROCm, MPS


def test_a_partition_is_reached_through_the_worker_s_environment() -> None:
    table = replace(CUDA, system=(replace(SYSTEM[0], mig=(MIG,)), *SYSTEM[1:]))
    ((choice, _),) = choose_devices(table, [MIG])
    assert choice.device == "cuda:0"
    assert choice.environment == {"CUDA_VISIBLE_DEVICES": MIG}
    assert choose_devices(table, [MIG[:12].lower()])[0][0] == choice
    assert refused(table, "MIG-99999999").code == "device_missing"


def test_a_partition_that_the_environment_names_is_already_there() -> None:
    partition = TorchDevice(number=0, name="NVIDIA A100 MIG 1g.10gb", memory_total_bytes=10 * GIB)
    table = replace(CUDA, visible=MIG, usable=(partition,))
    ((choice, _),) = choose_devices(table, [MIG])
    assert (choice.device, choice.environment) == ("cuda:0", {})


def test_a_partition_that_the_environment_hides_cannot_be_used() -> None:
    table = replace(CUDA, system=(replace(SYSTEM[0], mig=(MIG,)),), visible="1")
    assert "hides it" in str(refused(table, MIG))


def test_a_rocm_build_calls_its_devices_cuda_and_is_told_apart() -> None:
    card = SystemDevice(
        vendor="amd", index=0, name="AMD Instinct MI300X", uuid="0xf00d", pci="0000:03:00.0"
    )
    device = TorchDevice(number=0, name="AMD Instinct MI300X", pci="0000:03:00.0")
    table = replace(
        CUDA, torch_version="2.13.0+rocm7.0", build="rocm", system=(card,), usable=(device,)
    )
    ((choice, _),) = choose_devices(table)
    assert (choice.kind, choice.device) == ("rocm", "cuda:0")
    assert chosen(table, "0xf00d")[0] == "cuda:0"
    assert chosen(table, "03:00.0")[0] == "cuda:0"


def test_where_nothing_names_the_devices_their_order_must_do() -> None:
    cards = tuple(SystemDevice(vendor="amd", index=n, name=f"Card {n}") for n in range(2))
    devices = tuple(TorchDevice(number=n, name=f"Card {n}") for n in range(2))
    table = replace(CUDA, build="rocm", system=cards, usable=devices)
    assert chosen(table, "1")[0] == "cuda:1"
    hidden = replace(table, usable=devices[:1])
    assert refused(hidden, "1").code == "device_unusable"


def test_mps_is_taken_where_it_is_and_refused_where_it_is_not() -> None:
    mac = replace(NO_GPU, torch_version="2.13.0", mps=True)
    assert chosen(mac)[0] == "mps"
    assert chosen(mac, device="mps")[0] == "mps"
    assert chosen(mac, device="cpu")[0] == "cpu"
    assert refused(NO_GPU, device="mps").code == "device_unusable"
    assert "one of auto, cpu, mps" in str(refused(NO_GPU, device="tpu"))


# -------------------------------------------------------------------------------------------- auto


def test_auto_takes_the_gpu_with_the_most_free_memory() -> None:
    assert chosen(CUDA) == ("cuda:0", "most free memory of 3 GPUs")
    assert chosen(replace(CUDA, system=()))[0] == "cuda:0"  # equal: the first


def test_auto_without_a_gpu_is_the_cpu() -> None:
    assert chosen(NO_GPU) == ("cpu", "no GPU was found")
    assert describe_usable(NO_GPU) == ["--device cpu: Some CPU, 16 threads"]
    assert refused(NO_GPU, "0").code == "device_missing"


# ------------------------------------------------------------------------------------------- probe

NVIDIA_TABLE = """\
0, NVIDIA A100-SXM4-80GB, GPU-11111111-aaaa-4444-8888-000000000000, 00000000:07:00.0, 81920, 81000
1, Tesla M60, GPU-22222222-bbbb-4444-8888-000000000000, 00000000:0B:00.0, 8192, [N/A]
Unable to determine the device handle for GPU2: 0000:D8:00.0: GPU is lost.
"""
NVIDIA_LISTING = f"""\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-11111111-aaaa-4444-8888-000000000000)
  MIG 1g.10gb     Device  0: (UUID: {MIG})
  MIG 1g.10gb     Device  1: (UUID: MIG-eeeeeeee-5678-5abc-8def-000000000000)
GPU 1: Tesla M60 (UUID: GPU-22222222-bbbb-4444-8888-000000000000)
"""


def test_nvidia_smi_is_read_with_its_gaps() -> None:
    first, second = parse_nvidia_smi(NVIDIA_TABLE, NVIDIA_LISTING)
    assert (first.index, first.name, first.pci) == (0, "NVIDIA A100-SXM4-80GB", "00000000:07:00.0")
    assert (first.memory_total_bytes, first.memory_free_bytes) == (80 * GIB, 81000 << 20)
    assert first.mig == (MIG, "MIG-eeeeeeee-5678-5abc-8def-000000000000")
    assert (second.memory_free_bytes, second.mig) == (None, ())
    assert parse_nvidia_smi("", "") == []


def test_rocm_smi_is_read_in_the_spellings_of_its_versions() -> None:
    body = {
        "card10": {"Card series": "Radeon", "PCI Bus": "0000:83:00.0"},
        "card0": {
            "Unique ID": "0x2f9ca86c4ee0b8ad",
            "PCI Bus": "0000:03:00.0",
            "Card Series": "AMD Instinct MI300X",
            "VRAM Total Memory (B)": "206141652992",
            "VRAM Total Used Memory (B)": "296902656",
        },
        "system": {"Driver version": "6.12"},
    }
    first, second = parse_rocm_smi(json.dumps(body))
    assert (first.index, first.uuid, first.pci) == (0, "0x2f9ca86c4ee0b8ad", "0000:03:00.0")
    assert first.memory_free_bytes == 206141652992 - 296902656
    assert (second.index, second.name, second.memory_free_bytes) == (10, "Radeon", None)
    assert parse_rocm_smi("") == parse_rocm_smi("no json") == []


def test_a_table_is_made_of_what_answers() -> None:
    said = {
        "torch_version": "2.13.0+rocm7.0",
        "build": "rocm",
        "devices": [{"number": 0, "name": "MI300X", "memory_total_bytes": 1}],
        "mps": False,
    }
    table = make_table(f"a warning\n{json.dumps(said)}\n", [], {"HIP_VISIBLE_DEVICES": "3"})
    assert table.usable == (TorchDevice(number=0, name="MI300X", memory_total_bytes=1),)
    assert (table.visible_variable, table.visible) == ("HIP_VISIBLE_DEVICES", "3")
    assert str(thread_count()) in table.cpu_name


def test_a_probe_that_crashes_is_a_torch_that_cannot_be_used() -> None:
    for body in ("", "Segmentation fault"):
        table = make_table(body, SYSTEM, {})
        assert table.torch_version == ""
        assert "without an answer" in str(refused(table))
