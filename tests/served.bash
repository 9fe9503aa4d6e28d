# What tests/browser/run, tests/schemathesis/run and tests/prometheus/run share: a worker and `roundelay serve` on a
# private RabbitMQ, with chains that run, fail and wait. This file is sourced, not run, after deploy/local/common.bash.
# The script that sources this sets `project`, and ends at an error.
# shellcheck shell=bash disable=SC2154,SC2164

scratch=$(mktemp -d "${TMPDIR:-/tmp}/roundelay-served.XXXXXX")
chmod 755 "$scratch"
pids=()

# shellcheck disable=SC2317 # The trap below calls it.
clean_up() {
  local status=$? pid
  trap '' INT TERM
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null && wait "$pid" 2>/dev/null || true
  done
  "$project/deploy/local/rabbitmq" stop "$scratch/rabbitmq" >/dev/null 2>&1 || true
  if ((status == 0)); then rm -rf --one-file-system -- "$scratch"; else say "logs are kept for a look: $scratch"; fi
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Keys and other data of strangers, as a JSON array.
hostile='["<img src=x onerror=alert(1)>","\"><script>alert(2)</script>","javascript:alert(3)","a/b?c#d%20e&f=g","\u202Egnp.exe\u200B","'$(printf 'long%.0s' {1..100})'"]'

# start_served CHAINS: builds the program, unless ROUNDELAY_TEST_PROGRAM is one, and starts all of it. Sets `roundelay` (the program), `url` and `management`.
# 101 chains run every few minutes, beside the hostile ones; a thousand and more, twice a day.
start_served() {
  local chains=$1 amqp kind every=(1m 5m 10m) spread=2s name='browser <b>tests</b>'
  ((chains < 1000)) || every=(12h 12h 12h) spread=12h name="$chains chains"
  have curl || apt_install 'curl is missing' curl
  have python3 || apt_install 'Python is missing' python3
  cd -- "$project"
  roundelay=${ROUNDELAY_TEST_PROGRAM:-}
  if [[ -z $roundelay ]]; then
    cargo build --release --locked --quiet
    roundelay=$project/target/release/roundelay
  fi
  "$project/deploy/local/rabbitmq" start "$scratch/rabbitmq" >/dev/null
  amqp=$(settings_get "$scratch/rabbitmq/env" AMQP_URL)
  management=$(settings_get "$scratch/rabbitmq/env" RABBITMQ_MANAGEMENT_URL)
  say "RabbitMQ at $amqp"
  cat >"$scratch/roundelay.toml" <<TOML
[broker]
url = "$amqp"
management = "$management"
[ledger]
url = "sqlite://$scratch/ledger.db"
[api]
name = "$name"
[throttles.ios]
allow = 5
per = "1m"
[queues.work]
[queues.sync-ios]
throttle = "ios"
[kinds.sync]
queue = "work"
every = "${every[0]}"
roster.owner = "{{ owner }}"
handler.exec = { argv = ["/bin/true"] }
[kinds.app]
queue = "sync-ios"
every = "${every[1]}"
handler.exec = { argv = ["/bin/true"] }
[kinds.bad]
queue = "work"
every = "${every[2]}"
retry = { attempts = 1 }
handler.exec = { argv = ["/bin/false"] }
[kinds.odd]
queue = "work"
every = "${every[0]}"
handler.exec = { argv = ["/bin/sh", "$scratch/odd.sh"] }
[kinds.wrong]
queue = "work"
every = "${every[0]}"
handler.exec = { argv = ["/bin/sh", "$scratch/wrong.sh"] }
[kinds.slow]
queue = "work"
every = "22s"
handler.exec = { argv = ["/bin/sh", "$scratch/slow.sh"] }
TOML
  # Whatever a handler says may be somebody else's words.
  cat >"$scratch/odd.sh" <<'HANDLER'
echo '{"outcome": "done", "carry": {"note": "<img src=x onerror=alert(6)>"},
  "failed": [{"item": "<img src=x onerror=alert(7)>", "reason": "<script>alert(8)</script>"}]}' | tr -d '\n'
HANDLER
  cat >"$scratch/wrong.sh" <<'HANDLER'
echo '{"outcome": "fail", "reason": "<img src=x onerror=alert(10)>"}'
HANDLER
  cat >"$scratch/slow.sh" <<'HANDLER'
echo 'roundelay: progress {"phase": "<img src=x onerror=alert(5)>", "done": 1, "total": 2}'
exec /bin/sleep 20
HANDLER
  python3 - "$scratch" "$hostile" "$chains" <<'PYTHON'
import csv, json, sys

folder, hostile, chains = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])

