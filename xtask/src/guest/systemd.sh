# Under systemd, in a machine with two cards behind an IOMMU: the packages are installed, and all that service.md says of
# units, udev's rules and the journal is tried. $1 is the directory of shares. Its last line says that all was seen.
set -u
packages=$1/built/dist
failures=0
fail() { echo "FAIL $*"; failures=$((failures + 1)); }
# holds TEXT COMMAND...: the command succeeds.
holds() { what=$1; shift; if said=$("$@" 2>&1); then echo "ok   $what"; else fail "$what: $*: $said"; fi; }
# refused TEXT WORDS COMMAND...: the command fails, and says the words.
refused() {
    what=$1 words=$2; shift 2
    if said=$("$@" 2>&1); then fail "$what: succeeds: $*: $said"; return; fi
    case $said in *"$words"*) echo "ok   $what" ;; *) fail "$what: $*: $said" ;; esac
}
# soon TEXT COMMAND...: the command succeeds before long.
soon() {
    what=$1; shift; tries=0
    until said=$("$@" 2>&1); do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { fail "$what: $*: $said"; return; }
        sleep 1
    done
    echo "ok   $what"
}
# as USER COMMAND...: by that user, who has logged in.
as() {
    user=$1; shift
    setpriv --reuid "$user" --regid "$user" --init-groups env -i PATH="$PATH" HOME="$(getent passwd "$user" | cut -d: -f6)" \
        XDG_RUNTIME_DIR="/run/user/$(id -u "$user")" "$@"
}
service() { as balboa env BALBOA_STATE_DIR=/run/balboad "$@"; }
property() { systemctl show -P "$1" balboad.service; }
is() { [ "$(property "$1")" = "$2" ] || { echo "$1 is $(property "$1")"; return 1; }; }
# The journal has an entry of the service with all these pieces of JSON.
journal() {
    entries=$(journalctl --no-pager -u balboad.service -o json --output-fields=MESSAGE,PRIORITY,TARGET,CODE_FILE,CODE_LINE,SYSLOG_IDENTIFIER,BALBOA_CLIENT,_TRANSPORT,_UID)
    for piece in "$@"; do entries=$(echo "$entries" | grep -F -e "$piece") || { echo "no $piece"; return 1; }; done
}
metrics() { curl --silent --fail 127.0.0.1:9434/metrics | grep '^balboa_build_info'; }
dog() { journalctl --no-pager -u balboad.service | grep -i 'watchdog timeout'; }
outsiders_log() { journalctl --no-pager _UID=1002 | grep -F "$1"; }
# ib_write_bw between two cards, by whoever is named before it. An emulated clock is none that perftest trusts (-F).
main_job() {
    port=$((20000 + $$ % 10000))
    "$@" balboa run -- ib_write_bw -F -d balboa0 -n 200 -p $port > /tmp/server 2>&1 &
    server=$! tries=0
    until "$@" balboa run -- ib_write_bw -F -d balboa1 -n 200 -p $port 127.0.0.1 > /tmp/client 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] && kill -0 $server 2> /dev/null || { cat /tmp/server /tmp/client; return 1; }
        sleep 1
    done
    wait $server && grep -E '^ *65536 +200 ' /tmp/client
}

holds "the machine is up" systemctl is-system-running --wait

dpkg() { command dpkg --force-depends --force-unsafe-io "$@"; }
holds "installed" dpkg -i "$packages/balboa.deb" "$packages/balboa-provider-44.deb"
holds "nothing runs that was not asked for" is ActiveState inactive
holds "a user and a group" getent passwd balboa
holds "the group of who reaches cards" getent group rdma
[ "$(stat -c '%a %U %G' /run/balboad)" = '700 balboa balboa' ] || fail "/run/balboad is $(stat -c '%a %U %G' /run/balboad)"
sed -i 's/^soft = 1/soft = 2/' /etc/balboa/balboad.toml

holds "the service starts, and says when it is ready" systemctl enable --now balboad
holds "it is Type=notify" is Type notify
holds "it is active" is ActiveState active
[ "$(ps -o user= -p "$(property MainPID)")" = balboa ] || fail "it is $(ps -o user= -p "$(property MainPID)")'s"
holds "ib_write_bw by the service's user" main_job service
refused "an outsider is refused" "serves only its own user" as outsider env BALBOA_STATE_DIR=/run/balboad balboa list
refused "root is refused" "serves only its own user" env BALBOA_STATE_DIR=/run/balboad balboa list
holds "systemd's exposure is at most 3" systemd-analyze security --no-pager --threshold=30 balboad.service
systemd-analyze security --no-pager balboad.service | tail -n 1

holds "a line is fields in the journal" journal '"SYSLOG_IDENTIFIER":"balboad"' '"PRIORITY":"6"' '"TARGET":"' \
    '"CODE_FILE":"' '"CODE_LINE":"' '"_TRANSPORT":"journal"' "\"_UID\":\"$(id -u balboa)\""
holds "an address is added" service balboa addr balboa0 add 10.88.0.1
soon "the line that a client caused names it" journal '"BALBOA_CLIENT":"' '10.88.0.1'

