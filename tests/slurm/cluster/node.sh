#!/bin/sh
# The body of one node; runs as the first process of fresh namespaces, its network joined already.
#   node.sh NAME ROOT SHM_MB [SHARED...]    SHARED: folders under /tmp that this node must see
set -eu
name=$1 root=$2 shm_mb=$3; shift 3
mine=$root/nodes/$name
hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$root/hosts" /etc/hosts
mount --bind "$root/resolv.conf" /etc/resolv.conf
mount -t tmpfs -o "size=${shm_mb}m,mode=1777" tmpfs /dev/shm
for folder in "$root" "$@"; do
    case $folder in /tmp/*) mkdir -p "$mine$folder"; mount --bind "$folder" "$mine$folder";; esac
done
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -m 1777 /run/lock
mount --rbind "$mine/tmp" /tmp
# As systemd has it: a slurmd that was killed is started again, here once nobody holds it down.
exec tini -- sh -c 'while slurmd -D -N "$0" -f "$1/slurm.conf"; [ $? -gt 128 ]; do
    while [ -e "$1/nodes/$0/hold" ]; do sleep 0.2; done
done' "$name" "$root"
