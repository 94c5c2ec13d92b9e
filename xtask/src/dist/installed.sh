# In a root of Debian's that has the packages in the directory $1, and is to have the provider $2: installed, used,
# upgraded, removed, purged. Its last line says what was seen.
set -eu
dist=$1 provider=$2
fail() { echo "$*"; exit 1; }
# The root's own packages were unpacked, and dpkg knows of none.
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers /var/log
touch /var/lib/dpkg/status
dpkg() { command dpkg --force-depends --force-bad-path --force-not-root "$@" > "$dist/log" 2>&1 || { cat "$dist/log"; exit 1; }; }
version() { dpkg-query -W -f '${Version} ${db:Status-Abbrev}' balboa; }

dpkg -i "$dist"/*.deb
[ -e "$provider" ] || fail "$provider is missing"
[ ! -e /etc/libibverbs.d/rxe.driver ] || fail "rxe's own file is still read"
balboad --check-config --config /etc/balboa/balboad.toml | grep -q ': well; 1 software cards'

for program in balboa balboad softcard; do
    gzip -dc /usr/share/man/man1/$program.1.gz | grep -q "^.TH $program 1" || fail "$program has no manual page"
    bash -n /usr/share/bash-completion/completions/$program || fail "$program is not completed"
    grep -q "complete .* $program$" /usr/share/bash-completion/completions/$program || fail "$program is not completed"
done

# The main job, with nothing but what is installed.
state=$dist/state
balboad --soft 2 --state-dir "$state" > "$dist/balboad.log" 2>&1 &
daemon=$!
trap 'kill $daemon 2> /dev/null || true' EXIT
export BALBOA_STATE_DIR=$state
until balboa list > /dev/null 2>&1; do kill -0 $daemon || fail "$(cat "$dist/balboad.log")"; sleep 0.1; done
port=$((20000 + $$ % 10000))
balboa run -- ib_write_bw -d balboa0 -x 1 -n 1000 -p $port > "$dist/server" 2>&1 &
server=$!
tries=0
until balboa run -- ib_write_bw -d balboa1 -x 1 -n 1000 -p $port 127.0.0.1 > "$dist/client" 2>&1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] && kill -0 $server || fail "$(cat "$dist/server" "$dist/client")"
    sleep 0.2
done
wait $server
bytes=$(balboa counters balboa0 | sed -n 's/^rcvd_bytes *//p')
[ "$bytes" -ge 65536000 ] || fail "the card has received $bytes bytes"
kill $daemon
wait $daemon

# What the administrator has written stays, through an upgrade and a removal.
echo '# ours' >> /etc/balboa/balboad.toml
dpkg -i "$dist"/new/*.deb
[ "$(version)" = '99 ii ' ] || fail "after the upgrade there is $(version)"
grep -q '# ours' /etc/balboa/balboad.toml || fail "the upgrade took the configuration"
dpkg -r balboa balboa-doc "balboa-provider-$(basename "$provider" .so | tr -dc 0-9)"
[ ! -e /usr/bin/balboad ] || fail "a program stays"
grep -q '# ours' /etc/balboa/balboad.toml || fail "the removal took the configuration"
[ -e /etc/libibverbs.d/rxe.driver ] || fail "rxe's own file is not back"
dpkg -P balboa balboa-doc "balboa-provider-$(basename "$provider" .so | tr -dc 0-9)"
left=$(find / -xdev \( -path "$dist" -o -path /proc -o -path /sys -o -path /dev \) -prune -o -name '*balboa*' -print)
[ -z "$left" ] || fail "left behind: $left"
echo "installed, $bytes bytes by ib_write_bw, upgraded, removed, purged"
