//! The answers that the kernel would give over RDMA netlink, were the devices below a `/sys/class` its own.
//!
//! The asking program is not trusted: no length is believed, and a request costs a bounded number of looks at
//! files. A device has the attributes in its files. Nothing can be changed (EPERM), and attributes without a file
//! are not answered (EOPNOTSUPP).
//!
//! Sources: `include/uapi/rdma/rdma_netlink.h`, `drivers/infiniband/core/netlink.c` and `nldev.c` of Linux.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::message::{Message, ReceivedNews, attribute, attributes, messages, text, u32_at};

/// Flags of `linux/netlink.h`: a request, one that is acknowledged, one for all there are (either bit of it).
const REQUEST: u16 = 1;
const ACKNOWLEDGED: u16 = 4;
const DUMP: u16 = 0x300;
/// Flags of answers: one of many; one that does not repeat the whole request.
const MULTIPLE: u16 = 2;
const CAPPED: u16 = 0x100;
/// Kinds of answers; kinds below `FIRST` are about messages.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const FIRST: u16 = 16;

/// `RDMA_NL_NLDEV`, as it stands in a message's kind above the command.
const CLIENT: u16 = 5;
const COMMAND_BITS: u32 = 10;

/// Commands: `RDMA_NLDEV_CMD_…`.
const GET: u16 = 1;
const PORT_GET: u16 = 5;
const SYS_GET: u16 = 6;
const GET_CHARDEV: u16 = 15;
const STAT_GET: u16 = 17;
/// Those that the kernel keeps for an administrator: SET, NEWLINK, DELLINK, SYS_SET, STAT_SET, STAT_DEL, the four
/// RES_…_GET_RAW, NEWDEV, DELDEV, FRMR_POOLS_SET.
const PRIVILEGED: [u16; 13] = [2, 3, 4, 7, 16, 18, 19, 20, 21, 25, 26, 27, 30];
/// Commands whose answers are in no file: RES_GET and those of its kinds, STAT_GET_STATUS, MONITOR, FRMR_POOLS_GET.
const UNTOLD: [u16; 11] = [9, 10, 11, 12, 13, 14, 22, 23, 24, 28, 29];

/// Attributes: `RDMA_NLDEV_ATTR_…`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const SYS_NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;
const CHARDEV_TYPE: u16 = 69;
const CHARDEV_NAME: u16 = 70;
const CHARDEV_ABI: u16 = 71;
const CHARDEV: u16 = 72;
const STAT_RES: u16 = 75;
const STAT_HWCOUNTERS: u16 = 80;
const STAT_HWCOUNTER_ENTRY: u16 = 81;
const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
const SYS_COPY_ON_FORK: u16 = 93;

/// Devices have one port.
const PORT: u32 = 1;
/// A device may be used from any network namespace.
const SHARED: u8 = 1;

/// Most requests of one datagram that are answered.
const MOST_REQUESTS: usize = 16;
/// Most names in a directory that are looked at.
const MOST_NAMES: usize = 256;
/// Bytes of a file that are read: a text of sysfs is a line.
const MOST_TEXT_BYTES: u64 = 256;
/// Bytes of a datagram with several answers; programs have room for a page.
const DATAGRAM_BYTES: usize = 4096;

/// The devices below a `/sys/class`.
#[derive(Debug)]
pub struct Devices {
    class: PathBuf,
}

impl Devices {
    /// Those below this directory.
    #[must_use]
    pub const fn below(class: PathBuf) -> Self {
        Self { class }
    }

    /// The datagrams that answer one.
    #[must_use]
    pub fn answer(&self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut answers = Vec::new();
        for asked in messages(datagram).take(MOST_REQUESTS) {
            self.answer_one(&asked, &mut answers);
        }
        answers
    }

