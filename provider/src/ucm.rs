//! The connection manager: librdmacm's commands to the kernel's device, carried to balboad.
//!
//! A program's event channel is a socket whose other end balboad has. Events come by it, one message each, so that a
//! program may poll it, make it non-blocking, duplicate it and pass it on in a fork as it would the kernel's file.
//! Commands go along the process's own connection, name the channel by its token, and say how far it was read. Events
//! of an identifier that a command ends or moves are in the socket still: balboad names them, and the provider does not
//! give them to the program. They are taken off as soon as none is before them, so the socket is readable only while it
//! has something to read.
//!
//! When balboad has gone, each of a program's identifiers is told that its device is (DEVICE_REMOVAL), and may be
//! destroyed; everything else fails with EIO.
//!
//! With some events balboad sends the answers to librdmacm's next questions about the identifier
//! ([`shim_abi::CmAhead`]). The provider gives them without asking, as long as they hold.
//!
//! A channel is known by its socket, not by the number of its descriptor: so duplicates by `dup` are the same channel,
//! and a number that is used anew is not taken for it. It is forgotten when librdmacm closes it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::socket::{MsgFlags, recv};
use shim_abi::rdma_cm::{EVENT_LEAST, HEADER, event::DEVICE_REMOVAL, number};
use shim_abi::{
    CM_EVENT_BYTES, CmAhead, CmEvent, CmQuestion, CmReader, CmToken, Request, Response,
};

use crate::control::{ControlConnection, unexpected};
use crate::error::{Error, Result, invalid};
use crate::ffi::cancel::peek;
use crate::ffi::descriptor::{File, file};
use crate::lives;
use crate::process::ProcessLock;

/// In SET_OPTION: where its value's address (u64) and length (u32) are.
const OPTION_ADDRESS: usize = 0;
const OPTION_LENGTH: usize = 20;
/// In CREATE_ID and ACCEPT: the program's name (u64) for its identifier in events.
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
/// How long the end of an identifier waits, at most, for threads to read its unread events.
const A_MOMENT: Duration = Duration::from_millis(10);
/// How often it is looked whether they were taken.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// The event channels that this process knows.
pub(crate) static CHANNELS: ProcessLock<BTreeMap<File, CmChannel>> =
    ProcessLock::new(BTreeMap::new());

/// The known state of an event channel.
#[derive(Debug)]
pub(crate) struct CmChannel {
    known: Known,
    /// Its identifiers, with the program's name for each.
    ids: BTreeMap<u32, u64>,
    /// balboad's answers ahead, by identifier; `None` in a forked child, which cannot tell how long they hold: balboad
    /// tells that to the process that opened the channel.
    ahead: Option<BTreeMap<u32, CmAhead>>,
    /// The number of the last event that was read.
    read: u64,
    /// Numbers of void events that are still in the socket.
    void: BTreeSet<u64>,
    /// An event that was taken in the place of one of those, which another process took meanwhile. It is the next.
    held: Option<CmEvent>,
    /// An identifier or a join ended after balboad had gone, which did not say which events are void: none are given.
    is_over: bool,
}

impl CmChannel {
    fn new(known: Known) -> Self {
        let (ids, read, void, held, is_over) = Default::default();
        Self { known, ids, ahead: Some(BTreeMap::new()), read, void, held, is_over }
    }

    /// Forgets answers ahead that may have changed now.
    fn outdate(&mut self, outdates: Outdates) {
        match outdates {
            Outdates::Nothing => {}
            Outdates::Identifier(id) => drop(self.ahead.as_mut().map(|ahead| ahead.remove(&id))),
            Outdates::Everything => drop(self.ahead.as_mut().map(BTreeMap::clear)),
        }
    }

    /// Goes on in a forked child, by its own connection; the one of its parent.
    fn inherit(&mut self, own: Arc<ControlConnection>) -> Arc<ControlConnection> {
        self.ahead = None;
        std::mem::replace(&mut self.known.connection, own)
    }

    /// Holds an event that was taken, unless it is void; whether it is held.
    fn keep(&mut self, taken: CmEvent) -> bool {
        if self.void.contains(&taken.number) {
            return self.note_read(&taken);
        }
        self.held = Some(taken);
        true
    }

    /// Takes note of an event that was read; whether it is for the program.
    fn note_read(&mut self, event: &CmEvent) -> bool {
        let is_void = self.void.contains(&event.number);
        self.read = event.number;
        // Another process has read the events before it.
        self.void = self.void.split_off(&event.number.saturating_add(1));
        !is_void
    }
}

/// The finding of a look into a channel's socket.
enum ReadEvent {
    Event(CmEvent),
    Nothing,
    /// balboad has closed it.
    End,
}

/// The answers ahead that a command may change.
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
    connection: Arc<ControlConnection>,
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

/// The outcome of a command.
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
    // The connection may end with it, and no other thread must wait for that.
    drop(channel);
}

