//! The connection manager: what librdmacm writes to the kernel's device, carried to balboad.
//!
//! A program's event channel is a socket whose other end balboad has. All it carries is that there are
//! events, one byte each time that there begin to be some, so that a program may poll it, make it
//! non-blocking, duplicate it and pass it on in a fork as it would the kernel's file. Commands go along the
//! process's own connection and name the channel by its token.
//!
//! When balboad has gone, each of a program's identifiers is told that its device is (DEVICE_REMOVAL), and may be
//! destroyed; everything else fails with EIO.
//!
//! With some events balboad says what librdmacm asks next about the identifier ([`shim_abi::CmAhead`]). It is told so
//! without a question, as long as that holds.
//!
//! A channel is known by its socket, not by the number of its descriptor: so it is also what `dup` made of
//! it, and a number that is used anew is not taken for it. It is forgotten when librdmacm closes it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{MsgFlags, recv};
use shim_abi::{CmAhead, CmQuestion, CmToken, Request, Response};

use crate::control::{Connection, unexpected};
use crate::error::{Error, Result, invalid};
use crate::ffi::cancel::peek;
use crate::ffi::descriptor::{File, file};
use crate::process::ProcessLock;

/// Numbers of commands in the kernel's `rdma_user_cm.h`, those that are not all alike here.
mod number {
    pub const CREATE_ID: u32 = 0;
    pub const DESTROY_ID: u32 = 1;
    pub const BIND_IP: u32 = 2;
    pub const RESOLVE_IP: u32 = 3;
    pub const RESOLVE_ROUTE: u32 = 4;
    pub const QUERY_ROUTE: u32 = 5;
    pub const CONNECT: u32 = 6;
    pub const LISTEN: u32 = 7;
    pub const ACCEPT: u32 = 8;
    pub const REJECT: u32 = 9;
    pub const DISCONNECT: u32 = 10;
    pub const INIT_QP_ATTR: u32 = 11;
    pub const GET_EVENT: u32 = 12;
    pub const SET_OPTION: u32 = 14;
    pub const NOTIFY: u32 = 15;
    pub const JOIN_IP_MCAST: u32 = 16;
    pub const LEAVE_MCAST: u32 = 17;
    pub const MIGRATE_ID: u32 = 18;
    pub const QUERY: u32 = 19;
    pub const BIND: u32 = 20;
    pub const RESOLVE_ADDR: u32 = 21;
    pub const JOIN_MCAST: u32 = 22;
}

/// `rdma_ucm_cmd_hdr`: the number (u32), bytes behind it (u16), room for the answer (u16).
const HEADER: usize = 8;
/// In SET_OPTION: where its value's address (u64) and length (u32) are.
const OPTION_ADDRESS: usize = 0;
const OPTION_LENGTH: usize = 20;
/// In CREATE_ID and ACCEPT: what the program calls its identifier (u64) in events.
const UID: usize = 0;
/// In ACCEPT: where the identifier (u32) is.
const ACCEPTED: usize = 280;
/// In CONNECT: where it is.
const CONNECTED: usize = 272;
/// In BIND_IP and RESOLVE_IP: where it is.
const BOUND_IP: usize = 36;
const RESOLVED_IP: usize = 56;
/// In DESTROY_ID, MIGRATE_ID, SET_OPTION, QUERY_ROUTE and INIT_QP_ATTR: where it is.
const ID: usize = 8;
/// In INIT_QP_ATTR: where the state (u32) is that is asked for.
const STATE: usize = 12;
/// In MIGRATE_ID: where the descriptor (u32) of the channel is that the id leaves.
const MIGRATE_FROM: usize = 12;
/// The longest value of an option. The longest that means something is of 6 path records.
const LONGEST_OPTION: u32 = 4096;
/// `rdma_ucm_destroy_id_resp`: events that were reported (u32).
const DESTROYED: [u8; 4] = [0; 4];