first=$(property MainPID)
printf 'metrics = "127.0.0.1:9434"\nverbose = 1\n' >> /etc/balboa/balboad.toml
holds "the configuration is read again" systemctl reload balboad
soon "and takes effect" metrics
holds "by the same balboad" is MainPID "$first"
cp /etc/balboa/balboad.toml /tmp/well.toml
echo 'sofd = 2' >> /etc/balboa/balboad.toml
refused "a wrong one is not read" "failed" systemctl reload balboad
soon "the journal has why" journal 'unknown field `sofd`'
holds "and all goes on" is MainPID "$first"
holds "with its programs" service balboa list
kill -KILL "$first"
soon "with a wrong one balboad is not started again" is ActiveState failed
holds "but once, for the one that was killed" is NRestarts 1
holds "and has said by its exit code that it is wrong" is ExecMainStatus 2
cp /tmp/well.toml /etc/balboa/balboad.toml
systemctl reset-failed balboad
holds "it is mended" systemctl start balboad.socket
# In an emulated machine balboad may be longer in coming than the tool waits.
soon "socket activation: the first program starts balboad" service balboa list
holds "which is there" is ActiveState active
kill -KILL "$(property MainPID)"
soon "a balboad that was killed is started again" is NRestarts 1
soon "and serves" service balboa list

frozen=$(property MainPID)
kill -STOP "$frozen"
soon "the watchdog ends a balboad that stands still" is NRestarts 2
soon "the journal has why" dog
soon "the next one serves" service balboa list
is MainPID "$frozen" > /dev/null && fail "the frozen one is still there"
holds "it is stopped" systemctl stop balboad
holds "and ends well" is Result success

# Cards behind VFIO.
cp /usr/share/doc/balboa/examples/61-balboa-bind.rules /etc/udev/rules.d/
udevadm control --reload
udevadm trigger --action=add --subsystem-match=pci
udevadm settle
for card in 0000:01:00.0 0000:02:00.0; do
    driver=$(basename "$(readlink "/sys/bus/pci/devices/$card/driver")")
    [ "$driver" = vfio-pci ] || fail "$card is driven by ${driver:-nobody}"
    node=/dev/vfio/$(basename "$(readlink "/sys/bus/pci/devices/$card/iommu_group")")
    [ "$(stat -c '%a %G' "$node")" = '660 rdma' ] || fail "$node is $(stat -c '%a %G' "$node")"
done
echo "ok   udev binds cards to vfio-pci and gives their nodes to the group rdma"
# The second card's neighbour in its group, which the kernel drives.
[ ! -e /sys/bus/pci/devices/0000:02:00.1/driver ] || echo 0000:02:00.1 > /sys/bus/pci/devices/0000:02:00.1/driver/unbind
vfio='vfio = ["0000:01:00.0", "0000:02:00.0"]'
sed "s/^soft = 2/$vfio/" /tmp/well.toml > /etc/balboa/balboad.toml
holds "the service drives cards behind VFIO" systemctl start balboad
holds "ib_write_bw on cards behind VFIO" main_job service
holds "the service is disabled" systemctl disable --now balboad.service balboad.socket

# Users' own balboads: of one in the group, and of one who is not. What a user may lock in memory is the administrator's.
mkdir -p /etc/systemd/system/user@.service.d
printf '[Service]\nLimitMEMLOCK=infinity\n' > /etc/systemd/system/user@.service.d/memlock.conf
systemctl daemon-reload
usermod --append --groups rdma member
for user in member outsider; do
    mkdir -p /home/$user/.config/balboa
    echo "$vfio" > /home/$user/.config/balboa/balboad.toml
    chown -R $user:$user /home/$user
    holds "a session of $user" systemctl start "user@$(id -u $user).service"
    holds "the socket of $user" as $user systemctl --user enable --now balboad.socket
done
holds "ib_write_bw by a user of the group rdma, on cards behind VFIO" main_job as member
holds "by a balboad that the first program started" as member systemctl --user is-active balboad.service
holds "it is stopped" as member systemctl --user stop balboad.socket balboad.service
as outsider balboa status > /tmp/said 2>&1 && fail "an outsider has cards behind VFIO: $(cat /tmp/said)"
soon "the cards may not be opened by an outsider" outsiders_log 'may not be opened by this user'
echo 'soft = 2' > /home/outsider/.config/balboa/balboad.toml
as outsider systemctl --user reset-failed
holds "software cards are anybody's" as outsider systemctl --user restart balboad.socket
holds "ib_write_bw by an outsider, on software cards" main_job as outsider
holds "they are stopped" as outsider systemctl --user stop balboad.socket balboad.service

# A shadow device, by service.md's drop-in.
modprobe -a ib_uverbs rdma_rxe tun
mkdir -p /etc/systemd/system/balboad.service.d
cp "$1/job/shadow.conf" /etc/systemd/system/balboad.service.d/
systemctl daemon-reload
printf 'soft = 2\nshadow = true\nstate-dir = "/run/balboad"\n' > /etc/balboa/balboad.toml
holds "the service shows its cards to the kernel" systemctl start balboad.service
[ -e /sys/class/infiniband/balboa0 ] || fail "the kernel has no device balboa0"
holds "which a program of the service's user finds without balboa run" service ibv_devinfo -d balboa0

holds "removed" dpkg --remove balboa-provider-44 balboa
is ActiveState inactive > /dev/null || fail "balboad runs, and is not there"
[ ! -e /run/balboad/balboad.sock ] || fail "the socket stays"
if [ $failures = 0 ]; then
    echo "ok   all that was to be seen was seen"
else
    journalctl --no-pager -b -u balboad.service -u balboad.socket -u 'user@*'
fi
