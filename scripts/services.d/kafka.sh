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
	mvn -q -B -f "$kafka_definition/pom.xml" dependency:copy-dependencies -DoutputDirectory="$kafka_jars.part" >"$dir/log" 2>&1 </dev/null 9>&- || return
	mv "$kafka_jars.part" "$kafka_jars"
}

kafka_start() {
	kafka_download || return
	password >"$dir/password"
	"${kafka_java%/*}/keytool" -genkeypair -alias kafka -keyalg RSA -dname CN=127.0.0.1 -ext SAN=IP:127.0.0.1 -validity 3650 \
		-storetype PKCS12 -keystore "$dir/tls.p12" -storepass:file "$dir/password" >"$dir/log" 2>&1 || return
	"${kafka_java%/*}/keytool" -exportcert -rfc -alias kafka -keystore "$dir/tls.p12" -storepass:file "$dir/password" >"$dir/ca.pem" 2>>"$dir/log" || return
	free_port >"$dir/sasl.port"
	free_port >"$dir/tls.port"
	# For tests that start and kill a broker of their own.
	cat >"$dir/run" <<-END
		#!/bin/sh
		export KAFKA_JAVA='$kafka_java' KAFKA_JARS='$kafka_jars'
		exec '$kafka_definition/run' "\$@"
	END
	chmod +x "$dir/run"
	background "$dir/run" "$dir" "$port" "$(free_port)" "$(cat "$dir/sasl.port")" "$(cat "$dir/tls.port")"
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
	export_line COMMITRELAY_TEST_KAFKA_RUN "$dir/run"
}