/// How long it takes to be told that there will be no more events: rsockets' threads ask again at once, for ever.
const NO_MORE: Duration = Duration::from_millis(10);
/// How long who ends an identifier leaves its unread events to those who wait for them, at most.
const A_MOMENT: Duration = Duration::from_millis(10);
/// How often it is looked whether they were taken.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// `RDMA_CM_EVENT_DEVICE_REMOVAL`.
const DEVICE_REMOVAL: u32 = 11;

/// The event channels that this process knows.
pub(crate) static CHANNELS: ProcessLock<BTreeMap<File, Channel>> =
    ProcessLock::new(BTreeMap::new());

/// What is known of an event channel.
#[derive(Debug)]
pub(crate) struct Channel {
    known: Known,
    /// Its identifiers, and what the program calls each of them.
    ids: BTreeMap<u32, u64>,
    /// What balboad said ahead, by identifier.
    ahead: BTreeMap<u32, CmAhead>,
}

/// What a command may change of what is known ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outdates {
    Nothing,
    Identifier(u32),
    Everything,
}

/// The way to an event channel.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// The socket.
    file: File,
    token: CmToken,
    /// Kept as long as the channel, which balboad ends with it. That of the parent in a forked child.
    connection: Arc<Connection>,
}

/// A command that librdmacm writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Command<'a> {
    number: u32,
    /// As it was written, with its header.
    bytes: &'a [u8],
    /// Room at the place for the answer.
    room: usize,
}

/// What a command has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// The program is told nothing.
    Nothing,
    /// The program is told this at an address.
    Answered { address: u64, output: Vec<u8> },
    /// There is no event.
    NoEvent,
}

/// The channel that a descriptor is.
pub(crate) fn known(fd: RawFd) -> Option<Known> {
    if CHANNELS.with(|all| all.is_empty()) {
        return None;
    }
    let file = file(fd)?;
    CHANNELS.with(|all| all.get(&file).map(|channel| channel.known.clone()))
}

/// Forgets the channel that a descriptor is.
pub(crate) fn forget(fd: RawFd) {
    let channel = file(fd).and_then(|file| CHANNELS.with(|all| all.remove(&file)));
    // The connection may end with it, for which nobody else must wait.
    drop(channel);
}

/// Opens an event channel, as the kernel opens its device with these flags.
pub(crate) fn open(connection: Arc<Connection>, flags: OFlag) -> Result<OwnedFd> {
    let request = Request::OpenCmChannel;
    let (response, fds) = connection.call(&request)?;
    let Response::CmChannel { channel: token } = response else {
        return Err(unexpected(&request, "it answers another request"));
    };
    let socket = fds.into_iter().next();
    let socket = socket.ok_or_else(|| unexpected(&request, "the channel is missing"))?;
    let closes =
        if flags.contains(OFlag::O_CLOEXEC) { FdFlag::FD_CLOEXEC } else { FdFlag::empty() };
    let mode = flags & OFlag::O_NONBLOCK;
    for set in [FcntlArg::F_SETFD(closes), FcntlArg::F_SETFL(mode)] {
        let failed = |_| unexpected(&request, "the channel cannot be set up");
        fcntl(&socket, set).map_err(failed)?;
    }
    let file = file(socket.as_raw_fd());
    let file = file.ok_or_else(|| unexpected(&request, "the channel is no file"))?;
    let (ids, ahead) = Default::default();
    let channel = Channel { known: Known { file, token, connection }, ids, ahead };
    let replaced = CHANNELS.with(|all| all.insert(file, channel));
    drop(replaced);
    Ok(socket)
}

/// The number at a place of a command, or of an answer.
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*bytes))
}