/// Opens an event channel, as the kernel opens its device with these flags.
pub(crate) fn open(connection: Arc<ControlConnection>, flags: OFlag) -> Result<OwnedFd> {
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
    let channel = CmChannel::new(Known { file, token, connection });
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
    /// Parses written bytes, as far as the kernel does before it knows the command.
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

    /// Address and length of further bytes that are read from the program.
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

    /// Executes the command on the channel `fd`; `value` has the bytes that [`Self::value`] names.
    ///
    /// It does not wait for events.
    pub(crate) fn perform(&self, fd: RawFd, channel: &Known, value: &[u8]) -> Result<Done> {
        if self.waits() {
            if let Some(done) = self.read_event(fd, channel)? {
                return Ok(done);
            }
            // balboad has closed it, and is asked why.
        } else if let Some(told) = self.told_ahead(channel) {
            return Ok(told);
        }
        let from = self.from();
        let left = from.map(|from| {
            let reason = || format!("descriptor {from} is no channel of the connection manager");
            known(from).ok_or_else(|| Error::Refused { errno: libc::EINVAL, reason: reason() })
        });
        let left = left.transpose()?;
        let connection = channel.connection()?;
        // No further events are read until balboad has named the void ones.
        let mut reading = self.ends_events().then(|| connection.reading());
        let request = |command| {
            let from = left.as_ref().map(|left| self.begin(left));
            Request::CmCommand { channel: self.begin(channel), command, from }
        };
        let command = [self.bytes, value].concat();
        let mut asked = request(command.clone());
        let mut answer = connection.call(&asked);
        if self.number == number::DESTROY_ID && is_again(&answer) {
            drop(reading.take());
            leave_to_readers(fd);
            reading = Some(connection.reading());
            asked = request(command);
            answer = connection.call(&asked);
        }
        let left = left.map(|left| left.file);
        match answer {
            Ok((Response::CmAnswer { output, void }, _)) => {
                drop_void(from.unwrap_or(fd), left.unwrap_or(channel.file), void)?;
                drop(reading);
                self.note(channel.file, left, &output);
                self.answered(&asked, output)
            }
            Ok(_) => Err(unexpected(&asked, "it answers another request")),
            Err(error @ Error::Gone) => match self.farewell(channel.file) {
                Some(output) => self.answered(&asked, output),
                None => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Whether unread events end with the identifier that the command ends, or move with it.
    fn ends_events(&self) -> bool {
        matches!(self.number, number::DESTROY_ID | number::LEAVE_MCAST | number::MIGRATE_ID)
    }

    /// Tells balboad how far a channel was read, and forgets the answers ahead that the command may change, even if it
    /// fails. balboad knows that the command may change events that are read from then on.
    fn begin(&self, known: &Known) -> CmReader {
        let far = with_channel(known.file, |channel| {
            channel.outdate(self.outdates());
            Some((channel.read, channel.held.as_ref().map_or(0, |held| held.number)))
        });
        let (read, held) = far.unwrap_or_default();
        CmReader { channel: known.token, read, held }
    }

    /// Reads the next event; none where balboad has closed the channel.
    fn read_event(&self, fd: RawFd, known: &Known) -> Result<Option<Done>> {
        let address = self.address()?;
        if self.room < EVENT_LEAST {
            let reason = format!("an event has {EVENT_LEAST} bytes, and there is no room for them");
            return Err(Error::Refused { errno: libc::ENOSPC, reason });
        }
        let connection = known.connection()?;
        let _reading = connection.reading();
        loop {
            if with_channel(known.file, |channel| Some(channel.is_over)) == Some(true) {
                return Ok(None);
            }
            let held = with_channel(known.file, |channel| channel.held.take());
            let found =
                held.map_or_else(|| look(fd, MsgFlags::empty()), |it| Ok(ReadEvent::Event(it)));
            let mut event = match found? {
                ReadEvent::Event(event) => event,
                ReadEvent::Nothing => return Ok(Some(Done::NoEvent)),
                ReadEvent::End => return Ok(None),
            };
            let is_ours = with_channel(known.file, |channel| {
                let is_ours = channel.note_read(&event);
                let told = event.ahead.take().filter(|_| is_ours);
                if let (Some(all), Some(ahead)) = (&mut channel.ahead, told) {
                    all.insert(ahead.id, ahead);
                }
                Some(is_ours)
            });
            if is_ours != Some(false) {
                drop_void(fd, known.file, Vec::new())?;
                event.output.truncate(self.room);
                return Ok(Some(Done::Answered { address, output: event.output }));
            }
        }
    }

    /// The identifier and the question, of a command that changes nothing.
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
        let (told, mut output) = with_channel(channel.file, |channel| {
            let ahead = channel.ahead.as_ref()?.get(&id)?;
            let (_, output) = ahead.answers.iter().find(|(question, _)| *question == asked)?;
            Some((ahead.era, output.clone()))
        })?;
        let holds = channel.connection.cm_era() == Some(told) && output.len() <= self.room;
        self.name_device(&mut output);
        holds.then_some(Done::Answered { address, output })
    }

    /// The answers ahead that the command may change.
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

    /// Takes note of changes of identifiers.
    fn note(&self, channel: File, left: Option<File>, output: &[u8]) {
        let (uid, id) = (u64_at(self.body(), UID), u32_at(self.body(), ID));
        match self.number {
            number::CREATE_ID => with_ids(channel, |ids| ids.insert(u32_at(output, 0)?, uid?)),
            // The identifier of a request, which the program has named only now.
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

    /// The answer once balboad and its identifiers are gone; `None` if the command then fails.
    fn farewell(&self, channel: File) -> Option<Vec<u8>> {
        match self.number {
            number::DESTROY_ID | number::LEAVE_MCAST => {
                self.note(channel, None, &[]);
                with_channel(channel, |channel| {
                    Some(std::mem::replace(&mut channel.is_over, true))
                });
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

    /// Where the answer goes.
    fn address(&self) -> Result<u64> {
        self.place().filter(|address| *address != 0).ok_or_else(|| {
            let reason = "the command's answer would go to address 0".into();
            Error::Refused { errno: libc::EFAULT, reason }
        })
    }

    /// Where the answer names the identifier's card, has that have the GUID that it has for this process.
    fn name_device(&self, output: &mut [u8]) {
        if !matches!(self.number, number::QUERY_ROUTE | number::QUERY) {
            return;
        }
        if let Some(first) = output.first_chunk_mut() {
            *first = lives::guid(u64::from_be_bytes(*first)).to_be_bytes();
        }
    }

    fn answered(&self, request: &Request, mut output: Vec<u8>) -> Result<Done> {
        self.name_device(&mut output);
        if output.is_empty() {
            return Ok(Done::Nothing);
        }
        if output.len() > self.room {
            return Err(unexpected(request, "it is longer than there is room for"));
        }
        if self.place().is_none() {
            return Err(unexpected(request, "the command has none"));
        }
        Ok(Done::Answered { address: self.address()?, output })
    }
}

/// Looks for the next event of a channel, with further flags of `recv`'s; without any, it takes it.
fn look(fd: RawFd, flags: MsgFlags) -> Result<ReadEvent> {
    let mut room = [0; CM_EVENT_BYTES];
    match recv(fd, &mut room, flags | MsgFlags::MSG_DONTWAIT) {
        Err(Errno::EAGAIN) => Ok(ReadEvent::Nothing),
        // The kernel reports once, before the unread data, that balboad was killed.
        Err(Errno::ECONNRESET) => look(fd, flags),
        Ok(0) | Err(_) => Ok(ReadEvent::End),
        Ok(bytes) => {
            let event = shim_abi::decode(room.get(..bytes).unwrap_or_default());
            event.map(ReadEvent::Event).map_err(Error::Decode)
        }
    }
}

/// Takes note of events of a channel that are void, and takes those off its socket that are next.
fn drop_void(fd: RawFd, file: File, void: Vec<u64>) -> Result<()> {
    with_channel(file, |channel| {
        channel.void.extend(void);
        let held = channel.held.take()?;
        Some(channel.keep(held))
    });
    // One that is held is before all that are in the socket.
    let looks = |channel: &mut CmChannel| channel.held.is_none() && !channel.void.is_empty();
    while with_channel(file, |channel| Some(looks(channel))) == Some(true) {
        let next = look(fd, MsgFlags::MSG_PEEK)?;
        let is_void = with_channel(file, |channel| {
            match &next {
                // Another process has read the events before it.
                ReadEvent::Event(next) => channel.void = channel.void.split_off(&next.number),
                // Those that are void were in the socket.
                ReadEvent::Nothing => channel.void.clear(),
                ReadEvent::End => return None,
            }
            Some(matches!(&next, ReadEvent::Event(next) if channel.void.contains(&next.number)))
        });
        if is_void != Some(true) {
            return Ok(());
        }
        if let ReadEvent::Event(taken) = look(fd, MsgFlags::empty())? {
            with_channel(file, |channel| Some(channel.keep(taken)));
        }
    }
    Ok(())
}

fn is_again<T>(answer: &Result<T>) -> bool {
    answer.as_ref().is_err_and(|error| error.errno() == libc::EAGAIN)
}

/// Gives a thread that was woken for an event a moment to take it.
///
/// An identifier's unread events end with it, as with the kernel, and a thread that has polled and then reads waits for
/// ever. For that reason one in four of rping's clients of rdma-core 65 did not end. So balboad reports once that an
/// identifier has unread events. A program that never reads them pays [`A_MOMENT`] for the identifier's end.
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
fn with_channel<T>(file: File, act: impl FnOnce(&mut CmChannel) -> Option<T>) -> Option<T> {
    CHANNELS.with(|all| act(all.get_mut(&file)?))
}

impl Known {
    /// The way to balboad of this process; a child that was forked has its own.
    fn connection(&self) -> Result<Arc<ControlConnection>> {
        if !self.connection.is_forked() {
            return Ok(Arc::clone(&self.connection));
        }
        let own = ControlConnection::shared()?;
        let parents = with_channel(self.file, |channel| Some(channel.inherit(Arc::clone(&own))));
        drop(parents);
        Ok(own)
    }
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
