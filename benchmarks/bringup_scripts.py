"""What slurm_rl's bring-up is measured against, as batch scripts."""

# OpenRLHF's example for Slurm (docs/source/multi-node.rst): its steps, its order, its sleeps. Left out are the
# containers and pip; the driver stands in place of `ray job submit`. --mem=0 on the last srun, without which it
# would wait for memory that the steps before it hold.
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

# verl's script for AMD nodes (docs/start/multinode.rst): its steps, its order, its sleeps, and its test of Ray, which
# goes on whatever it finds. Left out are the containers and the data, which it makes before and after.
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

# OpenRLHF-M's script for GCP, whose machines are this job's nodes. Its first sleep is for its reward server, which is
# left out. It counts workers by the word `alive`, which `ray status` of Ray 2.60 does not print: it tries 20 times.
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

# Given to slurm_rl as the nodes' Python: everything is real but the trainer.
PYTHON = """#!/bin/bash
case " $* " in
*" slurm_rl.trainers.grpo.main "*)
  {driver} && echo '{{"outcome": "finished", "exit_code": 0}}' > {run}/attempts/1/outcome.json
  exit ;;
esac
exec {python} "$@"
"""
