"""What leaves in JSON: complete, finite, described by its own schema, readable across versions."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from json_schema_check import assert_valid, check
from status_samples import rendered_peers, rendered_status, smallest_status

from swarmd import __version__
from swarmd.health import BAD, CODES, HealthBook, health_of, severity_of
from swarmd.json_record import from_plain, plain, render, to_json, unix_s, utc
from swarmd.named_limits import LOCAL, WAN
from swarmd.protocols.reasons import STATES
from swarmd.records import ErrorPart, ErrorRecord
from swarmd.result_records import Eval
from swarmd.schemas import names, record_named, schema_of
from swarmd.status import State, Status


def test_every_object_begins_with_the_same_four_fields() -> None:
    found = render(smallest_status())
    assert list(found)[:4] == ["schema", "schema_version", "generated_at", "swarmd_version"]
    assert (found["schema"], found["swarmd_version"]) == ("swarmd.status", __version__)


def test_cli_03_nothing_measured_is_still_a_complete_and_valid_status() -> None:
    found = render(smallest_status())
    assert_valid(found)
    assert found["progress"]["loss"] is None
    assert found["stage"] is None
    assert found["last_round"]["missing"] == []


def test_full_objects_are_valid() -> None:
    assert_valid(rendered_status())
    assert_valid(rendered_peers())


def test_every_field_of_the_contract_is_there() -> None:
    found = render(smallest_status())
    contract = {
        "peer": "id name incarnation pid home started_at observer device addresses reachable",
        "peer.device": "kind name uuid threads memory_total_bytes memory_used_bytes "
        "memory_peak_bytes micro_batch",
        "run": "id name link stages inner_steps total_steps peers_min protocol",
        "run.protocol": "ours_min ours_max run_min run_max",
        "reason": "code text since for_s eta_s eta_basis subject hint retry_in_s",
        "health": "level items",
        "peers": "known alive suspect active contributing observers",
        "progress": "inner_step outer_round round_phase round_elapsed_s round_median_s eta_s loss "
        "loss_first loss_ema loss_heldout tokens_total disagreement disagreement_js",
        "throughput": "tokens_per_s_swarm tokens_per_s_self flops_per_s peak_flops_per_s mfu "
        "compute_s wait_s compute_utilisation",
        "communication": "last_round comm_s_per_round total bytes_per_step",
        "communication.last_round": "mix1_s mix2_s blocking_s hidden_s raw_bytes_sent "
        "wire_bytes_sent raw_bytes_received wire_bytes_received",
        "communication.total": "raw_bytes_sent wire_bytes_sent raw_bytes_received "
        "wire_bytes_received compression_ratio",
        "last_round": "round outcome planned included missing late_updates rejected_updates",
        "totals": "rounds_committed rounds_partial rounds_skipped late_updates rejected_updates",
        "faults": "count recovery_s_last recovery_s_max lost_micro_batches redone_micro_batches "
        "lost_tokens lost_inner_steps last",
        "faults.last": "code peer stage at",
        "join": "started_at first_contribution_s rejoins",
        "state_transfer": "manifest_round manifest_hash verified bytes_total bytes_done "
        "bytes_refetched donors serving_now",
        "data": "leases_held samples_completed samples_returned samples_expired "
        "batch_samples_global",
        "contribution": "micro_batches tokens rounds receipts",
        "moves": "count last",
        "refused": "total by_code",
        "moves.last": "from to why at",
        "resources": "rss_bytes cpu_share threads open_fds sockets disk_used_bytes "
        "up_bytes_per_s down_bytes_per_s",
        "time": "uptime_s by_reason",
    }
    for path, expected in contract.items():
        inner = found
        for step in path.split("."):
            inner = inner[step]
        assert set(expected.split()) <= inner.keys(), path
    for name in ("slots", "stage_map", "injection"):
        assert found[name] == []
    assert "stage_map_version" in found
    assert "limits" in found


def test_states_are_those_of_the_machines() -> None:
    assert State.__args__ == STATES


def test_what_is_not_finite_is_not_known() -> None:
    assert plain({"a": [math.nan, math.inf, 1.0]}) == {"a": [None, None, 1.0]}
    with pytest.raises(ValueError, match="JSON"):
        to_json({"a": math.nan})


def test_keyword_as_a_field_name_loses_its_underscore() -> None:
    found = render(Eval(from_="x", tokens=1, loss=1.0, perplexity=2.7))
    assert found["from"] == "x"
    assert_valid(found)
    assert from_plain(Eval, found).from_ == "x"


def test_status_reads_back() -> None:
    status = smallest_status(injection=["slow=2"], limits={"settle_s": 5.0, "lease_s": None})
    assert from_plain(Status, json.loads(to_json(render(status)))) == status


def test_status_of_another_version_is_read_as_far_as_both_know_it() -> None:
    found = render(smallest_status())
    found["peer"]["mood"] = "fine"
    found["state"] = "dreaming"
    del found["progress"]
    found["reason"]["for_s"] = "long"
    found["health"] = {"level": "ok", "items": [{"code": "new_code"}, 7]}
    status = from_plain(Status, found)
    assert status.peer.name == "alder"
    assert status.state == "dreaming"
    assert status.progress.loss is None
    assert status.reason.for_s is None
    assert status.health.items[0].code == "new_code"
    assert len(status.health.items) == 1


@pytest.mark.parametrize("nonsense", [None, [], "x", 7, {"peer": 3}])
def test_nonsense_is_read_as_unknown(nonsense: Any) -> None:
    assert from_plain(Status, nonsense).peer.id is None


def test_times_are_utc_with_milliseconds() -> None:
    assert utc(1_795_953_600.0004) == "2026-11-29T12:00:00.000Z"
    assert utc(0.9999) == "1970-01-01T00:00:01.000Z"
    assert unix_s(utc(1_795_953_600.25)) == 1_795_953_600.25


def test_schema_exists_for_every_object_of_the_contract() -> None:
    assert names() == sorted(
        "audit bench_device bench_links bench_mix bench_pipeline bench_quality config "
        "contributions doctor done error eval event export "
        "identity joined leave local netcheck peers plan ps run sim status version".split()
    )
    for name in names():
        json.dumps(schema_of(record_named(name)), allow_nan=False)


def test_schema_refuses_what_the_contract_refuses() -> None:
    good = render(ErrorRecord(error=ErrorPart(code="x", exit_code=1, message="m")))
    assert_valid(good)
    schema = schema_of(record_named("error"))
    for broken in (
        good | {"generated_at": "yesterday"},
        good | {"schema_version": 2},
        good | {"error": good["error"] | {"exit_code": "1"}},
        good | {"error": {"code": "x"}},
    ):
        assert check(broken, schema, schema["$defs"], "error")


# ------------------------------------------------------------------------------------------- health


def test_health_level_is_the_worst_item() -> None:
    book = HealthBook()
    assert book.health().level == "ok"
    assert book.hold("rate_capped", "upload is held")
    assert book.health().level == "warn"
    assert book.hold("stalled", "no progress")
    assert [item.code for item in book.health().items] == ["stalled", "rate_capped"]
    assert book.health().level == "bad"
    assert book.clear("stalled")
    assert not book.clear("stalled")
    assert book.health().level == "warn"


def test_item_keeps_its_beginning_while_it_holds() -> None:
    book = HealthBook()
    book.hold("port_changed", "1 s")
    since = book.health().items[0].since
    assert not book.hold("port_changed", "2 s")
    assert (book.health().items[0].since, book.health().items[0].text) == (since, "2 s")


def test_bad_codes_are_those_of_the_contract() -> None:
    assert BAD == {
        "stalled", "isolated", "run_state_lost", "disk_full", "disk_error", "version_mismatch",
        "not_admitted", "banned", "identity_in_use_elsewhere", "model_does_not_fit",
        "internal_error",
    }  # fmt: skip
    assert severity_of("out_of_memory") == "warn"
    assert severity_of("out_of_memory", has_failed=True) == "bad"
    assert BAD < CODES
    assert health_of([]).level == "ok"


def test_local_limits_are_never_slower_than_those_of_strangers() -> None:
    for name, value in LOCAL.shown().items():
        wide = WAN.shown()[name]
        is_time = name.endswith(("_s", "_s_min"))
        if is_time and value is not None and wide is not None:
            assert value <= wide, name
    assert LOCAL.shown(lease_s=2.0)["lease_s"] == 2.0
