"""A batch script for SLURM."""

from __future__ import annotations

import shlex

from .job import Job

_WARN_SECONDS = 300
"""So long before the time limit SLURM says so; it looks at limits but every half minute or so."""


def script(job: Job) -> str:
    """What `sbatch` takes: Ray on every node, and the run on the first.

    SLURM's signals (the time limit is near, another job needs the nodes) have the run save a
    checkpoint; the script then has itself queued again, and goes on with the run. A job of which a
    node is lost is queued again by SLURM.
    """
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.cpus_of_a_node,
        **({"gpus-per-node": job.gpus_of_a_node} if job.gpus_of_a_node else {}),
        "time": job.minutes,
        "signal": f"B:USR1@{_WARN_SECONDS}",
        "open-mode": "append",
        "output": f"{job.out}.%j.log",
    }
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items()]
    gpus = f" --num-gpus {job.gpus_of_a_node}" if job.gpus_of_a_node else ""
    size = f'--num-cpus "$SLURM_CPUS_PER_TASK"{gpus}'
    parts = {
        "OPTIONS": "\n".join([*lines, "#SBATCH --requeue"]),
        "OUT": shlex.quote(job.out),
        "SIZE": size,
        "GO_ON": job.go_on,
        "BEGIN": job.begin,
    }
    text = _SCRIPT
    for name, part in parts.items():
        text = text.replace(f"@{name}@", part)
    return text


_SCRIPT = r"""#!/bin/bash
@OPTIONS@
set -u
out=@OUT@
hosts=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${hosts[0]}  # Where this script runs.
port=$((20000 + SLURM_JOB_ID % 10000))
# The address by which the other nodes know this one; some hosts take their own name for loopback.
ip=$(getent ahostsv4 "$head" | awk '$1 !~ /^127\./ {print $1; exit}')
ip=${ip:-$(hostname -I | awk '{print $1}')}

# Whoever reaches Ray's ports and has this token can run code on all nodes of the job.
umask 077
mkdir -p "$(dirname "$out")"
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$out.token" RAY_USAGE_STATS_ENABLED=0
export RAY_worker_niceness=0  # Else roles are behind all else that a node does.
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH"
export RAY_ADDRESS="$ip:$port"

ray start --head --port "$port" --node-ip-address "$ip" --include-dashboard=false @SIZE@ || exit 1
for host in "${hosts[@]:1}"; do
  # With --block a step lasts as long as its node; SLURM ends them with the job.
  srun --overlap --nodes=1 --ntasks=1 --nodelist="$host" \
    ray start --address "$RAY_ADDRESS" @SIZE@ --block &
done
for _ in $(seq 120); do
  up=$(ray status 2>/dev/null | grep -c '^ 1 node_')
  [ "$up" -ge "${#hosts[@]}" ] && break
  sleep 1
done

again=
stop() { again=1; kill -TERM "$run" 2>/dev/null; }
trap stop USR1 TERM
if [ -e "$out/config.json" ]; then
  @GO_ON@ &
else
  @BEGIN@ &
fi
run=$!
while wait "$run"; code=$?; kill -0 "$run" 2>/dev/null; do :; done  # A signal ends a wait early.
wait "$run" 2>/dev/null; last=$?
[ "$last" -ne 127 ] && code=$last

ray stop >/dev/null 2>&1
if [ -n "$again" ] && [ "$code" -ne 0 ]; then
  echo "stopped by SLURM with a checkpoint; queued again"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