def roster(name, rows):
    with open(f"{folder}/{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["key", "owner"], *rows])

sync, app, bad = (60, 30, 2) if chains < 1000 else (chains * 7 // 10, chains * 29 // 100, chains // 100)
# Half of them belong to one owner, the rest to many.
owner = lambda n: "ann" if n % 2 else "<i>bob</i>" if n < 1000 else f"corp-{n % 5000}"
roster("sync", [[f"eu/{n}", owner(n)] for n in range(1, sync + 1)] + [[key, ""] for key in hostile])
roster("app", [[f"ios/{n}", ""] for n in range(1, app + 1)])
for name in ("odd", "wrong", "slow"):
    with open(f"{folder}/{name}.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["key", "note"], ["marked", "<img src=x onerror=alert(9)>"]])
roster("bad", [["one", ""], ["two", ""]] + [[f"bad/{n}", ""] for n in range(3, bad + 1)])
PYTHON
  "$roundelay" topology apply --config "$scratch/roundelay.toml" >/dev/null
  for kind in sync app bad odd wrong slow; do
    "$roundelay" enroll --config "$scratch/roundelay.toml" --kind "$kind" --spread "$spread" "$scratch/$kind.csv" >/dev/null
  done
  "$roundelay" worker --config "$scratch/roundelay.toml" 2>"$scratch/worker.log" &
  pids+=($!)
  : >"$scratch/serve.log"
  ROUNDELAY_LOG=info ROUNDELAY_LOG_FORMAT=json "$roundelay" serve --config "$scratch/roundelay.toml" --listen 127.0.0.1:0 2>>"$scratch/serve.log" &
  pids+=($!)
  served_pid=$!
  for _ in {1..300}; do
    url=$(sed -n 's/.*"api":"\([^"]*\)".*/\1/p' "$scratch/serve.log" | head -n 1)
    [[ -z $url ]] && kill -0 "$served_pid" || break
    sleep 0.1
  done
  [[ -n $url ]] || die 'roundelay serve does not answer' "See $scratch/serve.log"
  # Something that is no job, as a strange publisher would send it.
  curl --silent --fail --output /dev/null --header 'content-type: application/json' \
    --data '{"properties":{},"routing_key":"work","payload":"{nonsense <script>alert(4)</script>","payload_encoding":"string"}' \
    "$management/api/exchanges/%2f/amq.default/publish"
}

# Starts a worker with its API on the embedded broker, and an ordinary mix of chains. Sets `roundelay` and `url`.
start_mix() {
  cd -- "$project"
  roundelay=${ROUNDELAY_TEST_PROGRAM:-}
  if [[ -z $roundelay ]]; then
    cargo build --release --locked --quiet
    roundelay=$project/target/release/roundelay
  fi
  cat >"$scratch/roundelay.toml" <<TOML
[ledger]
url = "sqlite://$scratch/ledger.db"
[api]
listen = "127.0.0.1:0"
[throttles.stock]
allow = 5
per = "10s"
[queues.fast]
[queues.stock]
throttle = "stock"
[queues.flaky]
[queues.reports]
[kinds.fast]
queue = "fast"
every = "5s"
handler.exec.argv = ["/bin/true"]
[kinds.pull]
queue = "stock"
every = "30s"
handler.exec.argv = ["/bin/true"]
[kinds.flaky]
queue = "flaky"
every = "20s"
retry.attempts = 1
handler.exec.argv = ["/bin/sh", "$scratch/flaky.sh"]
[kinds.report]
queue = "reports"
cron = "* * * * *"
handler.exec.argv = ["/bin/true"]
TOML
  cat >"$scratch/flaky.sh" <<'HANDLER'
[ "$(od -An -N1 -tu1 /dev/urandom)" -ge 77 ] || { echo 'HTTP 503 Service Unavailable: busy' >&2; exit 3; }
HANDLER
  roster() {
    { echo key; seq -f "$2%g" "$3"; } >"$scratch/$1.csv"
    "$roundelay" enroll --config "$scratch/roundelay.toml" --kind "$1" --spread 5s "$scratch/$1.csv" >/dev/null
  }
  roster fast f 300
  roster pull p 30
  roster flaky x 40
  roster report r 6
  : >"$scratch/serve.log"
  ROUNDELAY_LOG=info ROUNDELAY_LOG_FORMAT=json "$roundelay" worker --config "$scratch/roundelay.toml" 2>>"$scratch/serve.log" &
  pids+=($!)
  for _ in {1..300}; do
    url=$(sed -n 's/.*"api":"\([^"]*\)".*/\1/p' "$scratch/serve.log" | head -n 1)
    [[ -z $url ]] || break
    sleep 0.1
  done
  [[ -n $url ]] || die 'the worker does not answer' "See $scratch/serve.log"
  sleep 20
  "$roundelay" queue pause reports --why deploy --config "$scratch/roundelay.toml" >/dev/null
}

# served_token SCOPE: makes a token, and prints it.
served_token() {
  "$roundelay" token create "$1-of-tests" --scope "$1" --config "$scratch/roundelay.toml"
}
