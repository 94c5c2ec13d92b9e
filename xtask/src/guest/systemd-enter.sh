#!/bin/sh
# The first process of a machine, on the host's root: makes a root of Debian's packages in memory and goes on as its
# systemd. What the packages' own scripts would have done is done here, as far as it is needed.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -e
root=/tmp/root
mkdir $root
mount -t tmpfs -o mode=755,size=80% tmpfs $root
tar -xf SHARES/job/root.tar -C $root
mkdir -p $root/run $root/tmp $root/root $root/home $root/var/log $root/var/lib/dpkg/info $root/var/lib/dpkg/updates \
    $root/var/lib/dpkg/triggers
chmod 1777 $root/tmp
touch $root/var/lib/dpkg/status
tr -d - < /proc/sys/kernel/random/uuid > $root/etc/machine-id
cp $root/usr/share/base-passwd/passwd.master $root/etc/passwd
cp $root/usr/share/base-passwd/group.master $root/etc/group
for user in member:1001 outsider:1002; do
    echo "${user%:*}:x:${user#*:}:${user#*:}::/home/${user%:*}:/bin/sh" >> $root/etc/passwd
    echo "${user%:*}:x:${user#*:}:" >> $root/etc/group
    mkdir $root/home/${user%:*}
    chown ${user#*:}:${user#*:} $root/home/${user%:*}
done
for kind in account auth password session session-noninteractive; do
    echo "${kind%-*} required pam_permit.so" > $root/etc/pam.d/common-$kind
done
modules=$root/lib/modules/$(uname -r)
mkdir -p "$modules/kernel"
cp SHARES/modules/*.ko "$modules/kernel"
touch "$modules/modules.order" "$modules/modules.builtin"
chroot $root ldconfig
chroot $root depmod
chroot $root systemd-sysusers
cat > $root/etc/systemd/system/trial.service <<UNIT
[Unit]
Description=What is tried here
After=dbus.socket systemd-logind.service
[Service]
ExecStart=/bin/sh SHARES/job/trial.sh
StandardOutput=null
UNIT
mkdir -p $root/etc/systemd/system/multi-user.target.wants
ln -s ../trial.service $root/etc/systemd/system/multi-user.target.wants/trial.service
ln -s /lib/systemd/system/multi-user.target $root/etc/systemd/system/default.target
ln -s /dev/null $root/etc/systemd/system/serial-getty@ttyS0.service
exec switch_root $root /lib/systemd/systemd