impl<'a> Command<'a> {
    /// Looks at what was written, as far as the kernel does before it knows the command.
    pub(crate) fn parse(written: &'a [u8]) -> Result<Self> {
        let short = || invalid!("{} bytes are no command of rdma_cm", written.len());
        let &[n0, n1, n2, n3, i0, i1, o0, o1] = written.first_chunk().ok_or_else(short)?;
        let body = usize::from(u16::from_ne_bytes([i0, i1]));
        let bytes = written.get(..HEADER.saturating_add(body)).ok_or_else(short)?;
        let number = u32::from_ne_bytes([n0, n1, n2, n3]);
        Ok(Self { number, bytes, room: usize::from(u16::from_ne_bytes([o0, o1])) })
    }

    fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }

    /// Where the program wants the answer; `None` where the command has none.
    fn place(&self) -> Option<u64> {
        let offset = match self.number {
            number::CREATE_ID => 8,
            number::DESTROY_ID
            | number::QUERY_ROUTE
            | number::INIT_QP_ATTR
            | number::GET_EVENT
            | number::JOIN_IP_MCAST
            | number::LEAVE_MCAST
            | number::MIGRATE_ID
            | number::QUERY
            | number::JOIN_MCAST => 0,
            _ => return None,
        };
        u64_at(self.body(), offset)
    }

    /// Address and length of what the program has to be asked for besides.
    pub(crate) fn value(&self) -> Result<Option<(u64, usize)>> {
        if self.number != number::SET_OPTION {
            return Ok(None);
        }
        let address = u64_at(self.body(), OPTION_ADDRESS);
        let (Some(address), Some(length)) = (address, u32_at(self.body(), OPTION_LENGTH)) else {
            return Ok(None);
        };
        if length > LONGEST_OPTION {
            return Err(invalid!("an option of {length} bytes; it has at most {LONGEST_OPTION}"));
        }
        Ok((length > 0).then_some((address, length as usize)))
    }

    /// Whether it waits where there is nothing to tell.
    pub(crate) fn waits(&self) -> bool {
        self.number == number::GET_EVENT
    }

    /// The descriptor of another channel that it names.
    fn from(&self) -> Option<RawFd> {
        let fd = u32_at(self.body(), MIGRATE_FROM).filter(|_| self.number == number::MIGRATE_ID)?;
        // A number that is none stands for no descriptor.
        Some(RawFd::try_from(fd).unwrap_or(-1))
    }

    /// Has balboad do it on the channel that `fd` is; `value` is what [`Self::value`] names.
    ///
    /// It does not wait for events.
    pub(crate) fn perform(&self, fd: RawFd, channel: &Known, value: &[u8]) -> Result<Done> {
        if self.waits() && peek(fd, libc::MSG_DONTWAIT) == Err(Errno::EAGAIN) {
            return Ok(Done::NoEvent);
        }
        if let Some(told) = self.told_ahead(channel) {
            return Ok(told);
        }
        let from = self.from();
        let left = from.map(|from| {
            let reason = || format!("descriptor {from} is no channel of the connection manager");
            known(from).ok_or_else(|| Error::Refused { errno: libc::EINVAL, reason: reason() })
        });
        let left = left.transpose()?;
        let command = [self.bytes, value].concat();
        let token = left.as_ref().map(|left| left.token);
        let request = Request::CmCommand { channel: channel.token, command, from: token };
        let left = left.map(|left| left.file);
        let connection = channel.connection()?;
        // Before another thread asks, which would find the byte of an event that is gone.
        let emptied = |response: Option<&Response>| {
            self.outdate(channel.file, left);
            let Some(Response::CmAnswer { drained, ahead, .. }) = response else { return };
            if *drained {
                take(from.unwrap_or(fd));
            }
            if let Some(ahead) = ahead {
                with_channel(channel.file, |channel| channel.ahead.insert(ahead.id, ahead.clone()));
            }
        };
        let mut answer = connection.call_then(&request, emptied);
        if self.number == number::DESTROY_ID && is_again(&answer) {
            leave_to_readers(fd);
            answer = connection.call_then(&request, emptied);
        }
        match answer {
            Ok((Response::CmAnswer { output, .. }, _)) => {
                self.note(channel.file, left, &output);
                self.answered(&request, output)
            }
            Ok(_) => Err(unexpected(&request, "it answers another request")),
            // Another process, which has the channel too, has got the event, and takes the byte any moment.
            Err(error) if self.waits() && error.errno() == libc::EAGAIN => {
                std::thread::yield_now();
                Ok(Done::NoEvent)
            }
            Err(error @ Error::Gone) => match self.farewell(channel.file) {
                Some(output) => self.answered(&request, output),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// The identifier that it asks about, and what, where it changes nothing.
    fn question(&self) -> Option<(u32, CmQuestion)> {
        let question = match self.number {
            number::QUERY_ROUTE => CmQuestion::Route,
            number::INIT_QP_ATTR => CmQuestion::QpAttributes(u32_at(self.body(), STATE)?),
            _ => return None,
        };
        Some((u32_at(self.body(), ID)?, question))
    }

    /// The answer that balboad has given ahead, if it still holds. One for which there is no room, or no place, is asked
    /// for, and refused as ever.
    fn told_ahead(&self, channel: &Known) -> Option<Done> {
        let (id, asked) = self.question()?;
        let address = self.place().filter(|address| *address != 0)?;
        let (told, output) = with_channel(channel.file, |channel| {
            let ahead = channel.ahead.get(&id)?;
            let (_, output) = ahead.answers.iter().find(|(question, _)| *question == asked)?;
            Some((ahead.era, output.clone()))
        })?;
        let holds = channel.connection.cm_era() == Some(told) && output.len() <= self.room;
        holds.then_some(Done::Answered { address, output })
    }

    /// What it may change of what is known ahead.
    fn outdates(&self) -> Outdates {
        let at = match self.number {
            number::CREATE_ID
            | number::QUERY_ROUTE
            | number::INIT_QP_ATTR
            | number::GET_EVENT
            | number::QUERY
            | number::LEAVE_MCAST => return Outdates::Nothing,
            number::RESOLVE_ROUTE
            | number::LISTEN
            | number::REJECT
            | number::DISCONNECT
            | number::NOTIFY
            | number::BIND
            | number::RESOLVE_ADDR => 0,
            number::DESTROY_ID | number::SET_OPTION => ID,
            number::BIND_IP => BOUND_IP,
            number::RESOLVE_IP => RESOLVED_IP,
            number::CONNECT => CONNECTED,
            number::ACCEPT => ACCEPTED,
            _ => return Outdates::Everything,
        };
        u32_at(self.body(), at).map_or(Outdates::Everything, Outdates::Identifier)
    }

    /// Forgets what it may have changed, whatever came of it.
    fn outdate(&self, channel: File, left: Option<File>) {
        let outdates = self.outdates();
        if outdates == Outdates::Nothing {
            return;
        }
        for file in [Some(channel), left].into_iter().flatten() {
            with_channel(file, |channel| {
                match outdates {
                    Outdates::Nothing => {}
                    Outdates::Identifier(id) => drop(channel.ahead.remove(&id)),
                    Outdates::Everything => channel.ahead.clear(),
                }
                Some(())
            });
        }
    }

    /// Takes note of what becomes of identifiers.
    fn note(&self, channel: File, left: Option<File>, output: &[u8]) {
        let (uid, id) = (u64_at(self.body(), UID), u32_at(self.body(), ID));
        match self.number {
            number::CREATE_ID => with_ids(channel, |ids| ids.insert(u32_at(output, 0)?, uid?)),
            // That of a request, of which the program has told only now what it calls it.
            number::ACCEPT => with_ids(channel, |ids| {
                ids.insert(u32_at(self.body(), ACCEPTED)?, uid.filter(|&uid| uid != 0)?)
            }),
            number::DESTROY_ID => with_ids(channel, |ids| ids.remove(&id?)),
            number::MIGRATE_ID => left.and_then(|left| {
                let uid = with_ids(left, |ids| ids.remove(&id?))?;
                with_ids(channel, |ids| ids.insert(id?, uid))
            }),
            _ => None,
        };
    }

    /// The answer where balboad has gone, and what it had with it; `None` where that is only to fail.
    fn farewell(&self, channel: File) -> Option<Vec<u8>> {
        match self.number {
            number::DESTROY_ID | number::LEAVE_MCAST => {
                self.note(channel, None, &[]);
                Some(DESTROYED.to_vec())
            }
            number::GET_EVENT => {
                let next = with_channel(channel, |channel| Some(channel.ids.pop_first()))?;
                let Some((id, uid)) = next else {
                    std::thread::sleep(NO_MORE);
                    return None;
                };
                let mut event = [&uid.to_ne_bytes()[..], &id.to_ne_bytes()].concat();
                event.extend(DEVICE_REMOVAL.to_ne_bytes());
                // The rest says nothing.
                event.resize(self.room, 0);
                Some(event)
            }
            _ => None,
        }
    }

    fn answered(&self, request: &Request, output: Vec<u8>) -> Result<Done> {
        if output.is_empty() {
            return Ok(if self.waits() { Done::NoEvent } else { Done::Nothing });
        }
        if output.len() > self.room {
            return Err(unexpected(request, "it is longer than there is room for"));
        }
        match self.place() {
            Some(address) if address != 0 => Ok(Done::Answered { address, output }),
            Some(_) => {
                let reason = "the command's answer would go to address 0".into();
                Err(Error::Refused { errno: libc::EFAULT, reason })
            }
            None => Err(unexpected(request, "the command has none")),
        }
    }
}

fn is_again<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.errno() == libc::EAGAIN)
}

