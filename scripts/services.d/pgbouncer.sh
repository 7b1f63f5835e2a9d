# shellcheck shell=bash disable=SC2034,SC2154
# PgBouncer in transaction mode, in front of the tests' PostgreSQL.

pgbouncer_variable=COMMITRELAY_TEST_PGBOUNCER
pgbouncer_port_variable=COMMITRELAY_TEST_PGBOUNCER_PORT
pgbouncer_package=pgbouncer

pgbouncer_find() {
	pgbouncer_bin=$(PATH=$PATH:/usr/sbin:/opt/homebrew/bin command -v pgbouncer || true)
	[ -n "$pgbouncer_bin" ]
}

# pgbouncer_server takes the URL of the PostgreSQL apart.
pgbouncer_server() {
	local url
	if given postgres; then
		url=$COMMITRELAY_TEST_DATABASE
	else
		url=$(cat "$root/postgres/url" 2>/dev/null) || {
			say "pgbouncer needs postgres: scripts/services up postgres pgbouncer"
			return 1
		}
	fi
	if [[ ! $url =~ ^postgres(ql)?://([^:@/]+)(:([^@/]*))?@([^:/?]+)(:([0-9]+))?/ ]]; then
		say "pgbouncer needs COMMITRELAY_TEST_DATABASE as postgres://user:password@host:port/database; else set COMMITRELAY_TEST_PGBOUNCER, too"
		return 1
	fi
	server_user=${BASH_REMATCH[2]} server_password=${BASH_REMATCH[4]}
	server_host=${BASH_REMATCH[5]} server_port=${BASH_REMATCH[7]:-5432}
}

pgbouncer_start() {
	local server_user server_password server_host server_port prepared=''
	pgbouncer_server || return
	# 1.21 and newer can keep named prepared statements; the tests want the pooler that cannot.
	if "$pgbouncer_bin" --version | awk 'NR == 1 { split($2, v, "."); exit !(v[1] > 1 || v[2] >= 21) }'; then
		prepared='max_prepared_statements = 0'
	fi
	printf '"%s" "%s"\n' "$server_user" "$server_password" >"$dir/users"
	chmod 600 "$dir/users"
	cat >"$dir/pgbouncer.ini" <<-END
		[databases]
		* = host=$server_host port=$server_port
		[pgbouncer]
		listen_addr = 127.0.0.1
		listen_port = $port
		unix_socket_dir =
		auth_type = $([ -n "$server_password" ] && echo scram-sha-256 || echo trust)
		auth_file = $dir/users
		admin_users = $server_user
		pool_mode = transaction
		default_pool_size = 20
		max_client_conn = 500
		logfile = $dir/log.server
		pidfile = $dir/pid
		$prepared
	END
	for_postgres "$dir"
	as_postgres "$pgbouncer_bin" --daemon "$dir/pgbouncer.ini" </dev/null >"$dir/log" 2>&1 9>&- || return
	wait_for $$ listening "$port"
}

# One that stands in front of a server which has moved is none.
pgbouncer_running() {
	local server_user server_password server_host server_port
	ours "$dir/pid" && pgbouncer_server 2>/dev/null && grep -qF "host=$server_host port=$server_port" "$dir/pgbouncer.ini"
}

pgbouncer_stop() { terminate "$dir/pid"; }

pgbouncer_url() {
	local server_user server_password server_host server_port
	pgbouncer_server
	echo "postgres://$server_user${server_password:+:$server_password}@127.0.0.1:$port/postgres?sslmode=disable"
}
