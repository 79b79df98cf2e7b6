#!/bin/sh
# A precheck for a Linux host: one line for each problem, without changing figures, or NO_WORK if there is none.
# The lines name the problem. The agent looks up the figures.
{
  df -P / /var /home 2>/dev/null | awk 'NR > 1 && $5 + 0 > 90 && !seen[$6]++ {print "disk " $6 " is nearly full"}'
  awk '/^MemTotal/ {all = $2} /^MemAvailable/ {left = $2} END {if (left < all / 10) print "memory is low"}' /proc/meminfo
  systemctl --failed --no-legend --plain 2>/dev/null | awk '{print "service " $1 " has failed"}'
  ls /var/run/reboot-required 2>/dev/null | sed 's/.*/a restart of the host is required/'
} | grep . || echo NO_WORK