/// Gives who was woken for an event a moment to take it.
///
/// An identifier's unread events end with it, as with the kernel, and who has polled and then reads waits for ever.
/// But there a thread has its event as soon as it is awake, and here it asks balboad first, which took so long that one
/// in four of rping's clients of rdma-core 65 did not end. So balboad says of an identifier with unread events, once,
/// that it has some. Who leaves them unread for good pays [`A_MOMENT`] for its end.
fn leave_to_readers(fd: RawFd) {
    let begun = Instant::now();
    while peek(fd, libc::MSG_DONTWAIT).is_ok() && begun.elapsed() < A_MOMENT {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Does something to the identifiers of the channel that a socket is.
fn with_ids(file: File, act: impl FnOnce(&mut BTreeMap<u32, u64>) -> Option<u64>) -> Option<u64> {
    with_channel(file, |channel| act(&mut channel.ids))
}

/// Does something to the channel that a socket is.
fn with_channel<T>(file: File, act: impl FnOnce(&mut Channel) -> Option<T>) -> Option<T> {
    CHANNELS.with(|all| act(all.get_mut(&file)?))
}

impl Known {
    /// The way to balboad of this process; a child that was forked has its own.
    fn connection(&self) -> Result<Arc<Connection>> {
        if !self.connection.is_forked() {
            return Ok(Arc::clone(&self.connection));
        }
        let own = Connection::shared()?;
        let parents = with_channel(self.file, |channel| {
            // What the parent was told ahead holds as long as its memory says, which is not this process's.
            channel.ahead.clear();
            Some(std::mem::replace(&mut channel.known.connection, Arc::clone(&own)))
        });
        drop(parents);
        Ok(own)
    }
}

/// Takes one byte off a channel: the events that it told of are gone.
fn take(fd: RawFd) {
    // There is none where another process was faster; and who reads next is told if the socket fails.
    let _ = recv(fd, &mut [0], MsgFlags::MSG_DONTWAIT);
}

/// Waits for an event on a channel, as long as its descriptor says, which may change meanwhile.
///
/// Ends as the kernel's device does: by a signal whose handler asks for that, with EINTR, and where the
/// thread is cancelled. Nothing is held. Returns also where balboad has gone, which then tells a command.
pub(crate) fn wait(fd: RawFd) -> Result<(), Errno> {
    peek(fd, 0)
}

#[cfg(test)]
mod tests;
