//! The process that answers the RDMA netlink sockets of one `balboa run`: the filter's listener tells of calls.
//!
//! `socket` gets a netlink socket of a protocol without traffic, which can be bound, named and set up as the
//! program likes. At the first `sendmsg` or `sendto` on it, its number is made one end of a pair of Unix sockets, and the
//! kernel executes the call on that. It neither reads nor writes the program's memory; the data of the program's
//! descriptors decides on its own calls alone.

use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use host_view::rdma_netlink::Devices;
use hostmem::fdpass;
use hostmem::seccomp::{Answer, Call, Listener, OnExec, deafen};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockProtocol, SockType, UnixAddr, bind, recv,
    send, shutdown, socket,
};
use nix::sys::stat::fstat;

/// Sockets that are known before they send; of more, the oldest are forgotten.
const KNOWN: usize = 256;
/// Most conversations at once; a further one is refused.
const CONVERSATIONS: usize = 256;
/// Bytes of a request that are read: programs' have fewer than 100.
const REQUEST_BYTES: usize = 8192;
/// How often a name is chosen for our end before it is given up.
const NAMES: usize = 16;

/// The supervisor.
#[derive(Debug)]
pub struct Supervisor {
    listener: Listener,
    /// Numbers that are watched, and at which sockets are placed.
    numbers: Range<u32>,
    devices: Devices,
    /// The targets of descriptors of sockets that have sent nothing yet, or in one process of several alone.
    quiet: VecDeque<String>,
    conversations: Vec<OwnedFd>,
}

impl Supervisor {
    /// A supervisor for the filter of this listener.
    pub fn new(listener: Listener, numbers: Range<u32>, devices: Devices) -> Self {
        Self { listener, numbers, devices, quiet: VecDeque::new(), conversations: Vec::new() }
    }

