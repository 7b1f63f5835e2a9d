# shellcheck shell=bash
# What all services share. Sourced by scripts/services.

say() { printf 'services: %s\n' "$*" >&2; }
die() {
	say "$*"
	exit 1
}

is_root() { [ "$(id -u)" = 0 ]; }

# Root's home is closed to the user that PostgreSQL has to run as.
if is_root; then
	cache=/var/cache
else
	cache=${XDG_CACHE_HOME:-$HOME/.cache}
fi
root=${COMMITRELAY_TEST_SERVICES_DIR:-$cache/commitrelay-services}
mkdir -p "$root"
root=$(cd "$root" && pwd -P)
(umask 077 && : >>"$root/issued") # the URLs hold passwords

# lock lets one `up` or `down` at a time do its work, where there is flock. Servers must not
# inherit the lock: see background.
lock() {
	exec 9>"$root/lock"
	if command -v flock >/dev/null; then flock 9; fi
}

# value prints the variable of a name.
value() { printf '%s' "${!1:-}"; }

# variable prints the name of the variable that a service sets.
variable() { value "${1}_variable"; }

# use makes a service's folder and port, as they were chosen at its start, known to its functions.
use() {
	dir=$root/$1
	port=$(cat "$dir/port" 2>/dev/null || true)
}

# given tells whether the caller's environment has a server of its own for a service. What `env`
# has ever printed is none, so that a shell that was set up by it can go on after a restart.
given() {
	local now
	now=$(value "$(variable "$1")")
	[ -n "$now" ] && ! grep -qsxF -- "$now" "$root/issued"
}

# install_missing installs what the services lack, all at once.
install_missing() {
	local name packages missing=()
	for name in "$@"; do
		if ! given "$name" && ! "${name}_find"; then
			read -ra packages <<<"$(value "${name}_package")"
			missing+=("${packages[@]}")
		fi
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	if is_root && command -v apt-get >/dev/null; then
		say "installing ${missing[*]}"
		apt-get -q update >&2
		# RUNLEVEL=1 keeps the packages from starting servers on the usual ports.
		RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "${missing[@]}" >&2
	fi
	for name in "$@"; do
		given "$name" || "${name}_find" || die "$name is not installed. Either install it, on Debian or Ubuntu with
  sudo apt-get install ${missing[*]}
on macOS with
  brew install ${missing[*]}
or set $(variable "$name") to the URL of a server you have (compose.yaml has all of them)"
	done
}

up() {
	local name=$1
	if given "$name"; then
		say "$name: $(variable "$name") is set, nothing started"
		if [ "$(type -t "${name}_given")" = function ]; then "${name}_given"; fi
		return
	fi
	use "$name"
	if [ -f "$dir/url" ] && "${name}_running"; then
		return
	fi
	# What an interrupted start or a crash has left.
	if [ -n "$port" ]; then "${name}_stop" >/dev/null 2>&1 || true; fi
	remove "$dir"
	mkdir -m 700 "$dir" # it holds passwords
	port=$(value "$(value "${name}_port_variable")")
	[ -n "$port" ] || port=$(free_port)
	echo "$port" >"$dir/port"
	if ! "${name}_start"; then
		say "$name has not started; the end of its log:"
		tail -n 40 "$dir"/log* >&2 || true
		exit 1
	fi
	"${name}_url" | tee "$dir/url" >>"$root/issued"
	say "$name: port $port"
}

down() {
	local name=$1
	use "$name"
	[ -d "$dir" ] || return 0
	if [ -n "$port" ] && "${name}_find" && "${name}_running"; then
		"${name}_stop"
		say "$name: stopped"
	fi
	remove "$dir"
}

exports() {
	local name=$1
	if given "$name"; then
		export_line "$(variable "$name")" "$(value "$(variable "$name")")"
		if [ "$(type -t "${name}_given_exports")" = function ]; then "${name}_given_exports"; fi
		return
	fi
	use "$name"
	[ -f "$dir/url" ] || die "$name does not run: scripts/services up"
	export_line "$(variable "$name")" "$(cat "$dir/url")"
	if [ "$(type -t "${name}_exports")" = function ]; then "${name}_exports"; fi
}

export_line() { printf 'export %s=%q\n' "$1" "$2"; }

status() {
	local name=$1 state=stopped
	use "$name"
	if given "$name"; then
		state="yours ($(variable "$name") is set)"
	elif [ -n "$port" ] && "${name}_find" && "${name}_running"; then
		state="running on port $port"
	fi
	printf '%-10s %s\n' "$name" "$state"
}

# remove deletes a service's folder; only ever one below our own.
remove() {
	case $1 in "$root"/?*) rm -rf -- "$1" ;; *) die "will not remove $1" ;; esac
}

# free_port prints a port that nothing listens on, below those that systems give to clients.
free_port() {
	local p i
	for ((i = 0; i < 100; i++)); do
		p=$((20000 + RANDOM % 12000))
		if ! listening "$p"; then
			echo "$p"
			return
		fi
	done
	die "no free port found"
}

listening() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# wait_for repeats a command until it succeeds, for 60 s at most and as long as process $1 lives.
wait_for() {
	local pid=$1 i
	shift
	for ((i = 0; i < 600; i++)); do
		if "$@"; then return 0; fi
		kill -0 "$pid" 2>/dev/null || return 1
		sleep 0.1
	done
	return 1
}

# background runs a command that outlives us, apart from our terminal's signals, its output in
# $dir/log. It sets pid.
background() {
	set -m # a process group of its own
	nohup "$@" >"$dir/log" 2>&1 </dev/null 9>&- &
	pid=$!
	set +m
}

# ours tells whether the process in a pid file is one that we started: its command line names the
# folder. After a reboot the number may be someone else's.
ours() {
	local pid
	pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] || return 1
	if [ -r "/proc/$pid/cmdline" ]; then
		tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF -- "$dir"
	elif [ ! -d /proc/self ]; then
		ps -ww -o command= -p "$pid" 2>/dev/null | grep -qF -- "$dir"
	else
		return 1
	fi
}

# terminate ends the process in a pid file, if it is ours: SIGTERM, and after 20 s SIGKILL.
terminate() {
	local pid i
	ours "$1" || return 0
	pid=$(cat "$1")
	kill "$pid" 2>/dev/null || return 0
	for ((i = 0; i < 200; i++)); do
		kill -0 "$pid" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -9 "$pid" 2>/dev/null || true
}

# as_postgres runs a command as a user that PostgreSQL accepts: not root.
as_postgres() {
	if is_root; then
		local line
		printf -v line '%q ' "$@"
		su -s "$BASH" postgres -c "cd / && exec $line"
	else
		"$@"
	fi
}

# for_postgres gives a folder to that user.
for_postgres() {
	is_root || return 0
	chown -R postgres "$1"
	as_postgres test -w "$1" || die "user postgres cannot write to $1: set COMMITRELAY_TEST_SERVICES_DIR to a folder whose parents it may enter"
}

# newest prints the last of the folders that hold the program $1, out of $2...
newest() {
	local program=$1 d
	shift
	for d in "$@"; do
		if [ -x "$d/$program" ]; then printf '%s\n' "$d"; fi
	done | sort -V | tail -n 1
}

password() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }
