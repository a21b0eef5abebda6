"""Batch scripts that the bring-up benchmark compares with slurm_rl."""

# OpenRLHF's example for Slurm (docs/source/multi-node.rst) with its steps, order and sleeps, without containers and
# pip; the driver replaces `ray job submit`. The last srun has --mem=0, without which it would wait for memory held by
# earlier steps.
OPENRLHF = """#!/bin/bash
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

# verl's script for AMD nodes (docs/start/multinode.rst) with its steps, order, sleeps and Ray test (which ignores its
# result), without the containers and data that it creates before and after.
VERL = """#!/bin/bash
date +%s.%N > {start}
nodes_array=($(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr '\\n' ' '))
head_node=${{nodes_array[0]}}
head_node_ip=$(srun --nodes=1 --ntasks=1 --mem=0 -w "$head_node" hostname --ip-address)
ip_head=$head_node_ip:6379
srun --nodes=1 --ntasks=1 -w "$head_node" {ray} start --head --node-ip-address="$head_node_ip" --port=6379 \\
  --dashboard-port=8266 --num-cpus 2 --block &
sleep 10
worker_num=$((SLURM_JOB_NUM_NODES - 1))
for ((i = 1; i <= worker_num; i++)); do
  node_i=${{nodes_array[$i]}}
  srun --nodes=1 --ntasks=1 -w "$node_i" {ray} start --address "$ip_head" --num-cpus 2 --block &
  sleep 5
done
{python} -c 'import ray; ray.init(address="auto"); print("Number of nodes:", len(ray.nodes())); ray.shutdown()'
RAY_ADDRESS=$ip_head srun --overlap --mem=0 --nodes=1 --ntasks=1 -w "$head_node" {driver}
"""

# OpenRLHF-M's script for GCP with this job's nodes as machines, without its reward server (its first sleep). It counts
# workers by the word `alive`, which `ray status` of Ray 2.60 does not print, so it tries 20 times.
GCP = """#!/bin/bash
date +%s.%N > {start}
export HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n1) EXPECTED_WORKERS=$((SLURM_JOB_NUM_NODES - 1))
srun --ntasks-per-node=1 --mem=0 bash -c '
  if [ "$SLURM_PROCID" != 0 ]; then
    until (exec 3<>/dev/tcp/$HEAD/6379) 2>/dev/null; do sleep 5; done
    {ray} start --address=$HEAD:6379
    while true; do sleep 60; done
  fi
  {ray} start --head --node-ip-address=$HEAD --port=6379 --dashboard-port=8265
  sleep 10
  retry=0
  while true; do
    workers=$(($({ray} status 2>/dev/null | grep alive | wc -l) - 1))
    [ $workers -ge $EXPECTED_WORKERS ] && break
    sleep 10
    retry=$((retry + 1))
    [ $retry -ge 20 ] && break
  done
  RAY_ADDRESS=$HEAD:6379 {driver}'
"""

SCRIPTS = {"OpenRLHF, Slurm": OPENRLHF, "verl, Slurm with AMD": VERL, "OpenRLHF-M, GCP": GCP}

# Hand-written, without sleeps: one srun starts head and workers at once, the driver when the head's port is open.
# Without a dashboard, which Ray starts before any node can join and which slurm_rl has.
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

# cluster.python for slurm_rl: only the trainer is replaced.
PYTHON = """#!/bin/bash
case " $* " in
*" slurm_rl.trainers.grpo.main "*)
  {driver} && echo '{{"outcome": "finished", "exit_code": 0}}' > {run}/attempts/1/outcome.json
  exit ;;
esac
exec {python} "$@"
"""