    /// Answers until the last process behind the filter has ended.
    ///
    /// # Errors
    /// The errno of poll(2), and that of a listener that is none.
    pub fn serve(mut self) -> Result<(), Errno> {
        loop {
            let mut fds = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            let each = self.conversations.iter();
            fds.extend(each.map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN)));
            match poll(&mut fds, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                said => said?,
            };
            let said: Vec<_> =
                fds.iter().map(|it| it.revents().unwrap_or(PollFlags::empty())).collect();
            let Some((listener, conversations)) = said.split_first() else { return Ok(()) };
            let mut ready = conversations.iter().map(|flags| !flags.is_empty());
            let devices = &self.devices;
            self.conversations.retain(|it| !ready.next().unwrap_or(false) || converse(it, devices));
            if listener.contains(PollFlags::POLLIN) {
                self.take_call()?;
            } else if !listener.is_empty() {
                return Ok(());
            }
        }
    }

    fn take_call(&mut self) -> Result<(), Errno> {
        let call = match self.listener.receive().map_err(|error| error.errno()) {
            Ok(call) => call,
            // The thread was killed or interrupted.
            Err(Some(Errno::ENOENT | Errno::EINTR)) => return Ok(()),
            Err(errno) => return Err(errno.unwrap_or(Errno::EINVAL)),
        };
        let answer = if i64::from(call.number) == libc::SYS_socket {
            match self.open(&call) {
                Ok(()) => return Ok(()),
                Err(errno) => Answer::Error(errno),
            }
        } else {
            self.swap(&call).map_or_else(Answer::Error, |()| Answer::Continue)
        };
        // A call that no longer waits is made again.
        let _ = self.listener.answer(&call, answer);
        Ok(())
    }

    /// Gives a call a netlink socket without a partner, at a number that is watched.
    fn open(&mut self, call: &Call) -> Result<(), Errno> {
        // An int: the kernel, too, ignores the upper half.
        let kind = call.arguments[1] as u32 as i32;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        if kind & !(0xf | flags.bits()) != 0 {
            return Err(Errno::EINVAL);
        }
        let on_exec = if kind & libc::SOCK_CLOEXEC == 0 { OnExec::Keep } else { OnExec::Close };
        let flags = SockFlag::from_bits_truncate(kind & libc::SOCK_NONBLOCK);
        let kind = match kind & 0xf {
            libc::SOCK_RAW => SockType::Raw,
            libc::SOCK_DGRAM => SockType::Datagram,
            _ => return Err(Errno::ESOCKTNOSUPPORT),
        };
        // Failures are hidden from the program, which sees a kernel without RDMA.
        const WITHOUT: Errno = Errno::EPROTONOSUPPORT;
        let flags = flags | SockFlag::SOCK_CLOEXEC;
        let quiet = socket(AddressFamily::Netlink, kind, flags, SockProtocol::NetlinkUserSock)
            .map_err(|_| WITHOUT)?;
        deafen(quiet.as_fd()).map_err(|_| WITHOUT)?;
        let number = self.free_number(call)?;
        let name = format!("socket:[{}]", fstat(&quiet).map_err(|_| WITHOUT)?.st_ino);
        let placed = self.listener.place_and_answer(call, quiet.as_fd(), number, on_exec);
        placed.map_err(|_| WITHOUT)?;
        if self.quiet.len() >= KNOWN {
            self.quiet.pop_front();
        }
        self.quiet.push_back(name);
        Ok(())
    }

    /// A number that the program that calls does not use: the highest, for the kernel gives another of its threads the
    /// lowest.
    fn free_number(&self, call: &Call) -> Result<u32, Errno> {
        let thread = format!("/proc/{}", call.thread);
        // Its descriptors must be seen, or else each number would look free.
        fs::read_link(format!("{thread}/exe")).map_err(|_| Errno::EPROTONOSUPPORT)?;
        let is_free = |it: &u32| fs::symlink_metadata(format!("{thread}/fd/{it}")).is_err();
        let number = self.numbers.clone().rev().find(is_free).ok_or(Errno::EMFILE)?;
        // If it waits still, that was its directory.
        self.listener.waits(call).then_some(number).ok_or(Errno::EPROTONOSUPPORT)
    }

    /// Makes a socket that is about to send for the first time one end of a conversation.
    fn swap(&mut self, call: &Call) -> Result<(), Errno> {
        let number = call.arguments[0] as u32;
        let thread = format!("/proc/{}", call.thread);
        // Where it leads is the kernel's word; the file itself is not asked.
        let Ok(name) = fs::read_link(format!("{thread}/fd/{number}")) else { return Ok(()) };
        if !self.quiet.iter().any(|it| name.as_os_str() == it.as_str()) {
            return Ok(());
        }
        const REFUSED: Errno = Errno::ECONNREFUSED;
        let info = fs::read_to_string(format!("{thread}/fdinfo/{number}")).map_err(|_| REFUSED)?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).ok_or(REFUSED)?;
        let flags = i32::from_str_radix(flags.trim(), 8).map_err(|_| REFUSED)?;
        if self.conversations.len() >= CONVERSATIONS || !self.listener.waits(call) {
            return Err(REFUSED);
        }
        let (ours, theirs) = fdpass::pair().map_err(|_| REFUSED)?;
        name_as_the_kernel(&ours).map_err(|_| REFUSED)?;
        // Where the kernel cannot refuse them, descriptors that are sent here are closed unseen.
        fdpass::refuse_descriptors(ours.as_fd()).map_err(|_| REFUSED)?;
        fcntl(&theirs, FcntlArg::F_SETFL(OFlag::from_bits_truncate(flags) & OFlag::O_NONBLOCK))?;
        let on_exec = if flags & libc::O_CLOEXEC == 0 { OnExec::Keep } else { OnExec::Close };
        self.listener.place(call, theirs.as_fd(), number, on_exec).map_err(|_| REFUSED)?;
        self.conversations.push(ours);
        Ok(())
    }
}

