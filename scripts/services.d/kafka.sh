# shellcheck shell=bash disable=SC2034,SC2154
# Kafka: one node that is its own controller, from Maven's jars. User app may log in by PLAIN and
# SCRAM, with and without TLS.

kafka_variable=COMMITRELAY_TEST_KAFKA
kafka_port_variable=COMMITRELAY_TEST_KAFKA_PORT
kafka_package="openjdk-17-jre-headless maven"

kafka_definition=$here/services.d/kafka

# kafka_jars names the folder of the jars, another one for other versions.
kafka_jars=$root/kafka-jars-$(cksum <"$kafka_definition/pom.xml" | cut -d ' ' -f 1)

kafka_find() {
	local java
	kafka_java=
	for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*/bin/java \
		/opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java; do
		if kafka_java_fits "$java"; then
			kafka_java=$java
			break
		fi
	done
	[ -n "$kafka_java" ] && { [ -d "$kafka_jars" ] || command -v mvn >/dev/null; }
}

# kafka_java_fits tells whether a java is new enough: 17.
kafka_java_fits() {
	local version
	[ -x "$1" ] && version=$("$1" -version 2>&1) || return 1 # macOS has a java that only asks for one
	[[ $version =~ version\ \"([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 17 ]
}

kafka_download() {
	[ ! -d "$kafka_jars" ] || return 0
	say "kafka: downloading its jars, 43 MB"
	rm -rf -- "$kafka_jars.part"
	mvn -q -B -f "$kafka_definition/pom.xml" -Dstyle.color=never dependency:copy-dependencies -DoutputDirectory="$kafka_jars.part" >&2 </dev/null 9>&- || return
	mv "$kafka_jars.part" "$kafka_jars"
}

# kafka_runner gets what it takes to run a broker. Tests that kill one start their own.
kafka_runner() {
	kafka_download || return
	cat >"$root/kafka-run" <<-END
		#!/bin/sh
		export KAFKA_JAVA='$kafka_java' KAFKA_JARS='$kafka_jars'
		exec '$kafka_definition/run' "\$@"
	END
	chmod +x "$root/kafka-run"
}

kafka_given() {
	[ -z "$(value COMMITRELAY_TEST_KAFKA_RUN)" ] || return 0
	kafka_find || die "tests that kill a Kafka start their own: install Java 17 and Maven, or set COMMITRELAY_TEST_KAFKA_RUN"
	kafka_runner || die "the jars of Kafka cannot be downloaded"
}

kafka_start() {
	kafka_runner || return
	password >"$dir/password"
	free_port >"$dir/sasl.port"
	free_port >"$dir/tls.port"
	background "$root/kafka-run" "$dir" "$port" "$(free_port)" "$(cat "$dir/sasl.port")" "$(cat "$dir/tls.port")"
	echo "$pid" >"$dir/pid"
	wait_for "$pid" kafka_ready
}

# kafka_ready: its listeners open when it is up; the last one is TLS's.
kafka_ready() { listening "$port" && listening "$(cat "$dir/tls.port")"; }

kafka_running() { ours "$dir/pid"; }

kafka_stop() { terminate "$dir/pid"; }

kafka_url() { echo "kafka://127.0.0.1:$port"; }

kafka_exports() {
	export_line COMMITRELAY_TEST_KAFKA_SASL "kafka://app:$(cat "$dir/password")@127.0.0.1:$(cat "$dir/sasl.port")"
	export_line COMMITRELAY_TEST_KAFKA_TLS "kafka+ssl://app:$(cat "$dir/password")@127.0.0.1:$(cat "$dir/tls.port")"
	export_line COMMITRELAY_TEST_KAFKA_CA "$dir/ca.pem"
	kafka_given_exports
}

kafka_given_exports() {
	[ -n "$(value COMMITRELAY_TEST_KAFKA_RUN)" ] || export_line COMMITRELAY_TEST_KAFKA_RUN "$root/kafka-run"
}
