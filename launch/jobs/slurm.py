"""A batch script for SLURM."""

from __future__ import annotations

import shlex

from .job import Job

_WARN_SECONDS = 300
"""So long before the time limit SLURM says so; it looks at limits but every half minute or so."""


def script(job: Job) -> str:
    """Returns the script of `sbatch`: the run on the first node, and what it needs on the others.

    SLURM's signals (the time limit is near, another job needs the nodes) have the run save a
    checkpoint; the script then has itself queued again, and goes on with the run. A job of which a
    node is lost is queued again by SLURM. One that is cancelled saves a checkpoint and ends.
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
    parts = {
        "OPTIONS": "\n".join([*lines, "#SBATCH --requeue"]),
        "OUT": shlex.quote(job.out),
        "SIZE": f'--num-cpus "$SLURM_CPUS_PER_TASK"{gpus}',
        "RESULT": job.result,
        "OUTCOME": job.outcome,
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
if [ -e @RESULT@ ]; then
  echo "the run in $out is complete"  # A node was lost just then, and the job queued again.
  @OUTCOME@
  exit
fi
umask 077
mkdir -p "$(dirname "$out")"

asked= run=
stop() {  # SLURM may say it twice; a run that hears it twice saves nothing.
  [ -z "$asked" ] || return
  asked=1
  [ -z "$run" ] || kill -INT "$run" 2>/dev/null
}
trap stop USR1 TERM
# SLURM says TERM to every process of a step, or of the job: what the run needs to save must not
# hear it, and the run hears of it once. All ends with the job.
deaf=(python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.execvp(sys.argv[1], sys.argv[1:])')
step() { srun --overlap --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 "$@" & }
# That other jobs need the nodes is said to steps, not to this script: to one that only sleeps, and
# ends of it. The run begins once it is there to hear it.
exec {ear}< <(srun --overlap --nodes=1 --ntasks=1 --cpus-per-task=1 --nodelist="$head" \
  bash -c 'echo; exec sleep infinity' 2>/dev/null; [ $? -ne 143 ] || kill -TERM $$)
read -r -u "$ear"

port=$((20000 + SLURM_JOB_ID % 10000))
# The address by which the other nodes know this one; some hosts take their own name for loopback.
ip=$(getent ahostsv4 "$head" | awk '$1 !~ /^127\./ {print $1; exit}')
ip=${ip:-$(hostname -I | awk '{print $1}')}

# Whoever reaches Ray's ports and has this token can run code on all nodes of the job.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH="$out.token" RAY_USAGE_STATS_ENABLED=0
export RAY_worker_niceness=0  # Else roles are behind all else that a node does.
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$RAY_AUTH_TOKEN_PATH"
export RAY_ADDRESS="$ip:$port"

# A session of its own, for `ray stop` would end what other jobs of yours have on this node too.
begin_head() {
  setsid "${deaf[@]}" ray start --head --port "$port" --node-ip-address "$ip" \
    --include-dashboard=false @SIZE@ --block &
  ray=$!
  disown "$ray"
}
begin_head
tries=1
until (: < "/dev/tcp/$ip/$port") 2>/dev/null; do
  if ! kill -0 "$ray" 2>/dev/null; then
    # A job that was queued again may find the port still held by what it was before.
    [ "$((tries += 1))" -le 10 ] || exit 1
    sleep 1
    begin_head
  fi
  sleep 0.2
done
# A head that has just begun may not know itself yet: who was not heard asks again.
for host in "${hosts[@]:1}"; do
  step --nodes=1 --ntasks=1 --nodelist="$host" "${deaf[@]}" \
    bash -c 'until "$@"; do sleep 1; done' - ray start --address "$RAY_ADDRESS" @SIZE@ --block
done
for _ in $(seq 120); do
  [ -z "$asked" ] || break
  up=$(ray status 2>/dev/null | grep -c '^ 1 node_')
  [ "$up" -ge "${#hosts[@]}" ] && break
  sleep 1
done

if [ -e "$out/config.json" ]; then
  "${deaf[@]}" @GO_ON@ &
else
  "${deaf[@]}" @BEGIN@ &
fi
run=$!
[ -z "$asked" ] || kill -INT "$run"
while wait "$run"; code=$?; kill -0 "$run" 2>/dev/null; do :; done  # A signal ends a wait early.
wait "$run" 2>/dev/null; last=$?
[ "$last" -ne 127 ] && code=$last
pkill -KILL -s "$ray"
# A job that was cancelled, or that SLURM queues again by itself, is running no longer; one whose
# steps have not all answered yet is not only running, but SIGNALING.
if [ -n "$asked" ] && [ "$code" -ne 0 ] &&
  scontrol show job "$SLURM_JOB_ID" | grep -Eq "JobState=(RUNNING|SIGNALING)"; then
  echo "stopped by SLURM with a checkpoint; queued again"
  # Only once SLURM ends the script: sooner its end would be taken for that of the job.
  trap 'exit "$code"' TERM
  scontrol requeue "$SLURM_JOB_ID" || exit "$code"
  while :; do sleep 1; done
fi
exit "$code"
"""