/// Gives our end a name that reads as the address of the kernel: as long as a `sockaddr_nl`, whose bytes 4 to 7, the port,
/// are 0. libnl and libmnl look at nothing else.
fn name_as_the_kernel(ours: &OwnedFd) -> anyhow::Result<()> {
    let mut chosen = Err(Errno::EADDRINUSE);
    // Names are the network namespace's. An attacker cannot take them all: there are 2^40.
    for _ in 0..NAMES {
        let mut random = [0; 5];
        getrandom::fill(&mut random)?;
        let [a, b, c, d, e] = random;
        chosen = bind(ours.as_raw_fd(), &UnixAddr::new_abstract(&[a, 0, 0, 0, 0, b, c, d, e])?);
        if chosen != Err(Errno::EADDRINUSE) {
            break;
        }
    }
    Ok(chosen?)
}

/// Answers the questions that have come; whether the conversation goes on.
fn converse(ours: &OwnedFd, devices: &Devices) -> bool {
    let mut request = [0; REQUEST_BYTES];
    let bytes = match recv(ours.as_raw_fd(), &mut request, MsgFlags::MSG_DONTWAIT) {
        Ok(0) => return false,
        Ok(bytes) => bytes,
        Err(errno) => return matches!(errno, Errno::EAGAIN | Errno::EINTR),
    };
    let answers = devices.answer(request.get(..bytes).unwrap_or_default());
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    if !answers.iter().all(|answer| send(ours.as_raw_fd(), answer, flags).is_ok()) {
        // Nobody waits for a program that does not read: it finds the end behind the messages that had room. Its own
        // messages are still taken, for the kernel would end it by SIGPIPE.
        let _ = shutdown(ours.as_raw_fd(), Shutdown::Write);
    }
    true
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError, mpsc};
    use std::thread;

    use hostmem::seccomp::install_with_listener;
    use nix::sys::prctl::set_no_new_privs;
    use nix::sys::resource::{Resource, getrlimit};
    use nix::sys::socket::{NetlinkAddr, getsockname, recvfrom, sendto};
    use nix::unistd::dup;

    use super::*;
    use crate::run::filter;

    /// `RDMA_NLDEV_CMD_SYS_GET`, acknowledged, number 7.
    const ASK: [u8; 16] = [16, 0, 0, 0, 6, 20, 5, 0, 7, 0, 0, 0, 0, 0, 0, 0];
    const EACH: u32 = 8;

    fn rdma(flags: SockFlag) -> Result<OwnedFd, Errno> {
        socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRDMA)
    }

    fn ask(socket: &OwnedFd) -> Result<usize, Errno> {
        let kernel = NetlinkAddr::new(0, 0);
        sendto(socket.as_raw_fd(), &ASK, &kernel, MsgFlags::empty())
    }

    /// Runs a function behind a filter whose listener this process has; not where a filter around it has one.
    fn behind(serve: fn(Listener, Range<u32>), act: impl FnOnce() + Send + 'static) {
        // The numbers are the process's, which may run several tests at a time.
        static NUMBERS: Mutex<()> = Mutex::new(());
        let _numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        let end = u32::try_from(getrlimit(Resource::RLIMIT_NOFILE).unwrap().0).unwrap_or(4096);
        let numbers = end.min(4096) - EACH..end.min(4096);
        let (sender, listeners) = mpsc::channel();
        let watched = numbers.clone();
        // Before the filter, which threads inherit.
        let server = thread::spawn(move || {
            if let Ok(listener) = listeners.recv() {
                serve(listener, watched);
            }
        });
        let program = thread::spawn(move || {
            set_no_new_privs().unwrap();
            match install_with_listener(&filter::answering(&numbers)) {
                Ok(listener) => sender.send(listener).unwrap(),
                Err(error) => return eprintln!("not tried: {error}"),
            }
            act();
        });
        program.join().unwrap();
        server.join().unwrap();
    }

    fn supervise(listener: Listener, numbers: Range<u32>) {
        let class = tempfile::tempdir().unwrap();
        let devices = Devices::below(class.path().to_owned());
        Supervisor::new(listener, numbers, devices).serve().unwrap();
    }

    #[test]
    fn a_socket_is_a_netlink_socket_that_is_answered_by_what_looks_like_the_kernel() {
        behind(supervise, || {
            let rdma = rdma(SockFlag::SOCK_NONBLOCK).unwrap();
            bind(rdma.as_raw_fd(), &NetlinkAddr::new(0, 0)).unwrap();
            let own: NetlinkAddr = getsockname(rdma.as_raw_fd()).unwrap();
            assert_ne!(own.pid(), 0);
            // By a number that is not watched it stays a plain socket.
            let other = dup(&rdma).unwrap();
            for _ in 0..3 {
                assert_eq!(ask(&rdma), Ok(ASK.len()));
                let mut room = [0; 256];
                let mut seen = Vec::new();
                while seen.len() < 2 {
                    match recvfrom::<UnixAddr>(rdma.as_raw_fd(), &mut room) {
                        Ok((bytes, from)) => seen.push((room[..bytes].to_vec(), from.unwrap())),
                        Err(errno) => assert_eq!(errno, Errno::EAGAIN),
                    }
                }
                // SYS_GET with two attributes, and that there was no error.
                assert_eq!((seen[0].0.len(), seen[0].0[4..6].to_vec()), (32, vec![6, 20]));
                assert_eq!(seen[1].0[16..20], [0; 4]);
                let name = seen[0].1.as_abstract().unwrap();
                // The family and a zero are before it: as long as a `sockaddr_nl`, and port 0.
                assert_eq!((name.len(), &name[1..5]), (9, &[0; 4][..]));
            }
            assert_eq!(ask(&other), Err(Errno::ECONNREFUSED));
            assert_eq!(fcntl(&rdma, FcntlArg::F_GETFD), Ok(0));
        });
    }

    #[test]
    fn there_are_so_many_sockets_and_closed_ones_are_free_again() {
        behind(supervise, || {
            for _ in 0..3 {
                let all: Vec<_> =
                    (0..EACH).map(|_| rdma(SockFlag::SOCK_CLOEXEC).unwrap()).collect();
                assert_eq!(rdma(SockFlag::empty()).unwrap_err(), Errno::EMFILE);
                // The kernel gives the lowest number that is free.
                assert!(all.iter().rev().is_sorted_by_key(|it| it.as_raw_fd()));
                for socket in &all {
                    assert_eq!(ask(socket), Ok(ASK.len()));
                    assert_eq!(fcntl(socket, FcntlArg::F_GETFD), Ok(libc::FD_CLOEXEC));
                }
            }
            let of_type = |kind| {
                socket(AddressFamily::Netlink, kind, SockFlag::empty(), SockProtocol::NetlinkRDMA)
            };
            assert_eq!(of_type(SockType::Stream).unwrap_err(), Errno::ESOCKTNOSUPPORT);
            assert!(of_type(SockType::Datagram).is_ok());
        });
    }

    #[test]
    fn what_is_not_read_is_lost_and_what_is_read_has_an_end() {
        behind(supervise, || {
            let rdma = rdma(SockFlag::empty()).unwrap();
            // More than there is room for: neither end waits, and no signal ends this.
            for _ in 0..2000 {
                match sendto(
                    rdma.as_raw_fd(),
                    &ASK,
                    &NetlinkAddr::new(0, 0),
                    MsgFlags::MSG_DONTWAIT,
                ) {
                    Ok(_) => {}
                    Err(errno) => assert_eq!(errno, Errno::EAGAIN),
                }
            }
            let mut room = [0; 256];
            while recv(rdma.as_raw_fd(), &mut room, MsgFlags::empty()).unwrap() > 0 {}
            assert_eq!(ask(&rdma), Ok(ASK.len()));
        });
    }

    #[test]
    fn without_a_supervisor_sockets_fail() {
        let vanish = |listener: Listener, _| {
            // One call waits for it meanwhile.
            let _ = listener.receive();
        };
        behind(vanish, || {
            for _ in 0..2 {
                assert_eq!(rdma(SockFlag::empty()).unwrap_err(), Errno::ENOSYS);
            }
        });
    }
}
