"""Ray cluster of several machines on the loopback interface of this one, driven by lines on standard input.

`add NAME`, `lose NAME` (SIGKILL of all of its processes); each is answered with `done`. Ends with standard input. One
after the other: raylets that start at once on one host time out.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

SIZE = {"object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1", "include_dashboard": False}
NO_MONITORS = {"no_monitor": True, "include_log_monitor": False}
"""Neither the autoscaler nor the copier of logs is needed."""


def answer(text: str) -> None:
    """Write one line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    cluster = Cluster(initialize_head=True, head_node_args={**SIZE, **NO_MONITORS, "num_cpus": 0})
    machines = {}
    answer(cluster.address)
    for line in sys.stdin:
        verb, name = line.split()
        if verb == "add":
            machines[name] = cluster.add_node(**SIZE, num_cpus=1, env_vars={"STAND_IN_MACHINE": name})
        else:
            cluster.remove_node(machines.pop(name), allow_graceful=False)
        answer("done")
    for machine in (*machines.values(), cluster.head_node):
        cluster.remove_node(machine, allow_graceful=False)


if __name__ == "__main__":
    main()
