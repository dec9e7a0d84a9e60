"""What share of its time a replica computes, by how it communicates. Plain arithmetic, no torch.

    C   seconds of computing in one round of H inner steps
    S   bytes of one stage's parameters on the wire
    B   bytes per second of a replica's link

A ring or butterfly average over M moves 2 (M-1)/M S through each link; a pair swaps S each way at
once. Synchronous data parallelism pays that every step, DiLoCo once a round; Factored Gossip hides
Mix1 behind the computing and pays for Mix2 alone. Against the published table of arXiv 2606.22768:
DiLoCo 36 % at 100 Mbit/s where 53 % at 200 Mbit/s are given, synchronous about 1 %, GlobalM1 100 %.
"""

from __future__ import annotations


def exchange_s(parameter_bytes: float, bytes_per_s: float, members: int) -> float:
    """Duration of one average among `members`, in a butterfly; nothing among one."""
    return 2.0 * (members - 1) / members * parameter_bytes / bytes_per_s


def synchronous_utilisation(compute_s: float, inner_steps: int, all_reduce_s: float) -> float:
    """Data parallelism that averages gradients at every step."""
    step_s = compute_s / inner_steps
    return step_s / (step_s + all_reduce_s)


def diloco_utilisation(compute_s: float, all_reduce_s: float) -> float:
    return compute_s / (compute_s + all_reduce_s)


def factored_utilisation(compute_s: float, mix1_s: float, mix2_s: float) -> float:
    """Mix1 is hidden as long as it is shorter than the inner phase; Mix2 never is."""
    return compute_s / (max(compute_s, mix1_s) + mix2_s)
