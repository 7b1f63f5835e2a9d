# shellcheck shell=bash disable=SC2034,SC2154
# RabbitMQ as a node of its own: name, ports, cookie and data are not those of the system's.

rabbitmq_variable=COMMITRELAY_TEST_RABBITMQ
rabbitmq_port_variable=COMMITRELAY_TEST_RABBITMQ_PORT
rabbitmq_package=rabbitmq-server

# Packages put wrappers into PATH that switch to user rabbitmq: the scripts beside them are wanted.
rabbitmq_find() {
	rabbitmq_bin=$(newest rabbitmq-server /usr/lib/rabbitmq/bin /opt/homebrew/opt/rabbitmq/sbin /usr/local/opt/rabbitmq/sbin)
	if [ -z "$rabbitmq_bin" ] && command -v rabbitmq-server >/dev/null; then
		rabbitmq_bin=$(dirname "$(command -v rabbitmq-server)")
	fi
	[ -n "$rabbitmq_bin" ]
}

rabbitmq_start() {
	mkdir -p "$dir/home"
	cat >"$dir/rabbitmq.conf" <<-END
		listeners.tcp.1 = 127.0.0.1:$port
		disk_free_limit.absolute = 50MB
		max_message_size = 1048576
	END
	: >"$dir/enabled_plugins"
	: >"$dir/rabbitmq-env.conf"
	cat >"$dir/environment" <<-END
		export HOME='$dir/home'
		export ERL_EPMD_PORT=$(free_port) ERL_EPMD_ADDRESS=127.0.0.1
		export RABBITMQ_NODENAME=commitrelay-$port@localhost
		export RABBITMQ_DIST_PORT=$(free_port)
		export RABBITMQ_CONFIG_FILE='$dir/rabbitmq.conf'
		export RABBITMQ_CONF_ENV_FILE='$dir/rabbitmq-env.conf'
		export RABBITMQ_ENABLED_PLUGINS_FILE='$dir/enabled_plugins'
		export RABBITMQ_MNESIA_BASE='$dir/mnesia'
		export RABBITMQ_LOG_BASE='$dir'
		export RABBITMQ_LOGS='$dir/log.server'
		export RABBITMQ_PID_FILE='$dir/pid'
		unset RABBITMQ_NODE_PORT RABBITMQ_NODE_IP_ADDRESS RABBITMQ_MNESIA_DIR
	END
	# rabbitmqctl for this node: the tests set alarms with it.
	cat >"$dir/rabbitmqctl" <<-END
		#!/bin/sh
		. '$dir/environment'
		exec '$rabbitmq_bin/rabbitmqctl' "\$@"
	END
	chmod +x "$dir/rabbitmqctl"
	(
		# shellcheck source=/dev/null
		. "$dir/environment"
		# Distribution on the loopback interface only; schedulers that do not spin; and the folder
		# in the command line, so that the process can be told from others.
		export RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none -commitrelay $dir"
		background "$rabbitmq_bin/rabbitmq-server"
		wait_for "$pid" rabbitmq_ready
	)
}

# RabbitMQ listens only once it is up, and logs that a little later.
rabbitmq_ready() { listening "$port" && grep -q "Server startup complete" "$dir/log.server" 2>/dev/null; }

rabbitmq_running() { ours "$dir/pid"; }

rabbitmq_stop() {
	terminate "$dir/pid"
	(
		# shellcheck source=/dev/null
		. "$dir/environment"
		epmd -kill >/dev/null 2>&1 || true # the port mapper that the node started
	)
}

rabbitmq_url() { echo "amqp://guest:guest@127.0.0.1:$port/"; }

rabbitmq_exports() { export_line COMMITRELAY_TEST_RABBITMQ_CTL "$dir/rabbitmqctl"; }
