# shellcheck shell=bash disable=SC2034,SC2154
# NATS with JetStream.

nats_variable=COMMITRELAY_TEST_NATS
nats_port_variable=COMMITRELAY_TEST_NATS_PORT
nats_package=nats-server

# The server is a module that go.mod names anyway, because the demo embeds it: without one in PATH
# that very version is built, which downloads nothing more.
nats_find() {
	nats_bin=$(command -v nats-server || true)
	[ -z "$nats_bin" ] || return 0
	nats_bin=$root/bin/nats-server
	[ -x "$nats_bin" ] || go -C "$repository" build -o "$nats_bin" github.com/nats-io/nats-server/v2
}

nats_start() {
	background "$nats_bin" --jetstream --store_dir "$dir/data" --addr 127.0.0.1 --port "$port"
	echo "$pid" >"$dir/pid"
	wait_for "$pid" listening "$port"
}

nats_running() { ours "$dir/pid"; }

nats_stop() { terminate "$dir/pid"; }

nats_url() { echo "nats://127.0.0.1:$port"; }