    fn answer_one(&self, asked: &ReceivedNews<'_>, answers: &mut Vec<Vec<u8>>) {
        let refused = |errno: Errno| error(asked, Some(errno));
        if asked.flags & REQUEST != 0 && asked.kind >= FIRST {
            let said = match command(asked) {
                Err(errno) => Err(errno),
                Ok(command) if asked.flags & DUMP != 0 => match self.all(command, asked) {
                    Ok(all) => return pack(asked, all, answers),
                    Err(errno) => Err(errno),
                },
                Ok(command) => self.one(command, asked),
            };
            match said {
                Ok(message) => answers.push(message.finish()),
                Err(errno) => return answers.push(refused(errno)),
            }
        }
        if asked.flags & ACKNOWLEDGED != 0 {
            answers.push(error(asked, None));
        }
    }

    /// A command's answers for each device.
    fn all(&self, command: u16, asked: &ReceivedNews<'_>) -> Result<Vec<Message>, Errno> {
        let begun = || Message::answering(asked, asked.kind, MULTIPLE, &[]);
        match command {
            GET => {
                let each = self.devices().into_iter();
                Ok(each.filter_map(|(index, name)| self.device(begun(), index, &name)).collect())
            }
            PORT_GET => {
                let (index, name) = self.named(asked)?;
                Ok(self.port(begun(), index, &name).into_iter().collect())
            }
            STAT_GET => Err(Errno::EOPNOTSUPP),
            _ => Err(Errno::EINVAL),
        }
    }

    fn one(&self, command: u16, asked: &ReceivedNews<'_>) -> Result<Message, Errno> {
        let begun = Message::answering(asked, asked.kind, 0, &[]);
        if command == SYS_GET {
            // Since Linux 5.12 a child has copies of pages that a device reaches, where it is fork(2) that could part
            // them; a software card reaches them by the process. No kernel older than that gets here.
            return Ok(begun.with(SYS_NETNS_MODE, &[SHARED]).with(SYS_COPY_ON_FORK, &[1]));
        }
        if command == GET_CHARDEV && find(asked, CHARDEV_TYPE).and_then(text) != Some("uverbs") {
            // librdmacm, which asks for "rdma_cm", reads sysfs where the kernel cannot tell.
            return Err(Errno::EOPNOTSUPP);
        }
        let (index, name) = self.named(asked)?;
        let port = number(asked, PORT_INDEX) == Some(PORT);
        match command {
            GET => self.device(begun, index, &name),
            PORT_GET if port => self.port(begun, index, &name),
            GET_CHARDEV => self.node(begun, &name),
            STAT_GET if find(asked, STAT_RES).is_some() => return Err(Errno::EOPNOTSUPP),
            STAT_GET if port => self.counters(begun, index, &name),
            _ => None,
        }
        .ok_or(Errno::EINVAL)
    }

    /// Devices by their indices in order. An index is the number in the name, which stays while others come and go.
    fn devices(&self) -> BTreeMap<u32, String> {
        let names = names(&self.class.join("infiniband")).into_iter();
        names.filter_map(|name| Some((index(&name)?, name))).collect()
    }

    /// The device that is asked for.
    fn named(&self, asked: &ReceivedNews<'_>) -> Result<(u32, String), Errno> {
        let index = number(asked, DEV_INDEX).ok_or(Errno::EINVAL)?;
        let name = self.devices().remove(&index).ok_or(Errno::EINVAL)?;
        Ok((index, name))
    }

    fn device(&self, begun: Message, index: u32, name: &str) -> Option<Message> {
        let path = self.class.join("infiniband").join(name);
        let [node, system] = ["node_guid", "sys_image_guid"].map(|file| guid(&line(&path, file)?));
        Some(
            of_device(begun, index, name, PORT)
                .with_text(FW_VERSION, &line(&path, "fw_ver")?)
                .with(NODE_GUID, &node?.to_ne_bytes())
                .with(SYS_IMAGE_GUID, &system?.to_ne_bytes())
                .with(DEV_NODE_TYPE, &[leading_number(&line(&path, "node_type")?)?])
                .with_text(DEV_PROTOCOL, "roce"),
        )
    }

