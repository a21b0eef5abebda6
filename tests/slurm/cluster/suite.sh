#!/bin/sh
# Runs a command where / is another Debian suite's; in a mount namespace of its own, which is this shell's already.
#   suite.sh ROOT COMMAND [ARG...]
set -eu
root=$1 here=$PWD; shift
mount --bind "$root" "$root"
# All that is not the distribution's stays this machine's: checkout, environment, /run, /tmp, /proc, cgroups.
for path in /* /usr/local /usr/bin/python3.[0-9]* /usr/lib/python3.[0-9]*; do
    case $path in
        /bin | /sbin | /lib* | /usr | /etc | /var | /boot | /lost+found) continue;;
        # A Python of the machine's own Debian, which the suite lacks. What was laid here to mount on is empty.
        /usr/bin/*)
            if [ ! -f "$path" ] || [ -s "$root$path" ]; then continue; fi
            : >> "$root$path";;
        /usr/lib/*)
            if [ ! -d "$path" ] || [ -n "$(ls "$root$path" 2> /dev/null)" ]; then continue; fi
            mkdir -p "$root$path";;
        *)
            if [ ! -d "$path" ] || [ -L "$path" ]; then continue; fi
            mkdir -p "$root$path";;
    esac
    mount --rbind "$path" "$root$path"
done
cd "$root"
# Not chroot: the nodes are entered by `nsenter --all`, which would leave it.
pivot_root . .old
umount -l /.old
cd "$here"
exec "$@"
