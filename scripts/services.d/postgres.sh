# shellcheck shell=bash disable=SC2034,SC2154
# PostgreSQL, with room for prepared transactions, which the tests use.

postgres_variable=COMMITRELAY_TEST_DATABASE
postgres_port_variable=COMMITRELAY_TEST_PG_PORT
postgres_package=postgresql

postgres_find() {
	local initdb
	initdb=$(command -v initdb || true)
	if [ -n "$initdb" ]; then
		pg_bin=$(dirname "$initdb")
	else
		pg_bin=$(newest initdb "$(pg_config --bindir 2>/dev/null || true)" \
			/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/lib/postgresql*/bin /usr/libexec/postgresql* \
			/opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin \
			/Applications/Postgres.app/Contents/Versions/*/bin)
	fi
	[ -n "$pg_bin" ]
}

postgres_start() {
	password >"$dir/password"
	for_postgres "$dir"
	as_postgres "$pg_bin/initdb" --pgdata "$dir/data" --no-sync --no-locale --encoding UTF8 \
		--username postgres --pwfile "$dir/password" --auth scram-sha-256 >"$dir/log" 2>&1 || return
	# Roles that tests make log in without a password; the superuser does not.
	cat >"$dir/data/pg_hba.conf" <<-END
		host all         postgres 127.0.0.1/32 scram-sha-256
		host replication all      127.0.0.1/32 scram-sha-256
		host all         all      127.0.0.1/32 trust
	END
	cat >>"$dir/data/postgresql.conf" <<-END
		listen_addresses = '127.0.0.1'
		unix_socket_directories = ''
		port = $port
		max_connections = 200
		max_prepared_transactions = 64
		fsync = off # each test makes a database: a second of waiting for the disk, with fsync
		full_page_writes = off
	END
	as_postgres "$pg_bin/pg_ctl" start --wait --pgdata "$dir/data" --log "$dir/log.server" </dev/null >>"$dir/log" 2>&1 9>&-
}

postgres_running() { as_postgres "$pg_bin/pg_ctl" status --pgdata "$dir/data" >/dev/null 2>&1; }

postgres_stop() { as_postgres "$pg_bin/pg_ctl" stop --mode fast --pgdata "$dir/data" >/dev/null; }

postgres_url() { echo "postgres://postgres:$(cat "$dir/password")@127.0.0.1:$port/postgres?sslmode=disable"; }