    fn port(&self, begun: Message, index: u32, name: &str) -> Option<Message> {
        let path = self.port_of(name);
        let [state, physical] =
            ["state", "phys_state"].map(|file| leading_number(&line(&path, file)?));
        let it = of_device(begun, index, name, PORT)
            .with(PORT_STATE, &[state?])
            .with(PORT_PHYS_STATE, &[physical?]);
        Some(match self.network_device(&path) {
            Some((index, name)) => {
                it.with(NDEV_INDEX, &index.to_ne_bytes()).with_text(NDEV_NAME, &name)
            }
            None => it,
        })
    }

    fn port_of(&self, name: &str) -> PathBuf {
        self.class.join("infiniband").join(name).join("ports").join(PORT.to_string())
    }

    /// The network device that the addresses of a port have, if all that have one have the same.
    fn network_device(&self, port: &Path) -> Option<(u32, String)> {
        let path = port.join("gid_attrs/ndevs");
        let found: BTreeSet<_> = names(&path)
            .iter()
            .filter_map(|gid| line(&path, gid))
            .filter(|it| !it.is_empty())
            .collect();
        let mut found = found.into_iter();
        let (name, None) = (found.next()?, found.next()) else { return None };
        if name.contains('/') {
            return None;
        }
        let index = line(&self.class.join("net").join(&name), "ifindex")?.parse().ok()?;
        Some((index, name))
    }

    /// The device node of a device.
    fn node(&self, begun: Message, device: &str) -> Option<Message> {
        let class = self.class.join("infiniband_verbs");
        let is_its = |name: &String| line(&class.join(name), "ibdev").as_deref() == Some(device);
        let name = names(&class).into_iter().find(is_its)?;
        let path = class.join(&name);
        let number = line(&path, "dev")?;
        let (major, minor) = number.split_once(':')?;
        let (major, minor): (u64, u64) = (major.parse().ok()?, minor.parse().ok()?);
        // As `huge_encode_dev` has it.
        let (major, minor) = (major & 0xfff, minor & 0xf_ffff);
        let number = (minor & 0xff) | major << 8 | (minor & 0xf_ff00) << 12;
        let version: u64 = line(&path, "abi_version")?.parse().ok()?;
        let it = begun.with_text(CHARDEV_NAME, &name);
        Some(it.with(CHARDEV_ABI, &version.to_ne_bytes()).with(CHARDEV, &number.to_ne_bytes()))
    }

    fn counters(&self, begun: Message, index: u32, name: &str) -> Option<Message> {
        let path = self.port_of(name).join("hw_counters");
        let mut counters = names(&path);
        counters.sort();
        let mut table = Vec::new();
        for counter in &counters {
            let value: u64 = line(&path, counter)?.parse().ok()?;
            let mut entry =
                attribute(STAT_HWCOUNTER_ENTRY_NAME, &[counter.as_bytes(), b"\0"].concat());
            entry.extend(attribute(STAT_HWCOUNTER_ENTRY_VALUE, &value.to_ne_bytes()));
            table.extend(attribute(STAT_HWCOUNTER_ENTRY, &entry));
        }
        let told = of_device(begun, index, name, PORT).with(STAT_HWCOUNTERS, &table);
        (!table.is_empty()).then_some(told)
    }
}

/// The command of a request that can be answered.
fn command(asked: &ReceivedNews<'_>) -> Result<u16, Errno> {
    let command = asked.kind & ((1 << COMMAND_BITS) - 1);
    if asked.kind >> COMMAND_BITS != CLIENT {
        return Err(Errno::EINVAL);
    }
    match command {
        GET | PORT_GET | SYS_GET | GET_CHARDEV | STAT_GET => Ok(command),
        _ if PRIVILEGED.contains(&command) => Err(Errno::EPERM),
        _ if UNTOLD.contains(&command) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}

/// Puts answers into as few datagrams as they fit, and the end of the list behind them.
fn pack(asked: &ReceivedNews<'_>, all: Vec<Message>, answers: &mut Vec<Vec<u8>>) {
    let mut datagram = Vec::new();
    let end = Message::answering(asked, DONE, MULTIPLE, &0i32.to_ne_bytes());
    for message in all.into_iter().chain([end]).map(Message::finish) {
        if datagram.len().saturating_add(message.len()) > DATAGRAM_BYTES {
            answers.push(std::mem::take(&mut datagram));
        }
        datagram.extend(message);
    }
    answers.push(datagram);
}

/// That a request failed, or that it did not.
fn error(asked: &ReceivedNews<'_>, errno: Option<Errno>) -> Vec<u8> {
    let code = errno.map_or(0, |errno| (errno as i32).wrapping_neg());
    // The request's header.
    let length = asked.body.len().saturating_add(16);
    let mut body = code.to_ne_bytes().to_vec();
    body.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    body.extend(asked.kind.to_ne_bytes());
    body.extend(asked.flags.to_ne_bytes());
    body.extend(asked.sequence.to_ne_bytes());
    body.extend(asked.port.to_ne_bytes());
    Message::answering(asked, ERROR, CAPPED, &body).finish()
}

fn of_device(begun: Message, index: u32, name: &str, port: u32) -> Message {
    let it = begun.with(DEV_INDEX, &index.to_ne_bytes()).with_text(DEV_NAME, name);
    it.with(PORT_INDEX, &port.to_ne_bytes())
}

fn find<'a>(asked: &ReceivedNews<'a>, kind: u16) -> Option<&'a [u8]> {
    attributes(asked.body, 0).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

