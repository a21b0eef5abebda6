"""What slurm_rl's bring-up is measured against, as batch scripts."""

from __future__ import annotations

# OpenRLHF's example for Slurm (docs/source/multi-node.rst): its steps, its order, its sleeps. Left out are the
# containers and pip; the driver stands in place of `ray job submit`. --mem=0 on the last srun, without which it
# would wait for memory that the steps before it hold.
SEED = """#!/bin/bash
date +%s.%N > {start}
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=( $nodes )
node_1=${{nodes_array[0]}}
ip=$node_1
port=6379
ip_head=$ip:$port
export ip_head
srun --nodes=1 --ntasks=1 -w "$node_1" {ray} start --head --node-ip-address=$ip --port=$port --block &
sleep 10s
worker_num=$((SLURM_JOB_NUM_NODES))
for ((i = 1; i < worker_num; i++)); do
  node_i=${{nodes_array[$i]}}
  srun --nodes=1 --ntasks=1 -w "$node_i" {ray} start --address "$ip_head" --block &
  sleep 1s;
done
sleep 30s
RAY_ADDRESS=$ip_head srun --overlap --mem=0 --nodes=1 --ntasks=1 -w "$node_1" {driver}
"""

# By hand, without a sleep: one srun, head and workers at once, the driver as soon as the head's port is open.
# Without a dashboard, which Ray starts before anything can join, and which slurm_rl has.
BY_HAND = """#!/bin/bash
date +%s.%N > {start}
export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1)
srun --ntasks-per-node=1 --mem=0 bash -c '
  if [ "$SLURM_PROCID" = 0 ]; then exec {ray} start --head --port=6379 --include-dashboard=false --block; fi
  until (exec 3<>/dev/tcp/$HEAD/6379) 2>/dev/null; do sleep 0.1; done
  exec {ray} start --address=$HEAD:6379 --block' &
until (exec 3<>/dev/tcp/$HEAD/6379) 2>/dev/null; do sleep 0.1; done
RAY_ADDRESS=$HEAD:6379 srun --overlap --mem=0 --nodes=1 --ntasks=1 -w "$HEAD" {driver}
"""

# Given to slurm_rl as the nodes' Python: everything is real but the trainer (by both names that it has had).
PYTHON = """#!/bin/bash
case " $* " in
*" slurm_rl.rl.main "* | *" slurm_rl.train.grpo.main "*)
  {driver} && echo '{{"outcome": "finished", "exit_code": 0}}' > {run}/attempts/1/outcome.json
  exit ;;
esac
exec {python} "$@"
"""
