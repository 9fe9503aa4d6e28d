# What deploy/local/rabbitmq, deploy/local/postgres, tests/run and .ci/run share:
# messages, the cache folder, packages, ports and the processes they start.
# This file is sourced, not run. The script that sources it sets `program`.
# shellcheck shell=bash

# How long a service may take to come up or to go down, in seconds. A machine
# that is busy compiling needs far more than an idle one.
service_timeout=${ROUNDELAY_SERVICE_TIMEOUT:-120}

say() {
  printf '%s: %s\n' "${program:-roundelay}" "$*" >&2
}

# die MESSAGE [LINE…]: the message says what failed and where, the further
# lines say what to do about it.
die() {
  say "$1"
  shift
  (($# == 0)) || printf '  %s\n' "$@" >&2
  exit 1
}

have() {
  command -v "$1" >/dev/null 2>&1
}

is_root() {
  ((EUID == 0))
}

# The folder for what is slow to make and can always be made again.
cache_folder() {
  local folder=${ROUNDELAY_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set, so there is no place for a cache; set ROUNDELAY_CACHE}/.cache}/roundelay}
  mkdir -p -- "$folder" || die "cannot make the cache folder $folder" \
    'Set ROUNDELAY_CACHE to a folder that you may write to.'
  (cd -- "$folder" && pwd -P)
}

# ---------------------------------------------------------------- packages

# apt_install REASON PACKAGE…: installs Debian packages without letting them
# start a system service.
apt_install() (
  reason=$1
  shift
  have apt-get || die "$reason, and this machine has no apt-get to install it with (packages: $*)" \
    'Install it by your own means, or use Docker Compose, or set AMQP_URL and DATABASE_URL to services that run.'
  is_root || die "$reason, and only root can install it" "Run: sudo apt-get install --yes --no-install-recommends $*"

  # One at a time: apt-get waits for another's lock when it installs, but not when it updates its lists.
  exec {apt_lock}>"$(cache_folder)/apt.lock"
  flock --timeout 600 "$apt_lock" || die "waited 600 s for another run that installs packages with apt"

  # A package's own scripts ask policy-rc.d whether they may start their
  # service; 101 means no. A policy that the machine already has is its
  # owner's decision and stays.
  policy=/usr/sbin/policy-rc.d
  if [[ ! -e $policy ]]; then
    trap 'rm -f -- "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi

  log=$(mktemp)
  say "installing with apt: $*"
  export DEBIAN_FRONTEND=noninteractive
  options=(-qq -o DPkg::Lock::Timeout=300)
  # A repository that cannot be reached must not stop us: whether the lists are
  # good enough is for the install to say.
  apt-get "${options[@]}" update >"$log" 2>&1 </dev/null || say "apt-get update had trouble; going on with the lists at hand"
  if ! apt-get "${options[@]}" install --yes --no-install-recommends "$@" >>"$log" 2>&1 </dev/null; then
    tail -n 30 "$log" >&2
    die "$reason, and apt-get could not install $*" "The whole log: $log"
  fi
  rm -f -- "$log"

  # The guard above covers now; a unit that the package enabled would still
  # start at the next boot.
  if [[ -d /run/systemd/system ]]; then
    for package in "$@"; do
      systemctl disable --quiet "$package.service" 2>/dev/null || true
    done
  fi
)

# ------------------------------------------------------------------- ports

port_is_free() {
  ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

# Who listens on a port, for an error message, as far as this user may know.
port_owner() {
  local line
  have ss || return 0
  line=$(ss -Hltnp "sport = :$1" 2>/dev/null | grep -o 'users:.*' | head -n 1) || true
  [[ -z $line ]] || printf ' (%s)' "$line"
}

# reserve_ports COUNT: sets `port_base` to the first of COUNT neighbouring free
# ports below the range that the kernel gives to clients. The lock in
# `port_lock` keeps a start that runs at the same time from choosing them too;
# it is let go when this script ends, and then somebody listens on them.
# Processes that stay behind must not inherit it.
reserve_ports() {
  local count=$1 folder attempt offset
  folder=$(cache_folder)/ports
  mkdir -p -- "$folder"
  for ((attempt = 0; attempt < 200; attempt++)); do
    port_base=$((20000 + (RANDOM % 1000) * 10))
    exec {port_lock}>"$folder/$port_base"
    if flock --nonblock "$port_lock"; then
      for ((offset = 0; offset < count; offset++)); do
        port_is_free $((port_base + offset)) || continue 2
      done
      return 0
    fi
    exec {port_lock}>&-
  done
  die "found no $count neighbouring free ports on 127.0.0.1 between 20000 and 29999"
}

# --------------------------------------------------------------- processes

# A process is known by its id and the moment it started, so that an id that
# the kernel has given to somebody else is never mistaken for ours.
process_start() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The command's name, in brackets, may hold spaces: count from behind it.
  # shellcheck disable=SC2086 # The words are wanted.
  set -- ${stat##*)}
  # A zombie has ended, whatever its parent still has to do about it.
  [[ $1 != Z ]] || return 1
  printf '%s\n' "${20}"
}

# record_process FILE PID: remembers a process that we started.
record_process() {
  local start
  start=$(process_start "$2") || return 1
  printf '%s %s\n' "$2" "$start" >"$1"
}

# recorded_process FILE: prints the id of the process if it still runs.
recorded_process() {
  local pid start
  [[ -r $1 ]] || return 1
  read -r pid start <"$1" || return 1
  [[ $(process_start "$pid") == "$start" ]] || return 1
  printf '%s\n' "$pid"
}

# end_process FILE SIGNAL: sends the signal to the recorded process, if it still
# runs, and waits until it is gone; one that does not go in time is killed.
end_process() {
  local file=$1 signal=$2 pid deadline
  if pid=$(recorded_process "$file"); then
    kill -s "$signal" "$pid" 2>/dev/null || true
    deadline=$((SECONDS + service_timeout))
    while recorded_process "$file" >/dev/null; do
      if ((SECONDS >= deadline)); then
        say "process $pid did not end within $service_timeout s of SIG$signal; killing it"
        kill -s KILL "$pid" 2>/dev/null || true
        deadline=$((SECONDS + service_timeout))
      fi
      sleep 0.1
    done
  fi
  rm -f -- "$file"
}

# The Erlang and PostgreSQL processes must live in folders that their users can
# enter, which a folder below a private home is not.
require_reach() {
  local user=$1 folder=$2
  setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups test -x "$folder" || die \
    "the user $user, under whom the service runs, cannot enter $folder" \
    'A folder above it is closed to others. Choose a place that is open, such as a folder made in /tmp.'
}

# settings_get FILE KEY: one value of a file of KEY=value lines.
settings_get() {
  local key value
  while IFS='=' read -r key value; do
    if [[ $key == "$2" ]]; then
      printf '%s\n' "$value"
      return 0
    fi
  done <"$1"
  return 1
}