fn number(asked: &ReceivedNews<'_>, kind: u16) -> Option<u32> {
    u32_at(find(asked, kind)?, 0)
}

/// The number in a device's name.
fn index(name: &str) -> Option<u32> {
    let number = name.strip_prefix("balboa")?.parse().ok()?;
    (*name == format!("balboa{number}")).then_some(number)
}

/// Names in a directory, of those that are text.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(MOST_NAMES);
    entries.filter_map(|it| it.file_name().into_string().ok()).collect()
}

/// The line in a file, without its end.
fn line(directory: &Path, name: &str) -> Option<String> {
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened =
        OpenOptions::new().read(true).custom_flags(flags.bits()).open(directory.join(name));
    let mut text = String::new();
    opened.ok()?.take(MOST_TEXT_BYTES).read_to_string(&mut text).ok()?;
    Some(text.trim_end().to_owned())
}

/// The number in "4: ACTIVE".
fn leading_number(text: &str) -> Option<u8> {
    text.split(':').next()?.trim().parse().ok()
}

/// The number that "0250:c2ff:fe00:0001" stands for.
fn guid(text: &str) -> Option<u64> {
    u64::from_str_radix(&text.replace(':', ""), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::u16_at;

    /// A class directory with so many cards.
    fn class(cards: u32) -> tempfile::TempDir {
        let class = tempfile::tempdir().unwrap();
        let file = |path: String, value: &str| {
            let path = class.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        };
        for n in 0..cards {
            let card = format!("infiniband/balboa{n}");
            file(format!("{card}/node_type"), "1: CA");
            file(format!("{card}/node_guid"), &format!("0250:c2ff:fe00:{:04x}", n + 1));
            file(format!("{card}/sys_image_guid"), "0250:c2ff:fe00:0001");
            file(format!("{card}/fw_ver"), "1.0");
            file(format!("{card}/ports/1/state"), "4: ACTIVE");
            file(format!("{card}/ports/1/phys_state"), "5: LinkUp");
            file(format!("{card}/ports/1/gid_attrs/ndevs/0"), "");
            file(format!("{card}/ports/1/hw_counters/sent_pkts"), &format!("{}", u64::MAX));
            file(format!("{card}/ports/1/hw_counters/drop_icrc"), "7");
            let node = format!("infiniband_verbs/uverbs{}", 900 + n);
            file(format!("{node}/ibdev"), &format!("balboa{n}"));
            file(format!("{node}/dev"), "1:7");
            file(format!("{node}/abi_version"), "1");
        }
        class
    }

    fn request(command: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let asker = ReceivedNews { kind: 0, flags: 0, sequence: 7, port: 9, body: &[] };
        let kind = CLIENT << COMMAND_BITS | command;
        let message = Message::answering(&asker, kind, flags | REQUEST, &[]);
        attributes.iter().fold(message, |it, (kind, value)| it.with(*kind, value)).finish()
    }

    fn ask(command: u16, flags: u16, attributes: &[(u16, &[u8])]) -> Vec<Vec<u8>> {
        let class = class(2);
        Devices::below(class.path().to_owned()).answer(&request(command, flags, attributes))
    }

    /// The value of an attribute of an answer that is alone in its datagram.
    fn value(answer: &[u8], kind: u16) -> Option<Vec<u8>> {
        let all: Vec<_> = messages(answer).collect();
        assert_eq!(all.len(), 1);
        find(&all[0], kind).map(<[u8]>::to_vec)
    }

    fn code(answer: &[u8]) -> i32 {
        assert_eq!(u16_at(answer, 4), Some(ERROR));
        i32::from_ne_bytes(*answer[16..].first_chunk().unwrap())
    }

    const FIRST_CARD: (u16, &[u8]) = (DEV_INDEX, &[0; 4]);
    const ITS_PORT: (u16, &[u8]) = (PORT_INDEX, &1u32.to_ne_bytes());

    #[test]
    fn a_devices_index_stays_while_others_come_and_go() {
        let class = class(2);
        let devices = Devices::below(class.path().to_owned());
        let of_second = (DEV_INDEX, &1u32.to_ne_bytes()[..]);
        for _ in 0..2 {
            let answers = devices.answer(&request(GET, 0, &[of_second]));
            assert_eq!(value(&answers[0], DEV_NAME), Some(b"balboa1\0".to_vec()));
            let _ = fs::remove_dir_all(class.path().join("infiniband/balboa0"));
        }
        assert_eq!(
            code(&devices.answer(&request(GET, 0, &[FIRST_CARD]))[0]),
            -(Errno::EINVAL as i32)
        );
        for none in ["balboa", "balboa01", "balboa+1", "mlx5_0", "balboa4294967296"] {
            assert_eq!(index(none), None);
        }
    }

    #[test]
    fn all_devices_are_told_in_order_and_then_the_end() {
        let answers = ask(GET, DUMP | ACKNOWLEDGED, &[]);
        let all: Vec<_> = answers.iter().flat_map(|it| messages(it)).collect();
        assert_eq!(all.len(), 3);
        for (n, told) in (0u32..2).zip(&all) {
            assert_eq!(number(told, DEV_INDEX), Some(n));
            assert_eq!(find(told, DEV_NAME), Some(format!("balboa{n}\0").as_bytes()));
            let guid = 0x0250_c2ff_fe00_0001u64 + u64::from(n);
            assert_eq!(find(told, NODE_GUID), Some(&guid.to_ne_bytes()[..]));
            assert_eq!((told.flags, told.sequence, told.port), (MULTIPLE, 7, 9));
        }
        assert_eq!((all[2].kind, all[2].body), (DONE, &[0; 4][..]));
    }

    #[test]
    fn many_devices_come_in_datagrams_of_a_page() {
        let class = class(60);
        let answers = Devices::below(class.path().to_owned()).answer(&request(GET, DUMP, &[]));
        assert!(answers.len() > 1 && answers.iter().all(|it| it.len() <= DATAGRAM_BYTES));
        let all: Vec<_> = answers.iter().flat_map(|it| messages(it)).collect();
        let indexes: Vec<_> = all.iter().filter_map(|it| number(it, DEV_INDEX)).collect();
        assert_eq!(indexes, (0..60).collect::<Vec<_>>());
        assert_eq!(all.last().map(|it| it.kind), Some(DONE));
    }

    #[test]
    fn nodes_ports_counters_and_the_system_are_told() {
        let node = ask(GET_CHARDEV, 0, &[FIRST_CARD, (CHARDEV_TYPE, b"uverbs\0")]);
        assert_eq!(value(&node[0], CHARDEV_NAME), Some(b"uverbs900\0".to_vec()));
        assert_eq!(value(&node[0], CHARDEV), Some(0x107u64.to_ne_bytes().to_vec()));
        let port = ask(PORT_GET, ACKNOWLEDGED, &[FIRST_CARD, ITS_PORT]);
        assert_eq!(value(&port[0], PORT_STATE), Some(vec![4]));
        assert_eq!(value(&port[0], NDEV_NAME), None);
        assert_eq!(code(&port[1]), 0);
        let counters = ask(STAT_GET, 0, &[FIRST_CARD, ITS_PORT]);
        let table = value(&counters[0], STAT_HWCOUNTERS).unwrap();
        let entries: Vec<Vec<_>> =
            attributes(&table, 0).map(|(_, entry)| attributes(entry, 0).collect()).collect();
        assert_eq!(entries[0][0].1, b"drop_icrc\0");
        assert_eq!(entries[1][1].1, [0xff; 8]);
        let system = ask(SYS_GET, 0, &[]);
        assert_eq!(value(&system[0], SYS_COPY_ON_FORK), Some(vec![1]));
        assert_eq!(value(&system[0], SYS_NETNS_MODE), Some(vec![1]));
    }

    #[test]
    fn a_port_has_the_one_network_device_that_its_addresses_have() {
        let class = class(1);
        let put = |path: &str, text: &str| {
            let path = class.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let devices = Devices::below(class.path().to_owned());
        let told = || {
            let answers = devices.answer(&request(PORT_GET, 0, &[FIRST_CARD, ITS_PORT]));
            (value(&answers[0], NDEV_INDEX), value(&answers[0], NDEV_NAME))
        };
        put("infiniband/balboa0/ports/1/gid_attrs/ndevs/1", "eth0\n");
        assert_eq!(told(), (None, None), "it is not here");
        put("net/eth0/ifindex", "3\n");
        assert_eq!(told(), (Some(vec![3, 0, 0, 0]), Some(b"eth0\0".to_vec())));
        put("infiniband/balboa0/ports/1/gid_attrs/ndevs/2", "eth1\n");
        assert_eq!(told(), (None, None), "which of the two?");
    }

    #[test]
    fn what_changes_something_is_not_permitted_and_what_is_not_known_is_refused() {
        let class = class(2);
        let devices = Devices::below(class.path().to_owned());
        let ask = |command, flags, attributes: &[(u16, &[u8])]| {
            devices.answer(&request(command, flags, attributes))
        };
        for command in PRIVILEGED {
            for flags in [0, ACKNOWLEDGED, DUMP] {
                assert_eq!(code(&ask(command, flags, &[FIRST_CARD])[0]), -libc_errno(Errno::EPERM));
            }
        }
        for command in UNTOLD {
            let said = ask(command, DUMP, &[FIRST_CARD]);
            assert_eq!(code(&said[0]), -libc_errno(Errno::EOPNOTSUPP));
        }
        let cm: (u16, &[u8]) = (CHARDEV_TYPE, b"rdma_cm\0");
        assert_eq!(code(&ask(GET_CHARDEV, 0, &[cm])[0]), -libc_errno(Errno::EOPNOTSUPP));
        let third: (u16, &[u8]) = (DEV_INDEX, &2u32.to_ne_bytes());
        for said in [
            ask(GET, 0, &[third]),
            ask(GET, 0, &[]),
            ask(PORT_GET, 0, &[FIRST_CARD]),
            ask(PORT_GET, DUMP, &[third]),
            ask(SYS_GET, DUMP, &[]),
            ask(0, 0, &[]),
            ask(8, 0, &[]),
            ask(1023, 0, &[]),
        ] {
            assert_eq!(code(&said[0]), -libc_errno(Errno::EINVAL));
        }
    }

    fn libc_errno(errno: Errno) -> i32 {
        errno as i32
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_survived() {
        let class = class(1);
        let devices = Devices::below(class.path().to_owned());
        let whole = request(PORT_GET, ACKNOWLEDGED, &[FIRST_CARD, ITS_PORT]);
        for bytes in 0..whole.len() {
            assert!(devices.answer(&whole[..bytes]).is_empty());
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 4, 0x7f, 0xff] {
                let mut changed = whole.clone();
                changed[at] = value;
                for answer in devices.answer(&changed) {
                    assert!(messages(&answer).count() > 0, "byte {at} is {value}");
                }
            }
        }
        assert!(devices.answer(&whole.repeat(100)).len() <= 2 * MOST_REQUESTS);
    }
}
